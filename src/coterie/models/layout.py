"""A chat's text, taken apart into what the template wrote and what it was given.

A template only knows text. So each content is handed to it as a *sentinel*, a word that nobody can
guess, and the text is split there. That the template treats contents as they are, or only strips
their ends, is seen by putting them back: the text must be that of the plain chat.

A content that the template rewrites (drops thoughts from, quotes, cuts in lines) is handed over as
it is, but for the characters with which a control token might begin: these are sentinels.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.errors import UserError
from coterie.models.template import ChatTemplate
from coterie.trajectories.turn import Turn

_NONCE = secrets.token_hex(8)
_SENTINEL = re.compile(rf"turn{_NONCE}n(\d+)z")


@dataclass(frozen=True, slots=True)
class Slot:
    """Content in its place: text, or a turn whose ids are put there."""

    text: str
    turn: Turn | None = None
    role: str = ""
    """Of the message that it is in."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as it is handed to the template."""

    role: str
    slots: tuple[Slot, ...]
    call_id: str = ""
    """Of a tool's message: the call that it answers."""
    name: Slot | None = None
    """Of a tool's message: the tool."""

    @property
    def text(self) -> str:
        """The whole content."""
        return "".join(slot.text for slot in self.slots)

    def message(self, text: str, show: Callable[[Slot], str]) -> Mapping[str, str]:
        """What the template is given, with this content."""
        name = {"name": show(self.name)} if self.name else {}
        call = {"tool_call_id": self.call_id} if self.call_id else {}
        return {"role": self.role, "content": text, **call, **name}


TextPiece = str | Slot
"""Text that the template wrote, or content."""
Hidden = Callable[[Shown], Iterator[tuple[str, bool]]]
"""Splits a message's text at characters that must not become the template's: (text, such)."""


class Layout:
    """The pieces of one chat. Raises ``UserError`` for a chat that the template refuses."""

    def __init__(
        self, template: ChatTemplate, chat: Sequence[Shown], generation: bool, hidden: Hidden
    ) -> None:
        self._template = template
        self._chat = chat
        self._generation = generation
        self._slots: list[Slot] = []
        self._plain = [shown.message(shown.text, lambda slot: slot.text) for shown in chat]
        self._text = self._written(self._plain)
        self._whole = [
            shown.message("".join(map(self._sentinel, shown.slots)), self._sentinel)
            for shown in chat
        ]
        self._hidden = hidden

    def pieces(self) -> list[TextPiece]:
        """What the template wrote and the contents, in order.

        Raises ``UserError`` where they can't be told apart.
        """
        everything = range(len(self._chat))
        if (found := self._read(everything, self._plain)) is not None:
            return found
        same = [i for i in everything if self._read([i], self._plain) is not None]
        rewritten = [
            shown.message(self._with_hidden(shown), self._sentinel) for shown in self._chat
        ]
        for whole in (same, ()):
            if (found := self._read(whole, rewritten)) is not None:
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
        first, *parts = _SENTINEL.split(self._written(messages))
        if not self._text.startswith(first):
            return None
        found: list[TextPiece] = [first]
        at = len(first)
        for number, after in zip(parts[::2], parts[1::2], strict=True):
            slot = self._slots[int(number)]
            for text in _stripped(slot.text):
                if self._text.startswith(text + after, at):
                    break
            else:
                return None
            found += [slot if text == slot.text else replace(slot, text=text), after]
            at += len(text + after)
        return found if at == len(self._text) else None

    def _written(self, messages: Sequence[Mapping[str, str]]) -> str:
        return self._template.text(messages, self._generation)

    def _with_hidden(self, shown: Shown) -> str:
        return "".join(
            self._sentinel(Slot(text)) if such else text for text, such in self._hidden(shown)
        )

    def _sentinel(self, slot: Slot) -> str:
        self._slots.append(slot)
        return f"turn{_NONCE}n{len(self._slots) - 1}z"


def _stripped(text: str) -> Iterator[str]:
    """A content as it is, and as templates strip it."""
    yield text
    for what in (None, "\n"):
        yield from (text.strip(what), text.rstrip(what), text.lstrip(what))


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
            chat = [Shown(role, (Slot(f"word{_NONCE}"),)) for role in roles]
            try:
                yield Layout(template, chat, generation, lambda shown: iter(())).pieces()
            except UserError:
                continue
