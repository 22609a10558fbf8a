"""Tools and calls of a chat template, detected by trials: the syntax that reads its own calls back is the model's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count as numbers
from typing import Any, Literal

from coterie.errors import UserError
from coterie.models.call_syntaxes import (
    SYNTAXES,
    THOUGHT,
    THOUGHTS,
    CallSyntax,
    json_text,
    openai_call,
    openai_tool,
)
from coterie.models.control import ControlTokens
from coterie.models.template import WORD, ChatTemplate
from coterie.record.turn import Tool, ToolCall

Message = Mapping[str, Any]
Results = Literal["tool", "calls", "user"]
"""Form of results: ``tool`` messages after the sampled text; ``tool`` messages after a message with ``tool_calls``,
whose text the sampled text replaces; a user's message."""
_RESULTS: dict[Results, str] = {
    "tool": "Results are shown as tool messages.",
    "calls": "Results are shown as tool messages, which the template takes only after calls.",
    "user": "The template takes no tool messages: results are shown as a user's.",
}
_MANY = "several calls of one message"
_ONE = "one call of a message; several are read where the model writes them"
CALL_IDS = ("c{place}", "call{place:05}", "functions.{name}:{place}")
"""Forms of call ids: any, with nine characters (Mistral), with the tool's name (Kimi)."""
_VALUES = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": f"{WORD}query"},
        "count": {"type": "integer"},
        "deep": {"type": "object"},
    },
}
TOOLS = (
    Tool(f"find{WORD}", f"Finds {WORD}found.", _VALUES),
    Tool(f"note{WORD}", f"Notes {WORD}noted.", _VALUES),
)
CALLS = (
    (TOOLS[0].name, {"query": "Zoë said \"no\" & 'yes'\n<b>", "deep": {"a": [1, {"b": "ü"}]}}),
    (TOOLS[1].name, {"query": "two\\words", "count": 2}),
)
"""Calls that the template writes and a syntax reads back."""
_USER = {"role": "user", "content": f"{WORD}asked"}


