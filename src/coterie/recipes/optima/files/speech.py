"""Who says what in a conversation of the released code: names in front of utterances, and markers.

There the agents speak in turn, and each utterance should begin with its speaker's name (``Alice: ...``),
which nothing enforces. Here speakers are known from the record, and the name is not part of the text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.errors import UserError
from coterie.recipes.optima.files.records import AGENTS, ERROR, LARGE

_NAMED = re.compile(r"\s*(Alice|Bob):")
_ERRORS = frozenset({ERROR, *(f"{agent}:{ERROR}" for agent in AGENTS)})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Utterances by speaker, and the marker that ended them early."""

    said: tuple[tuple[str, str], ...]
    """(speaker, text without the speaker's name)."""
    cut: Literal["large", "error"] | None = None


def beginner(conversations: Iterable[Sequence[str]]) -> int:
    """Which agent speaks first: the one that most of the names in front agree with, else Alice."""
    votes = [0, 0]
    for utterances in conversations:
        for place, utterance in enumerate(utterances):
            if found := _NAMED.match(utterance):
                votes[(AGENTS.index(found[1]) - place) % 2] += 1
    return int(votes[1] > votes[0])


def parse(utterances: Sequence[str], first: int) -> Conversation:
    """A conversation that agent number ``first`` begins, up to its marker if it has one.

    A wrong name in front (an agent that speaks for its partner) is a part of what was said, and so are
    two names: the released code counts both as a leak, and so does ``rewards.conduct``.
    """
    said: list[tuple[str, str]] = []
    for place, utterance in enumerate(utterances):
        if utterance.strip() == LARGE:
            return Conversation(tuple(said), "large")
        if utterance.strip() in _ERRORS:
            return Conversation(tuple(said), "error")
        speaker = AGENTS[(first + place) % 2]
        said.append((speaker, unnamed(utterance, speaker)))
    return Conversation(tuple(said))


def named(speaker: str, text: str) -> str:
    """An utterance with its speaker's name in front, which is put there if it lacks."""
    found = _NAMED.match(text)
    return text if found and found[1] == speaker else f"{speaker}: {text}"


def unnamed(utterance: str, speaker: str) -> str:
    """An utterance without its speaker's name and one blank after it, if the name is there once.

    The inverse of :func:`named` for texts that do not begin with the speaker's name.
    """
    found = _NAMED.match(utterance)
    if found is None or found[1] != speaker:
        return utterance
    again = _NAMED.match(utterance, found.end())
    return (
        utterance if again and again[1] == speaker else utterance[found.end() :].removeprefix(" ")
    )


def check_agents(agents: Sequence[str]) -> None:
    """Refuse (``UserError``) a run whose agents are not the two of the released code."""
    if tuple(agents) != AGENTS:
        raise UserError(
            f"the released code's files are of {' and '.join(AGENTS)}; this run is of "
            f"{', '.join(agents)}",
            "use a run of two agents; any run goes into `coterie export RUN FILE`",
        )
