"""Tools and calls of a chat template, detected by trials.

The template writes two calls, and the syntax that reads the same calls back is the model's. So no parser of another
family reads a model's calls.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count as numbers
from typing import TYPE_CHECKING, Any, Literal

from coterie.config.folders import shallow
from coterie.errors import UserError
from coterie.models.call_syntaxes import (
    SYNTAXES,
    THOUGHT,
    Markup,
    NativeSyntax,
    call_of,
    json_text,
)
from coterie.models.template import WORD, ChatTemplate
from coterie.record.turn import Finish, Tool, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from coterie.models.control import ControlTokens

Text = Callable[[str], str]
Results = Literal["tool", "calls", "user"]
"""Form of results: ``tool`` messages after the sampled text; ``tool`` messages after a message with ``tool_calls``,
whose text the sampled text replaces; a user's message."""
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


class Arguments(dict[str, Any]):
    """Arguments of a call: a mapping, but JSON text in templates that append it to text (DeepSeek)."""

    def __radd__(self, text: str) -> str:
        return text + json_text(self)


def openai_tool(tool: Tool, text: Text = str) -> dict[str, Any]:
    """Return a tool in OpenAI's form, with ``text`` applied to its texts."""
    function = {
        "name": text(tool.name),
        "description": text(tool.description),
        "parameters": mapped(tool.parameters, text),
    }
    return {"type": "function", "function": function}


def openai_call(call: ToolCall, id_: str, text: Text = str) -> dict[str, Any]:
    """Return a call in OpenAI's form, with ``text`` applied to its texts."""
    arguments = Arguments(mapped(_arguments(call), text))
    return {
        "id": id_,
        "type": "function",
        "function": {"name": text(call.name), "arguments": arguments},
    }


def safe_call(call: ToolCall, safe: Text) -> ToolCall:
    """Return a call with ``safe`` applied to its decoded texts."""
    return replace(call, name=safe(call.name), arguments=json_text(mapped(_arguments(call), safe)))


def mapped(value: object, text: Text) -> Any:
    """Return a copy of a JSON value with ``text`` applied to its keys and strings."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {text(str(key)): mapped(one, text) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(one, text) for one in value]
    return value


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call; put broken or too deeply nested JSON into an object as text."""
    try:
        read = shallow(json.loads(call.arguments))
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {"text": call.arguments}


class ResponseTemplate(NativeSyntax):
    """Syntax of the tokenizer's ``response_template``, for other families.

    It does not detect unclosed calls, so the last call of a cut message is not run.
    """

    name = "the tokenizer's response template"

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", prompt: str) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        """End of a prompt, which may begin the message."""

    def read(self, text: str, finish: Finish, tools: Sequence[Tool]) -> Iterator[ToolCall]:
        try:
            message = self._tokenizer.parse_response(
                text, prefix=self._prompt, tools=[openai_tool(tool) for tool in tools]
            )
            calls = [call_of(one) for one in shallow(message.get("tool_calls") or [])]
        except Exception as error:  # what the template's own parsers raise on what a model wrote
            why = str(error).partition("\n")[0]
            yield ToolCall("", "", text.strip(), f"not run: the call can't be read: {why}")
            return
        yield from calls[:-1]
        for last in calls[-1:]:
            cut = "" if finish == "end" else "not run: the message was cut off before its end"
            yield replace(last, error=last.error or cut)


@dataclass(frozen=True, slots=True)
class ToolTemplate:
    """Tool support of a chat template."""

    syntax: NativeSyntax | None
    """Call syntax of the model; ``None`` if the template shows no calls, or no syntax reads them."""
    shows_tools: bool
    parallel: bool
    """True if the template writes two calls in one message. The syntax always reads several."""
    results: Results
    ids: str
    """Form of call ids."""
    users_after_results: bool = True
    """True if a user message may follow results; otherwise it is merged with the last result."""
    system_with_results: bool = True
    """True if prompts that end with results show a system message; otherwise it becomes a user message."""
    ends: frozenset[int] = frozenset()
    """Token ids that end a message with calls."""
    markup: frozenset[int] = frozenset()
    """Control tokens of calls, which an agent's own messages may spell."""

    def call_id(self, place: int) -> str:
        """Return a call's id in the template's form, with ``{name}`` for the tool's name if ids have it.

        It depends only on the position, so prompts stay equal.
        """
        return self.ids.format(place=place, name="{name}")

    def required(self) -> NativeSyntax:
        """Return the syntax; ``UserError`` for a model without one."""
        if self.syntax is None or not self.shows_tools:
            raise UserError(
                f"this model can't call tools in a syntax of its own: {' '.join(self.findings[:2])}",
                "use tags for calls (tools.calls=tags), or a model whose chat template has tools",
            )
        return self.syntax

    @property
    def findings(self) -> tuple[str, ...]:
        results = {
            "tool": "Results are shown as tool messages.",
            "calls": "Results are shown as tool messages, which the template takes only after calls.",
            "user": "The template takes no tool messages: results are shown as a user's.",
        }
        return (
            f"The chat template shows {'' if self.shows_tools else 'no '}tools.",
            f"Calls are written as {self.syntax.name}."
            if self.syntax
            else "No way to write calls that coterie can read was found in it.",
            "The template writes several calls of one message."
            if self.parallel
            else "The template writes one call of a message; several are read where the model writes them.",
            results[self.results],
        )