class ToolTemplate:
    """Tool support of a chat template."""

    syntax: CallSyntax | None = None
    """Call syntax of the model; ``None`` if the template shows no calls, or no syntax reads them."""
    shows_tools: bool
    parallel: bool
    """True if the template writes two calls in one message. The syntax always reads several."""
    results: Results = "user"
    ids: str = CALL_IDS[0]
    """Form of call ids."""
    users_after_results: bool
    """True if a user message may follow results; otherwise it is merged with the last result."""
    system_with_results: bool
    """True if prompts that end with results show a system message; otherwise it becomes a user message."""
    ends: frozenset[int] = frozenset()
    """Token ids that end a message with calls."""
    markup: frozenset[int] = frozenset()
    """Control tokens of calls, which an agent's own messages may spell."""

    def __init__(self, template: ChatTemplate, control: ControlTokens) -> None:
        self._template = template
        text = self._text([_USER], True)
        self.shows_tools = all(tool.name in text and tool.description in text for tool in TOOLS)
        # Templates may refuse two calls of a message, or ids of another form.
        forms = [(count, ids) for count in (2, 1) for ids in CALL_IDS]
        count, ids = next(
            (form for form in forms if self._calls(CALLS[: form[0]], form[1])), (0, "")
        )
        self.parallel = count == 2
        if self.shows_tools and count:
            self.syntax = self._find_syntax(self._calls(CALLS[:count], ids), count)
        self._find_results(ids if self.syntax else "")
        if self.syntax:
            self.ends, self.markup = self._find_tokens(self.syntax, control, count)
        chat = self._dialogue(self.results, self.ids)
        is_user = self.results == "user"
        self.users_after_results = is_user or template.shows([*chat[:-2], chat[-1]])
        system = {"role": "system", "content": f"{WORD}9x"}
        self.system_with_results = is_user or template.shows([system, *chat[:-2]])

    def call_id(self, index: int) -> str:
        """Return a call's id by its position, so that prompts stay equal, with ``{name}`` for the tool's name."""
        return self.ids.format(place=index, name="{name}")

    def required(self) -> CallSyntax:
        """Return the syntax; ``UserError`` for a model without one."""
        if self.syntax is None or not self.shows_tools:
            raise UserError(
                f"this model can't call tools in a syntax of its own: {' '.join(self.findings[:2])}",
                "use a model whose chat template has tools, or show them as text: a run with tools.calls=tags or "
                "environment.calls=tags, and a program in its prompts",
            )
        return self.syntax

    @property
    def findings(self) -> tuple[str, ...]:
        unknown = "No way to write calls that coterie can read was found in it."
        return (
            f"The chat template shows {'' if self.shows_tools else 'no '}tools.",
            f"Calls are written as {self.syntax.name}." if self.syntax else unknown,
            f"The template writes {_MANY if self.parallel else _ONE}.",
            _RESULTS[self.results],
        )

    def _calls(self, calls: Sequence[tuple[str, Message]], ids: str, result: bool = False) -> str:
        """Return the text of a message with calls after its header; empty if the template refuses or omits them."""
        message = _calling([_call(*call, ids, index) for index, call in enumerate(calls)])
        results = [_result("done", call["id"]) for call in message["tool_calls"] if result]
        text = self._answer([message, *results])
        return text if all(name in text for name, _ in calls) else ""

    def _answer(self, chat: Sequence[Message]) -> str:
        """Return the text after a user's message and the header of the answer."""
        text = self._text([_USER, *chat], False).rpartition(_USER["content"])[2]
        # Without the thought that the header opens: some templates leave it out before calls.
        header = self._template.header.rstrip().removesuffix(THOUGHT)
        return text.partition(header)[2] if header and header in text else text

    def _find_syntax(self, text: str, count: int) -> CallSyntax | None:
        """Return the syntax that reads the template's calls."""
        header = self._template.header.rstrip()
        for syntax in SYNTAXES.values():
            # The calls have quotes, tags, nested values and special characters, so that a syntax
            # which only resembles the model's does not read them back.
            read = syntax.parse(text, "end", TOOLS)
            calls = [(call.name, call.error or json.loads(call.arguments)) for call in read]
            if calls == list(CALLS[:count]):
                opens = (mark for mark in THOUGHTS if header.endswith(mark))
                return replace(syntax, thinks=next(opens, ""))
        return None

    def _find_results(self, ids: str) -> None:
        """Set the form of results and of call ids; ``ids`` is the form in calls, if the model has any."""
        lead = self._answer([{"role": "assistant", "content": WORD}]).partition(WORD)[0]
        # Muse begins messages without calls with to=user, and Kimi's results take the ids of calls.
        alike = self._calls(CALLS[:1], ids).startswith(lead) and "name" not in ids
        forms: dict[Results, bool] = {"tool": alike or not ids, "calls": bool(ids)}
        self.ids = ids or self.ids
        for form in (form_ for form_, fits in forms.items() if fits):
            # Results must have the ids of the calls; without calls, any form that the template takes.
            for id_form in (ids,) if ids else CALL_IDS:
                chat = self._dialogue(form, id_form)
                if self._template.shows(chat, "tool"):
                    self.results, self.ids = form, id_form
                    return

    def _find_tokens(
        self, syntax: CallSyntax, control: ControlTokens, count: int
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Return the ids that end a message with calls, and the control tokens of calls alone.

        A message ends with the first control token after the last argument that no call contains.
        """
        calls = [(tool.name, {"query": f"{WORD}last"}) for tool in TOOLS[:count]]
        text = self._calls(calls, self.ids, True) or self._calls(calls, self.ids)
        beginning, word, rest = text.rpartition(f"{WORD}last")
        # A token that occurs in calls can't end the message, which may have several calls.
        inside = set(control.find_ids(beginning + word))
        inside |= set(control.find_ids("" if syntax.ends_message else syntax.closing))
        ends = [token for token in control.find_ids(rest) if token not in inside][:1]
        # Control tokens that every message has are no markup of calls.
        plain = self._template.try_text([_USER, {"role": "assistant", "content": WORD}], False)
        return frozenset(ends), frozenset(inside - {*control.find_ids(plain), *ends})

    def _dialogue(self, form: Results, ids: str) -> list[dict[str, Any]]:
        """Return two messages with calls and results (two in the first if possible), an answer and a user message."""
        words = (f"{WORD}{number}x" for number in numbers())
        chat: list[dict[str, Any]] = [{"role": "user", "content": next(words)}]
        for calls in (2 if self.parallel or form == "tool" else 1, 1):
            text, name = next(words), TOOLS[0].name
            message = _calling([_call(name, {"query": text}, ids, index) for index in range(calls)])
            chat.append(message if form == "calls" else {"role": "assistant", "content": text})
            chat += [_result(next(words), call["id"]) for call in message["tool_calls"]]
        chat.append({"role": "assistant", "content": next(words)})
        return [*chat, {"role": "user", "content": next(words)}]

    def _text(self, chat: Sequence[Message], generation: bool) -> str:
        return self._template.try_text(chat, generation, [openai_tool(tool) for tool in TOOLS])


def _call(name: str, arguments: Message, ids: str, index: int) -> dict[str, Any]:
    call = ToolCall("", name, json_text(arguments))
    return openai_call(call, ids.format(place=index, name=name))


def _calling(calls: Sequence[Message]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(text: str, id_: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id_, "name": TOOLS[0].name}
