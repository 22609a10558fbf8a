"""Tools and calls as a chat template takes and writes them: what it can do is found by trying it.

A model's syntax is found by a round trip: the template writes two calls, and the syntax that reads the same calls back
is the model's. So no model is read by the parser of another family.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from coterie.config.text import shallow
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
from coterie.trajectories.calls import Tool, ToolCall, call_id
from coterie.trajectories.turn import Finish

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from coterie.models.control import ControlTokens

Text = Callable[[str], str]
Results = Literal["tool", "calls", "user"]
"""How results are shown: in ``tool`` messages after what the model said; in ``tool`` messages after a message with
``tool_calls``, which what the model said replaces; as a user's message."""
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
"""What the template is to write, and a syntax to read back."""
_ASKED = {"role": "user", "content": f"{WORD}asked"}


class Arguments(dict[str, Any]):
    """The arguments of a call: a mapping, and JSON text to the templates that join it to text (DeepSeek's)."""

    def __radd__(self, text: str) -> str:
        return text + json_text(self)


def offered(tool: Tool, text: Text = str) -> dict[str, Any]:
    """Return a tool in OpenAI's form, every text of it by ``text``; keys stay in their order."""
    function = {
        "name": text(tool.name),
        "description": text(tool.description),
        "parameters": mapped(tool.parameters, text),
    }
    return {"type": "function", "function": function}


def called(call: ToolCall, id_: str, text: Text = str) -> dict[str, Any]:
    """Return a call in OpenAI's form, every text of it by ``text``."""
    arguments = Arguments(mapped(_arguments(call), text))
    return {
        "id": id_,
        "type": "function",
        "function": {"name": text(call.name), "arguments": arguments},
    }


def safe_call(call: ToolCall, safe: Text) -> ToolCall:
    """Return a call, every text of it by ``safe``, whatever JSON spells it as."""
    return replace(call, name=safe(call.name), arguments=json_text(mapped(_arguments(call), safe)))


def mapped(value: object, text: Text) -> Any:
    """Return a copy of a JSON value, its keys and strings by ``text``."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {text(str(key)): mapped(one, text) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(one, text) for one in value]
    return value


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call; what is no JSON object, or nests too deep, is a text in one."""
    try:
        read = shallow(json.loads(call.arguments))
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {"text": call.arguments}


