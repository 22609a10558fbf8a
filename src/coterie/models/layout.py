"""Layout of a chat: the template's text, split into template text and contents.

Each content is passed to the template as a *sentinel*, a random word, and the text is split there. Putting the contents
back must give the text of the plain chat; so the template keeps contents or only strips their ends.

If the template rewrites a content (drops thoughts, quotes, splits lines), sentinels replace only characters that may
begin a control token. The same holds for all texts of tools and calls.

Some templates take results only after a message with calls. A *stand-in* message replaces an own turn there: its first
name and last argument are sentinels, and the turn replaces the template's text between them.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any, Literal

from coterie.errors import UserError
from coterie.models.template import NONCE, WORD, ChatTemplate
from coterie.models.tool_calls import openai_call, openai_tool
from coterie.record.turn import Tool, ToolCall, Turn

_SENTINEL = re.compile(rf"(turn|sign){NONCE}n(\d+)z")

_SWITCH = re.compile(r"/(?:no_)?think\b")
"""Words that some templates act on and remove from messages (SmolLM3, Nemotron Nano 2)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Content of a message: text, or a turn whose ids replace the text."""

    text: str
    turn: Turn | None = None
    role: str = ""
    edge: Literal["", "first", "last", "thought"] = ""
    prefill: str = ""
    """Text of a turn that was in its prompt."""
    markup: str | None = None
    """Markup around a turn's thought, without white space; ``None`` for a turn without markup or thought."""


@dataclass(frozen=True, slots=True)
class TemplateMessage:
    """Message for the template."""

    role: str
    slots: tuple[Slot, ...]
    call_id: str = ""
    """Call that a tool's message answers, with ``{name}`` for the tool in ids that have it."""
    name: Slot | None = None
    """Tool of a tool's message."""
    calls: tuple[ToolCall, ...] = ()
    """Calls that the template writes."""
    call_ids: tuple[str, ...] = ()
    """Ids of the calls, in the template's form."""
    is_stand_in: bool = False
    """True if the slots replace the template's text of the calls."""
    call_names: tuple[str, ...] = ()
    """Tools that a stand-in calls; templates repeat them in results."""
    thought: Slot | None = None
    """Thought, which the template may show or drop."""
    thought_key: str = ""
    """Message key for the thought; if empty, the content has it between ``before`` and ``after``."""
    before: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        return "".join(slot.text for slot in self.slots)

    def message(
        self, text: str, show: Callable[[Slot], str], sign: Callable[[str], str] = str
    ) -> Mapping[str, Any]:
        """Return the message as a mapping, with slots by ``show`` and texts of calls by ``sign``."""
        text = "" if self.is_stand_in else text
        thought = show(self.thought) if self.thought else ""
        message: dict[str, Any] = {"role": self.role}
        if self.thought_key:
            message["content"] = text
            message |= {self.thought_key: thought} if thought else {}
        else:
            message["content"] = self.before + thought + self.after + text
        if self.call_ids:
            pairs = zip(self.calls, self.call_ids, strict=True) if not self.is_stand_in else ()
            calls = [openai_call(one, id_.format(name=sign(one.name)), sign) for one, id_ in pairs]
            return message | {"tool_calls": calls or self._stand_in(show, sign)}
        name = show(self.name) if self.name else ""
        message |= {"tool_call_id": self.call_id.format(name=name)} if self.call_id else {}
        return message | ({"name": name} if name else {})

    def _stand_in(
        self, show: Callable[[Slot], str], sign: Callable[[str], str]
    ) -> list[dict[str, Any]]:
        """Return calls with sentinels for the first name and the last argument."""
        names = self.call_names or ("call",) * len(self.call_ids)
        value = show(Slot("call", edge="last"))
        names = (show(Slot(names[0], edge="first")), *map(sign, names[1:]))
        return [
            {"id": id_.format(name=name), "type": "function",
             "function": {"name": name, "arguments": {"value": value}}}
            for name, id_ in zip(names, self.call_ids, strict=True)
        ]  # fmt: skip


TextPiece = str | Slot
"""Text of the template, or content."""
Hidden = Callable[[TemplateMessage], Iterator[tuple[str, bool]]]
"""Function that splits a message's text at characters which may begin a control token: (text, is hidden)."""


