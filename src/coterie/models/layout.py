"""A chat's text, taken apart into what the template wrote and what it was given.

A template only knows text. So each content is handed to it as a *sentinel*, a word that nobody can
guess, and the text is split there. That the template treats contents as they are, or only strips
their ends, is seen by putting them back: the text must be that of the plain chat.

A content that the template rewrites (drops thoughts from, quotes, cuts in lines) is handed over as
it is, but for the characters with which a control token might begin: these are sentinels. So are those
of tools and of calls, on whose texts templates act.

Some templates take results only after a message with calls. An own turn stands there as a *stand-in*: calls
whose first name and last argument are sentinels. What the template writes of them gives way to the turn.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any, Literal

from coterie.errors import UserError
from coterie.models.template import NONCE, WORD, ChatTemplate
from coterie.models.tool_calls import called, offered
from coterie.trajectories.calls import Tool, ToolCall
from coterie.trajectories.turn import Turn

_SENTINEL = re.compile(rf"(turn|sign){NONCE}n(\d+)z")

_SWITCH = re.compile(r"/(?:no_)?think\b")
"""Words that some templates act on and remove from messages (SmolLM3, Nemotron Nano 2)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Content in its place: text, or a turn whose ids are put there."""

    text: str
    turn: Turn | None = None
    role: str = ""
    edge: Literal["", "first", "last", "thought"] = ""
    begun: str = ""
    """Of a turn: text given to the model before what it sampled."""
    markup: str | None = None
    """Of a turn whose text begins with markup or a thought: the markup around the thought, without white space."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as it is handed to the template."""

    role: str
    slots: tuple[Slot, ...]
    call_id: str = ""
    """Of a tool's message: the call that it answers."""
    name: Slot | None = None
    """Of a tool's message: the tool."""
    calls: tuple[ToolCall, ...] = ()
    """Of an assistant's message: calls that the template is to write."""
    call_ids: tuple[str, ...] = ()
    """The ids of its calls, in the template's form."""
    stands_in: bool = False
    """Whether the template's text of the calls gives way to the slots."""
    call_names: tuple[str, ...] = ()
    """Of a stand-in: the tools that it calls, which templates name in results."""
    thought: Slot | None = None
    """Of an assistant's message: its thought, which the template may show or drop."""
    thought_key: str = ""
    """The message's key for its thought; without one, ``before`` and ``after`` stand around it in the content."""
    before: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        return "".join(slot.text for slot in self.slots)

    def message(
        self, text: str, show: Callable[[Slot], str], sign: Callable[[str], str] = str
    ) -> Mapping[str, Any]:
        name = {"name": show(self.name)} if self.name else {}
        call = {"tool_call_id": self.call_id} if self.call_id else {}
        text = "" if self.stands_in else text
        thought = {}
        shown = show(self.thought) if self.thought else ""
        if not self.thought_key:
            text = self.before + shown + self.after + text
        elif shown:
            thought = {self.thought_key: shown}
        if self.call_ids:
            calls = self._stand_in(show) if self.stands_in else self._calls(sign)
            return {"role": self.role, "content": text, **thought, "tool_calls": calls}
        return {"role": self.role, "content": text, **thought, **call, **name}

    def _calls(self, sign: Callable[[str], str]) -> list[dict[str, Any]]:
        return [called(*pair, sign) for pair in zip(self.calls, self.call_ids, strict=True)]

    def _stand_in(self, show: Callable[[Slot], str]) -> list[dict[str, Any]]:
        """Calls whose text, from the first name to the last argument, is told by sentinels."""
        names = self.call_names or ("call",) * len(self.call_ids)
        value = show(Slot("call", edge="last"))
        shown = [show(Slot(names[0], edge="first")), *names[1:]]
        return [
            {"id": id_, "type": "function",
             "function": {"name": name, "arguments": {"value": value}}}
            for name, id_ in zip(shown, self.call_ids, strict=True)
        ]  # fmt: skip


TextPiece = str | Slot
"""Text that the template wrote, or content."""
Hidden = Callable[[Shown], Iterator[tuple[str, bool]]]
"""Splits a message's text at characters that must not become the template's: (text, such)."""


