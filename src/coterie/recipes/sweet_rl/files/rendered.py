"""Chats that a template has rendered to one string, read back as messages.

Known are the forms of Llama-3 and of ChatML, and that of a run's own model, which a probe shows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from coterie.environments.coding import AGENT
from coterie.models.chat import ChatRenderer
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message

_BEGINNING = re.compile(r"\A(<\|begin_of_text\|>)+")
"""Of a text for Llama: a tokenizer that adds it to a rendered chat doubles it."""
_DATES = re.compile(r"\ACutting Knowledge Date: [^\n]*\nToday Date: [^\n]*\n\n")
"""What Llama-3.1's template writes before the system prompt, and will write again."""
_MARK = re.compile(r"<[^<>\s]+>|\[/?\w+\]")
"""What may be a control token; one is if a template writes it."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """What an agent was shown: a system prompt (or ""), then turns of person and agent, the person's last."""

    system: str
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """What a template writes between the texts of a chat, without the token that begins a text."""

    system: str
    """Before the system prompt."""
    bare: str
    """Before the first turn of the person, where there is no system prompt."""
    told: str
    """From the system prompt to the first turn."""
    asked: str
    """From a turn of the person to the agent's."""
    answered: str
    """From a turn of the agent to the person's."""
    end: str
    """The token that ends a turn."""

    def chat(self, prompt: str) -> RenderedChat | None:
        """A prompt that ends where the agent is to speak; ``None`` if it isn't of this form."""
        text = _BEGINNING.sub("", prompt)
        if not text.endswith(self.asked):
            return None
        text = text.removesuffix(self.asked)
        if text.startswith(self.system):
            system, told, turns = text.removeprefix(self.system).partition(self.told)
            if told and (said := self._said(turns)) and not self._marks(system):
                return RenderedChat(_DATES.sub("", system), said)
        if text.startswith(self.bare) and (said := self._said(text.removeprefix(self.bare))):
            return RenderedChat("", said)
        return None

    def split(self, text: str) -> tuple[str, str]:
        """A prompt and the agent's last turn, of a text that holds both."""
        before, asked, last = text.rpartition(self.asked)
        return before + asked, last

    def turn(self, text: str) -> str:
        """A turn without the token that ends it."""
        if text.endswith(self.end + "\n"):
            text = text.removesuffix("\n")
        return text.removesuffix(self.end)

    def in_front(self, prompt: str) -> bool:
        """Whether something stands before the chat begins."""
        first = self._marks(prompt)
        return first is not None and bool(_BEGINNING.sub("", prompt[: first.start()]).strip())

    def _said(self, text: str) -> tuple[str, ...] | None:
        """The turns; ``None`` if they don't alternate, or the person's isn't the last."""
        said = []
        for divider in cycle((self.asked, self.answered)):
            turn, found, text = text.partition(divider)
            if self._marks(turn):
                return None
            said.append(turn)
            if not found:
                return tuple(said) if len(said) % 2 else None
        raise AssertionError("a cycle has no end")

    def _marks(self, text: str) -> re.Match[str] | None:
        """The first control token of this form in a text."""
        own = set(_MARK.findall(self.system + self.bare + self.asked + self.answered))
        return next((found for found in _MARK.finditer(text) if found[0] in own), None)


def _of_headers(before: str, after: str, end: str, divider: str) -> Form:
    """The form of a template that puts the role's name into a header."""
    system, user, assistant = (f"{before}{role}{after}" for role in ("system", "user", "assistant"))
    end_of = end + divider
    return Form(system, user, end_of + user, end_of + assistant, end_of + user, end)


LLAMA = _of_headers("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "")
CHATML = _of_headers("<|im_start|>", "\n", "<|im_end|>", "\n")


def form_of(renderer: ChatRenderer) -> Form | None:
    """The form of a model's own template.

    ``None`` if it doesn't write the texts in their order, or no control token after the system prompt.
    """
    system, *turns = (f"probe{n}z" for n in range(4))

    def pieces(texts: Sequence[str], roles: Sequence[str]) -> list[str] | None:
        messages = [Message.of(role, text) for role, text in zip(roles, texts, strict=True)]  # type: ignore[arg-type]
        shown = renderer.decode(renderer.render(messages, Tree("probe", "probe", 0), AGENT))
        found = re.fullmatch("(.*)".join(("", *texts, "")), _BEGINNING.sub("", shown), re.DOTALL)
        return None if found is None else list(found.groups())

    roles = ("user", "assistant", "user")
    with_system = pieces((system, *turns), ("system", *roles))
    without = pieces(turns, roles)
    if with_system is None or without is None:
        return None
    before, told, asked, answered, last = with_system
    end = renderer.decode(renderer.written(""))
    plain = asked == last and _MARK.search(told)
    return Form(before, without[0], told, asked, answered, end) if plain else None