def tool_template(
    tokenizer: "PreTrainedTokenizerBase", template: "ChatTemplate", control: "ControlTokens"
) -> ToolTemplate:
    """Detect the tool support of a chat template."""
    trial = _Trial(tokenizer, template, control)
    shows = trial.shows_tools()
    forms = [(count, ids) for count in (2, 1) for ids in CALL_IDS]
    form = next((one for one in forms if trial.calls(CALLS[: one[0]], one[1])), None)
    syntax = trial.syntax(*form) if shows and form else None
    parallel = form is not None and form[0] == 2
    results, ids = trial.results(form[1] if form and syntax else "", parallel)
    ends, markup = trial.tokens(syntax, form[0], ids) if syntax and form else ((), ())
    chat = _dialogue(results, ids, parallel)
    after = results == "user" or trial.shows([*chat[:-2], chat[-1]])
    system = {"role": "system", "content": f"{WORD}9x"}
    rules = results == "user" or trial.shows([system, *chat[:-2]])
    return ToolTemplate(
        syntax, shows, parallel, results, ids, after, rules, frozenset(ends), frozenset(markup)
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """Trial of a template."""

    tokenizer: "PreTrainedTokenizerBase"
    template: "ChatTemplate"
    control: "ControlTokens"

    def shows_tools(self) -> bool:
        text = self._text([_USER], True)
        return all(tool.name in text and tool.description in text for tool in TOOLS)

    def calls(
        self, calls: Sequence[tuple[str, Mapping[str, Any]]], ids: str, result: bool = False
    ) -> str:
        """Return the text of a message with calls after its header; empty if the template refuses or omits them."""
        message = _calling([_call(*one, ids, at) for at, one in enumerate(calls)])
        results = [_result("done", one["id"]) for one in message["tool_calls"] if result]
        text = self._answer([message, *results])
        return text if all(name in text for name, _ in calls) else ""

    def _answer(self, chat: Sequence[Mapping[str, Any]]) -> str:
        """Return the text after a user's message and the header of the answer."""
        text = self._text([_USER, *chat], False).rpartition(_USER["content"])[2]
        header = self.template.header.rstrip().removesuffix(THOUGHT)
        return text.partition(header)[2] if header and header in text else text

    def syntax(self, count: int, ids: str) -> NativeSyntax | None:
        """Return the syntax that reads the template's calls; a response template comes last."""
        header, text = self.template.header, self.calls(CALLS[:count], ids)
        for markup in SYNTAXES:
            if _reads(markup(), text, count):
                opening = re.search(rf"(?:{markup.thought.pattern})\s*\Z", header)
                return markup(thinks=opening is not None)
        if getattr(self.tokenizer, "response_template", None):
            own = ResponseTemplate(self.tokenizer, header)
            return own if _reads(own, text, count) else None
        return None

    def results(self, ids: str, parallel: bool) -> tuple[Results, str]:
        """Return the form of results and of call ids; ``ids`` is the form in calls, if the model has any."""
        lead = self._answer([{"role": "assistant", "content": WORD}]).partition(WORD)[0]
        # Muse begins messages without calls with to=user, and Kimi's results take the ids of calls.
        alike = self.calls(CALLS[:1], ids).startswith(lead) and "name" not in ids
        forms: dict[Results, bool] = {"tool": alike or not ids, "calls": bool(ids)}
        for form in (one for one, fits in forms.items() if fits):
            for one in (ids,) if ids else CALL_IDS:
                chat = _dialogue(form, one, parallel)
                if self.shows(chat) and not self.template.treats_as_assistant("tool", chat):
                    return form, one
        return "user", ids or CALL_IDS[0]

    def tokens(self, syntax: NativeSyntax, count: int, ids: str) -> tuple[list[int], set[int]]:
        """Return the ids that end a message with calls, and the control tokens of calls alone.

        A message ends with the first control token after the last argument that no call contains.
        """
        calls = [(tool.name, {"query": f"{WORD}last"}) for tool in TOOLS[:count]]
        text = self.calls(calls, ids, True) or self.calls(calls, ids)
        before, last, after = text.rpartition(f"{WORD}last")
        inside = set(self.control.find_ids(before + last))
        closing = syntax.closing if isinstance(syntax, Markup) and not syntax.ends_message else ""
        inside |= set(self.control.find_ids(closing))
        ends = [one for one in self.control.find_ids(after) if one not in inside][:1]
        plain = self._text([_USER, {"role": "assistant", "content": WORD}], False, ())
        return ends, inside - {*self.control.find_ids(plain), *ends}

    def shows(self, dialogue: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if the words of all messages are shown in order."""
        text, words = self._text(dialogue, True, ()), re.compile(rf"{WORD}\d+x")
        expected = dict.fromkeys(words.findall(json_text(dialogue)))
        return list(expected) == list(dict.fromkeys(words.findall(text)))

    def _text(
        self, chat: Sequence[Mapping[str, Any]], generation: bool, tools: Sequence[Tool] = TOOLS
    ) -> str:
        try:
            return self.template.text(chat, generation, [openai_tool(tool) for tool in tools])
        except UserError:
            return ""


def _call(name: str, arguments: Mapping[str, Any], ids: str, place: int) -> dict[str, Any]:
    call = ToolCall("", name, json_text(arguments))
    return openai_call(call, ids.format(place=place, name=name))


def _calling(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(text: str, id_: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id_, "name": TOOLS[0].name}


def _dialogue(form: Results, ids: str, parallel: bool) -> list[dict[str, Any]]:
    """Return two messages with calls and results (two in the first if possible), an answer and a user message."""
    words = (f"{WORD}{number}x" for number in numbers())
    chat = [{"role": "user", "content": next(words)}]
    for calls in (2 if parallel or form == "tool" else 1, 1):
        text, name = next(words), TOOLS[0].name
        message = _calling([_call(name, {"query": text}, ids, place) for place in range(calls)])
        chat.append(message if form == "calls" else {"role": "assistant", "content": text})
        chat += [_result(next(words), one["id"]) for one in message["tool_calls"]]
    return [
        *chat,
        {"role": "assistant", "content": next(words)},
        {"role": "user", "content": next(words)},
    ]


def _reads(syntax: NativeSyntax, text: str, count: int) -> bool:
    read = syntax.parse(text, "end", TOOLS)
    if any(call.error for call in read):
        return False
    return [(one.name, json.loads(one.arguments)) for one in read] == list(CALLS[:count])
