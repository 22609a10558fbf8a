"""Counts of utterances that speak for another agent (leaks) or repeat an earlier utterance.

In Optima's code, an utterance leaks if it has both speakers' names as prefixes, or one of them twice. There, every
utterance begins with its speaker's name; here the name is optional, and the rule is the same. A dialogue with a repeat
gets no likelihood term.
"""

from collections.abc import Sequence

from coterie.record.turn import Turn


def count_leaks(path: Sequence[Turn], agents: Sequence[str]) -> int:
    """Count the utterances with an agent's name as a prefix (``Bob:``), except the speaker's own at the beginning."""
    return sum(_leaks(turn, agents) for turn in path)


def _leaks(turn: Turn, agents: Sequence[str]) -> bool:
    text = turn.text.lstrip().removeprefix(f"{turn.speaker.name}:")
    return any(f"{agent}:" in text for agent in agents)


def count_repeats(path: Sequence[Turn]) -> int:
    """Count the utterances that repeat an earlier one, ignoring case, outer spaces and the speaker's name."""
    texts = [
        turn.text.strip().removeprefix(f"{turn.speaker.name}:").strip().casefold() for turn in path
    ]
    return len(texts) - len(set(texts))