class Layout:
    """Pieces of one chat. Raises ``UserError`` for a chat that the template refuses."""

    def __init__(
        self,
        template: ChatTemplate,
        chat: Sequence[TemplateMessage],
        generation: bool,
        hidden: Hidden,
        tools: Sequence[Tool] = (),
    ) -> None:
        self._template = template
        self._chat = chat
        self._generation = generation
        self._hidden = hidden
        self._slots: list[Slot] = []
        self._seen: set[int] = set()
        self._plain = [one.message(one.text, lambda slot: slot.text) for one in chat]
        self._text = template.text(self._plain, generation, [openai_tool(tool) for tool in tools])
        self._tools = [openai_tool(tool, self._sign) for tool in tools]
        self._whole: list[Mapping[str, Any]] = []
        self._numbers: list[range] = []
        for one in chat:
            first = len(self._slots)
            text = "".join(map(self._sentinel, one.slots))
            self._numbers.append(range(first, len(self._slots)))
            self._whole.append(one.message(text, self._sentinel, self._sign))

    def pieces(self) -> list[TextPiece]:
        """Return template text and contents in order.

        Raises:
            UserError: If they cannot be separated, or the template does not show a message.
        """
        pieces = self._split()
        stand_ins = [one for one in self._chat if one.is_stand_in]
        return list(self._insert_turns(pieces, stand_ins)) if stand_ins else pieces

    def _split(self) -> list[TextPiece]:
        everything = range(len(self._chat))
        if (pieces := self._read(everything, self._plain)) is not None:
            self._check_shown(everything)
            return pieces
        same = [i for i in everything if self._read([i], self._plain) is not None]
        rewritten = [
            one.message(self._with_hidden(one), self._sentinel, self._sign) for one in self._chat
        ]
        for whole in (same, ()):
            if (pieces := self._read(whole, rewritten)) is not None:
                self._check_shown(whole)
                return pieces
        raise UserError(
            "the chat template changes what messages say so that their text can't be told from "
            f"its own (roles {[one.role for one in self._chat]})",
            "use another template, or leave out of the messages what looks like a control token",
        )

    def _read(
        self, whole: Collection[int], others: Sequence[Mapping[str, str]]
    ) -> list[TextPiece] | None:
        """Return the pieces with sentinels for the ``whole`` messages and ``others`` as they are.

        Return ``None`` if the contents, put back, do not give the text of the plain chat.
        """
        messages = [self._whole[i] if i in whole else other for i, other in enumerate(others)]
        text = self._template.text(messages, self._generation, self._tools)
        first, *parts = _SENTINEL.split(text)
        if not self._text.startswith(first):
            return None
        pieces: list[TextPiece] = [first]
        at = len(first)
        self._seen = set()
        for kind, number, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            slot = Slot(chr(int(number)))
            if kind == "turn":
                slot = self._slots[int(number)]
                self._seen.add(int(number))
            for form in _forms(slot.text):
                if self._text.startswith(form + after, at):
                    break
            else:
                return None
            pieces += [slot if form == slot.text else replace(slot, text=form), after]
            at += len(form + after)
        return pieces if at == len(self._text) else None

    def _check_shown(self, whole: Collection[int]) -> None:
        """Check that the text shows all messages; the ``whole`` ones have sentinels."""
        letters = ""
        for i, (one, numbers) in enumerate(zip(self._chat, self._numbers, strict=True)):
            if one.is_stand_in:
                continue
            if i in whole:
                slots = zip(numbers, one.slots, strict=True)
                is_lost = any(n not in self._seen and slot.text.strip() for n, slot in slots)
            else:  # a message that the template rewrites
                letters = letters or _letters(self._text)
                is_read = _SWITCH.search(self._template.source)
                text = _SWITCH.sub("", one.text) if is_read else one.text
                forms = map(_letters, _forms(text))
                is_lost = one.role != "assistant" and all(form not in letters for form in forms)
            if is_lost:
                raise UserError(
                    f"the chat template of {self._template.name} does not show the text of a "
                    f"{one.role} message: {one.text.strip()[:80]!r}",
                    "use another template",
                )

    def _insert_turns(
        self, pieces: list[TextPiece], stand_ins: Sequence[TemplateMessage]
    ) -> Iterator[TextPiece]:
        """Replace the template's text of stand-ins by their slots."""
        counts = {one.call_ids for one in stand_ins}
        around = {ids: around_calls(self._template, ids, self._tools) for ids in counts}
        turns = iter(stand_ins)
        now: TemplateMessage | None = None
        firsts: list[Slot] = []
        text, is_closed = "", False
        for piece in pieces:
            if isinstance(piece, str):
                text = text + piece if now is None or is_closed else ""
            elif piece.edge == "last" and now is not None:
                text, is_closed = "", True
            elif piece.edge == "first" and not any(piece is one for one in firsts):
                if now is not None:
                    text = _after_calls(text, now, around[now.call_ids][1])
                now, is_closed = next(turns), False
                firsts.append(piece)
                yield _without(text, around[now.call_ids][0], str.removesuffix)
                yield from now.slots
                text = ""
            elif now is None or is_closed:
                yield text if now is None else _after_calls(text, now, around[now.call_ids][1])
                yield replace(piece, edge="") if piece.edge == "first" else piece
                now, text, is_closed = None, "", False
        yield text if now is None else _after_calls(text, now, around[now.call_ids][1])

    def _with_hidden(self, message: TemplateMessage) -> str:
        split = self._hidden(message)
        return "".join(self._sentinel(Slot(one)) if is_hidden else one for one, is_hidden in split)

    def _sign(self, text: str) -> str:
        """Replace the characters of a tool's or call's text that may begin a control token by sentinels."""
        split = self._hidden(TemplateMessage("tool", (Slot(text),)))
        return "".join(f"sign{NONCE}n{ord(one)}z" if is_hidden else one for one, is_hidden in split)

    def _sentinel(self, slot: Slot) -> str:
        self._slots.append(slot)
        return f"turn{NONCE}n{len(self._slots) - 1}z"