class Layout:
    """The pieces of one chat. Raises ``UserError`` for a chat that the template refuses."""

    def __init__(
        self,
        template: ChatTemplate,
        chat: Sequence[Shown],
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
        self._plain = [shown.message(shown.text, lambda slot: slot.text) for shown in chat]
        self._text = template.text(self._plain, generation, [offered(tool) for tool in tools])
        self._tools = [offered(tool, self._signed) for tool in tools]
        self._whole: list[Mapping[str, Any]] = []
        self._numbers: list[range] = []
        for shown in chat:
            first = len(self._slots)
            text = "".join(map(self._sentinel, shown.slots))
            self._numbers.append(range(first, len(self._slots)))
            self._whole.append(shown.message(text, self._sentinel, self._signed))

    def pieces(self) -> list[TextPiece]:
        """What the template wrote and the contents, in order.

        Raises ``UserError`` where they can't be told apart, and where the text of a message is not shown.
        """
        return list(self._spliced(self._found())) if self._stand_ins() else self._found()

    def _found(self) -> list[TextPiece]:
        everything = range(len(self._chat))
        if (found := self._read(everything, self._plain)) is not None:
            self._check_shown(everything)
            return found
        same = [i for i in everything if self._read([i], self._plain) is not None]
        rewritten = [
            shown.message(self._with_hidden(shown), self._sentinel, self._signed)
            for shown in self._chat
        ]
        for whole in (same, ()):
            if (found := self._read(whole, rewritten)) is not None:
                self._check_shown(whole)
                return found
        raise UserError(
            "the chat template changes what messages say so that their text can't be told from "
            f"its own (roles {[shown.role for shown in self._chat]})",
            "use another template, or leave out of the messages what looks like a control token",
        )

    def _read(
        self, whole: Collection[int], others: Sequence[Mapping[str, str]]
    ) -> list[TextPiece] | None:
        """The pieces where the ``whole`` messages are sentinels and the rest is as in ``others``.

        ``None`` if the text, contents put back, is another.
        """
        messages = [self._whole[i] if i in whole else other for i, other in enumerate(others)]
        written = self._template.text(messages, self._generation, self._tools)
        first, *parts = _SENTINEL.split(written)
        if not self._text.startswith(first):
            return None
        found: list[TextPiece] = [first]
        at = len(first)
        self._seen = {int(number) for kind, number in zip(parts[::3], parts[1::3], strict=True)
                      if kind == "turn"}  # fmt: skip
        for kind, number, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            slot = self._slots[int(number)] if kind == "turn" else Slot(chr(int(number)))
            for text in _forms(slot.text):
                if self._text.startswith(text + after, at):
                    break
            else:
                return None
            found += [slot if text == slot.text else replace(slot, text=text), after]
            at += len(text + after)
        return found if at == len(self._text) else None

    def _check_shown(self, whole: Collection[int]) -> None:
        """Refuse a text that lacks a message; ``whole`` messages are told by their sentinels."""
        letters = ""
        for i, (shown, numbers) in enumerate(zip(self._chat, self._numbers, strict=True)):
            if shown.stands_in:
                continue
            if i in whole:
                slots = zip(numbers, shown.slots, strict=True)
                lost = any(n not in self._seen and slot.text.strip() for n, slot in slots)
            else:  # a message that the template rewrites
                letters = letters or _letters(self._text)
                acted = _SWITCH.search(self._template.source)
                kept = _SWITCH.sub("", shown.text) if acted else shown.text
                forms = map(_letters, _forms(kept))
                lost = shown.role != "assistant" and all(one not in letters for one in forms)
            if lost:
                raise UserError(
                    f"the chat template of {self._template.name} does not show the text of a "
                    f"{shown.role} message: {shown.text.strip()[:80]!r}",
                    "use another template",
                )

    def _stand_ins(self) -> list[Shown]:
        return [shown for shown in self._chat if shown.stands_in]

    def _spliced(self, pieces: list[TextPiece]) -> Iterator[TextPiece]:
        """Pieces in which the slots of stand-ins replace the template's text of their calls."""
        counts = {shown.call_ids for shown in self._stand_ins()}
        around = {ids: around_calls(self._template, ids, self._tools) for ids in counts}
        turns = iter(self._stand_ins())
        now: Shown | None = None
        opened: list[Slot] = []
        text, closed = "", False
        for piece in pieces:
            if isinstance(piece, str):
                text = text + piece if now is None or closed else ""
            elif piece.edge == "last" and now is not None:
                text, closed = "", True
            elif piece.edge == "first" and not any(piece is one for one in opened):
                if now is not None:
                    text = _after_calls(text, now, around[now.call_ids][1])
                now, closed = next(turns), False
                opened.append(piece)
                yield _without(text, around[now.call_ids][0], str.removesuffix)
                yield from now.slots
                text = ""
            elif now is None or closed:
                yield text if now is None else _after_calls(text, now, around[now.call_ids][1])
                yield replace(piece, edge="") if piece.edge == "first" else piece
                now, text, closed = None, "", False
        yield text if now is None else _after_calls(text, now, around[now.call_ids][1])

    def _with_hidden(self, shown: Shown) -> str:
        return "".join(
            self._sentinel(Slot(text)) if such else text for text, such in self._hidden(shown)
        )

    def _signed(self, text: str) -> str:
        """A text of a tool or a call, in which characters that might begin a control token are sentinels."""
        split = self._hidden(Shown("tool", (Slot(text),)))
        return "".join(f"sign{NONCE}n{ord(one)}z" if such else one for one, such in split)

    def _sentinel(self, slot: Slot) -> str:
        self._slots.append(slot)
        return f"turn{NONCE}n{len(self._slots) - 1}z"


def _letters(text: str) -> str:
    return "".join(one for one in text.casefold() if one.isalnum())


def _forms(text: str) -> Iterator[str]:
    """A content as it is, as templates strip it, and as they write it in JSON."""
    yield text
    for what in (None, "\n"):
        yield from (text.strip(what), text.rstrip(what), text.lstrip(what))
    yield from (json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (False, True))


def around_calls(
    template: ChatTemplate, call_ids: Sequence[str], tools: Sequence[Mapping[str, Any]]
) -> tuple[str, str]:
    """What a template writes before and after a stand-in with these calls, and not around a message without calls."""
    asked, said = Shown("user", (Slot("a"),)), Shown("assistant", (Slot(WORD),))
    stand_in = Shown("assistant", (), call_ids=tuple(call_ids), stands_in=True)
    user, plain = (one.message(one.text, lambda slot: slot.text) for one in (asked, said))
    calls = stand_in.message("", lambda slot: f"{WORD}{slot.edge}")
    results = [
        {"role": "tool", "content": "b", "tool_call_id": one, "name": "c"} for one in call_ids
    ]
    end = template.text([user, plain], False, tools).partition(WORD)[2]
    try:  # what comes last may be written in another way
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


def _after_calls(text: str, shown: Shown, after: str) -> str:
    """The template's text after the calls of a stand-in, of which ``after`` is usually the end.

    Where the message itself ends like the calls, but for one token that ends the turn, that is where they end.
    """
    said = shown.text
    same = max((n for n in range(len(text) + 1) if said.endswith(text[:n])), default=0)
    if not after or not text.startswith(after):
        return text[same:] if same else _without(text, after, str.removeprefix)
    rest = after[same:].strip()
    ends = same and rest.startswith("<") and rest.endswith(">") and rest.count("<") == 1
    return text[same:] if ends else text[len(after) :]


def _without(text: str, part: str, remove: Callable[[str, str], str]) -> str:
    """A text without what a template writes of calls; ``UserError`` if that is not there."""
    if part and remove(text, part) == text:
        raise UserError(
            "the chat template writes calls in another way here than elsewhere",
            "use tags for calls (tools.calls=tags)",
        )
    return remove(text, part)


def probe(template: ChatTemplate) -> Iterator[list[TextPiece]]:
    """The pieces of small chats, of as many roles as the template takes."""
    for roles in (
        ("user",),
        ("user", "assistant"),
        ("user", "assistant", "user", "assistant"),
        ("system", "user", "assistant", "user"),
        ("user", "assistant", "tool", "assistant"),
    ):
        for generation in (False, True):
            chat = [Shown(role, (Slot(WORD),)) for role in roles]
            try:
                yield Layout(template, chat, generation, lambda shown: iter(())).pieces()
            except UserError:
                continue
