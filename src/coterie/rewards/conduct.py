"""What a dialogue is penalised for besides being wrong: speaking for another, and saying it again.

Optima's code: an utterance that holds both speakers' names as prefixes, or one of them twice, has spoken
for the other. There each utterance begins with its own name; here none needs to. A dialogue in which an
utterance repeats an earlier one gets no likelihood term.
"""

from collections.abc import Sequence

from coterie.trajectories.turn import Turn


def leaks(path: Sequence[Turn], agents: Sequence[str]) -> int:
    """How many utterances speak for somebody else.

    Such an utterance has another agent's name as a prefix (``Bob:``), or its own one more than once.
    """
    return sum(_leaks(turn, agents) for turn in path)


def _leaks(turn: Turn, agents: Sequence[str]) -> bool:
    own = turn.speaker.name
    others = any(f"{agent}:" in turn.text for agent in agents if agent != own)
    return others or turn.text.count(f"{own}:") > 1


def repeats(path: Sequence[Turn]) -> int:
    """How many utterances repeat an earlier one; case, outer blanks and the own name do not count."""
    said = [
        turn.text.strip().removeprefix(f"{turn.speaker.name}:").strip().casefold() for turn in path
    ]
    return len(said) - len(set(said))