def _letters(text: str) -> str:
    return "".join(one for one in text.casefold() if one.isalnum())


def _forms(text: str) -> Iterator[str]:
    """Yield a content unchanged, stripped, and as JSON."""
    yield text
    for characters in (None, "\n"):
        yield from (text.strip(characters), text.rstrip(characters), text.lstrip(characters))
    yield from (json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (False, True))


def around_calls(
    template: ChatTemplate, call_ids: Sequence[str], tools: Sequence[Mapping[str, Any]]
) -> tuple[str, str]:
    """Return the text before and after a stand-in's calls that messages without calls do not have."""
    stand_in = TemplateMessage("assistant", (), call_ids=tuple(call_ids), is_stand_in=True)
    user, plain = {"role": "user", "content": "a"}, {"role": "assistant", "content": WORD}
    calls = stand_in.message("", lambda slot: f"{WORD}{slot.edge}")
    results = [
        {"role": "tool", "content": "b", "tool_call_id": one["id"], "name": "c"}
        for one in calls["tool_calls"]
    ]
    end = template.text([user, plain], False, tools).partition(WORD)[2]
    try:  # a template may write its last message in another way
        without = template.text([user, plain, *results], False, tools)
        with_calls = template.text([user, calls, *results], False, tools)
    except UserError:
        without = template.text([user, plain], False, tools)
        with_calls = template.text([user, calls], False, tools)
    before, _, after = without.partition(WORD)
    begin, _, rest = with_calls.partition(f"{WORD}first")
    header = template.text([user], True, tools)
    same = header if begin.startswith(header) else commonprefix([before, begin])  # noqa: RUF071
    after_calls = rest.rpartition(f"{WORD}last")[2].removesuffix(after.removeprefix(end))
    answer = template.thoughts.answer if template.thoughts else ""
    return begin[len(same) :].removeprefix(answer), after_calls.removesuffix(end)


def _after_calls(text: str, message: TemplateMessage, after: str) -> str:
    """Remove the end of a stand-in's calls (usually ``after``) from the template's text.

    If the turn ends with the same markup, except for one end-of-turn token, its own end counts.
    """
    own = message.text
    same = max((n for n in range(len(text) + 1) if own.endswith(text[:n])), default=0)
    if not after or not text.startswith(after):
        return text[same:] if same else _without(text, after, str.removeprefix)
    rest = after[same:].strip()
    is_token = same and rest.startswith("<") and rest.endswith(">") and rest.count("<") == 1
    return text[same:] if is_token else text[len(after) :]


def _without(text: str, part: str, remove: Callable[[str, str], str]) -> str:
    """Remove the template's text of calls; ``UserError`` if it is missing."""
    if part and remove(text, part) == text:
        raise UserError(
            "the chat template writes calls in another way here than elsewhere",
            "use tags for calls (tools.calls=tags)",
        )
    return remove(text, part)


def probe(template: ChatTemplate) -> Iterator[list[TextPiece]]:
    """Yield the pieces of small chats in all roles that the template takes."""
    for roles in (
        ("user",),
        ("user", "assistant"),
        ("user", "assistant", "user", "assistant"),
        ("system", "user", "assistant", "user"),
        ("user", "assistant", "tool", "assistant"),
    ):
        for generation in (False, True):
            chat = [TemplateMessage(role, (Slot(WORD),)) for role in roles]
            try:
                yield Layout(template, chat, generation, lambda message: iter(())).pieces()
            except UserError:
                continue
