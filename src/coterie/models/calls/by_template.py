"""Calls as a tokenizer's own response template reads them (Transformers from 5.13)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from transformers import PreTrainedTokenizerBase

from coterie.config.text import shallow
from coterie.models.calls.markup import Written, broken, call_of, unclosed, whole_text
from coterie.models.offering import offered
from coterie.trajectories.calls import Tool, ToolCall, ToolResult, call_id
from coterie.trajectories.turn import Finish


class ResponseTemplate:
    """The tokenizer's ``response_template``. It does not say whether a call is closed: of a message that did not
    end by itself the last call is not run.
    """

    name: ClassVar[str] = "the tokenizer's response template"
    stop: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: str) -> None:
        self.tokenizer = tokenizer
        self.prompt = prompt
        """With which a prompt ends; it may have begun the message."""

    def parse(self, text: str, finish: Finish, tools: Sequence[Tool] = ()) -> tuple[ToolCall, ...]:
        try:
            message = self.tokenizer.parse_response(
                text, prefix=self.prompt, tools=[offered(tool) for tool in tools]
            )
            calls = shallow(message.get("tool_calls") or [])
        except (
            Exception
        ) as error:  # whatever the template's own parsers raise on what a model wrote
            return _named([broken(text, str(error).partition("\n")[0])])
        found = [call_of(_function(one)) for one in calls]
        if found and finish != "end":
            last = found[-1]
            error_ = last.error or unclosed("the last call", "its end", finish)
            found[-1] = replace(last, error=error_)
        return _named(found)

    def show(self, results: Sequence[ToolResult]) -> str:
        return ""


def _function(call: object) -> object:
    return call.get("function", call) if isinstance(call, Mapping) else call


def _named(found: Sequence[Written]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(call_id(number), whole_text(one.name), whole_text(one.arguments), one.error)
        for number, one in enumerate(found)
    )
