"""What a dialogue is penalised for besides being wrong: speaking for another, and saying it again.

Optima's code (specification of its reward): an utterance that holds both speakers' names as prefixes,
or one of them twice, has spoken for the other; a dialogue in which an utterance repeats an earlier
one gets no likelihood term.
"""

from collections.abc import Sequence

from coterie.trajectories.turn import Turn


def leaks(path: Sequence[Turn], agents: Sequence[str]) -> int:
    """How many utterances speak for somebody else: they name speakers (``Bob:``) more than once."""
    return sum(sum(turn.text.count(f"{agent}:") for agent in agents) > 1 for turn in path)


def repeats(path: Sequence[Turn]) -> int:
    """How many utterances repeat an earlier one; case, outer blanks and the own name do not count."""
    said = [
        turn.text.strip().removeprefix(f"{turn.speaker.name}:").strip().casefold() for turn in path
    ]
    return len(said) - len(set(said))