class ResponseTemplate(NativeSyntax):
    """The tokenizer's ``response_template``, for families without a syntax here.

    It does not say whether a call is closed: of a message that did not end by itself the last call is not run.
    """

    name = "the tokenizer's response template"

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", prompt: str) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        """The end of a prompt, which may have begun the message."""

    def read(self, text: str, finish: Finish, tools: Sequence[Tool]) -> Iterator[ToolCall]:
        try:
            message = self._tokenizer.parse_response(
                text, prefix=self._prompt, tools=[offered(tool) for tool in tools]
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
    """What a chat template can do for tools."""

    syntax: NativeSyntax | None
    """The way in which its model writes calls; ``None`` if it shows no calls, or in a way that nothing here reads."""
    shows_tools: bool
    parallel: bool
    """True if it writes two calls in one message. The syntax reads several in any case."""
    results: Results
    long_ids: bool
    """True if it takes ids of calls only if they have nine characters."""
    users_after_results: bool = True
    """True if a user may speak right after results; if not, such words are shown with the last one."""
    system_with_results: bool = True
    """True if a system message is shown in prompts that end with results; if not, it is a user's message."""
    ends: frozenset[int] = frozenset()
    """Ids that end a message with calls."""
    markup: frozenset[int] = frozenset()
    """Control tokens with which calls are written; an agent's own messages may have them."""

    def call_id(self, place: int) -> str:
        """Return the id of a call in the template's form: by its place, so that prompts stay the same."""
        return _id(place, self.long_ids)

    def required(self) -> NativeSyntax:
        """Return the syntax. Raises ``UserError`` if the model has none that can be used."""
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
    """Try what a chat template does with tools, calls and results."""
    trial = _Trial(tokenizer, template, control)
    shows = trial.shows_tools()
    ways = [(several, long_ids) for several in (2, 1) for long_ids in (False, True)]
    written = next((way for way in ways if trial.calls(CALLS[: way[0]], way[1])), None)
    syntax = trial.syntax(*written) if shows and written else None
    parallel = written is not None and written[0] == 2
    results, long_ids = trial.results(syntax is not None, parallel)
    ends, markup = trial.tokens(syntax, written[0], long_ids) if syntax and written else ((), ())
    chat = _dialogue(results, long_ids, parallel)
    after = results == "user" or trial.shows([*chat[:-2], chat[-1]])
    system = {"role": "system", "content": f"{WORD}9x"}
    rules = results == "user" or trial.shows([system, *chat[:-2]])
    return ToolTemplate(
        syntax, shows, parallel, results, long_ids, after, rules, frozenset(ends), frozenset(markup)
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tries a template."""

    tokenizer: "PreTrainedTokenizerBase"
    template: "ChatTemplate"
    control: "ControlTokens"

    def shows_tools(self) -> bool:
        text = self._text([_ASKED], True)
        return all(tool.name in text and tool.description in text for tool in TOOLS)

    def calls(
        self, calls: Sequence[tuple[str, Mapping[str, Any]]], long_ids: bool, result: bool = False
    ) -> str:
        """Return the text of a message with calls, from its header on; empty if the template refuses or omits them."""
        said = _said([_call(*one, _id(at, long_ids)) for at, one in enumerate(calls)])
        told = [_result("told", _id(at, long_ids)) for at in range(len(calls))] if result else []
        text = self._begun([said, *told])
        return text if all(name in text for name, _ in calls) else ""

    def _begun(self, chat: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of what follows a user's message, from its header on."""
        text = self._text([_ASKED, *chat], False).rpartition(_ASKED["content"])[2]
        begun = self.template.header().rstrip().removesuffix(THOUGHT)
        return text.partition(begun)[2] if begun and begun in text else text

    def syntax(self, several: int, long_ids: bool) -> NativeSyntax | None:
        """Return the syntax that reads what the template writes; those here know cut and broken calls best."""
        header, text = self.template.header(), self.calls(CALLS[:several], long_ids)
        for markup in SYNTAXES:
            if _reads(markup(), text, several):
                opened = re.search(rf"(?:{markup.thought.pattern})\s*\Z", header)
                return markup(thinks=opened is not None)
        if getattr(self.tokenizer, "response_template", None):
            own = ResponseTemplate(self.tokenizer, header)
            return own if _reads(own, text, several) else None
        return None

    def results(self, calls: bool, parallel: bool) -> tuple[Results, bool]:
        lead = self._begun([{"role": "assistant", "content": WORD}]).partition(WORD)[0]
        alike = not calls or self.calls(CALLS[:1], False).startswith(lead)  # not so: to=user (Muse)
        ways: dict[Results, bool] = {"tool": alike, "calls": calls}
        for way in (one for one, fits in ways.items() if fits):
            for long_ids in (False, True):
                chat = _dialogue(way, long_ids, parallel)
                if self.shows(chat) and not self.template.takes_for_own("tool", chat):
                    return way, long_ids
        return "user", False

    def tokens(
        self, syntax: NativeSyntax, several: int, long_ids: bool
    ) -> tuple[list[int], set[int]]:
        """Return the ids that end a message with calls, and the control tokens that only such a message has.

        A message ends with the first control token after the last argument that is in none of its calls.
        """
        calls = [(tool.name, {"query": f"{WORD}last"}) for tool in TOOLS[:several]]
        text = self.calls(calls, long_ids, True) or self.calls(calls, long_ids)
        before, last, after = text.rpartition(f"{WORD}last")
        inside = set(self.control.written(before + last))
        closing = syntax.closing if isinstance(syntax, Markup) and not syntax.ends_message else ""
        inside |= set(self.control.written(closing))
        ends = [one for one in self.control.written(after) if one not in inside][:1]
        plain = self._text([_ASKED, {"role": "assistant", "content": WORD}], False, ())
        return ends, inside - {*self.control.written(plain), *ends}

    def shows(self, dialogue: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the words of all messages are shown, in their order."""
        text, words = self._text(dialogue, True, ()), re.compile(rf"{WORD}\d+x")
        given = dict.fromkeys(words.findall(json_text(dialogue)))
        return list(given) == list(dict.fromkeys(words.findall(text)))

    def _text(
        self, chat: Sequence[Mapping[str, Any]], generation: bool, tools: Sequence[Tool] = TOOLS
    ) -> str:
        try:
            return self.template.text(chat, generation, [offered(tool) for tool in tools])
        except UserError:
            return ""


def _id(place: int, long: bool) -> str:
    return f"call{place:05}" if long else call_id(place)


def _call(name: str, arguments: Mapping[str, Any], id_: str) -> dict[str, Any]:
    return called(ToolCall("", name, json_text(arguments)), id_)


def _said(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(text: str, id_: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id_, "name": TOOLS[0].name}


def _dialogue(way: Results, long_ids: bool, parallel: bool) -> list[dict[str, Any]]:
    """Return two messages with calls, of which the first has two if it can, an answer, and what a user says then."""
    words = (f"{WORD}{number}x" for number in count())
    chat = [{"role": "user", "content": next(words)}]
    for several in (2 if parallel or way == "tool" else 1, 1):
        ids, said = [_id(place, long_ids) for place in range(several)], next(words)
        calls = _said([_call(TOOLS[0].name, {"query": said}, one) for one in ids])
        chat.append(calls if way == "calls" else {"role": "assistant", "content": said})
        chat += [_result(next(words), one) for one in ids]
    return [
        *chat,
        {"role": "assistant", "content": next(words)},
        {"role": "user", "content": next(words)},
    ]


def _reads(syntax: NativeSyntax, text: str, several: int) -> bool:
    read = syntax.parse(text, "end", TOOLS)
    if any(call.error for call in read):
        return False
    return [(one.name, json.loads(one.arguments)) for one in read] == list(CALLS[:several])
