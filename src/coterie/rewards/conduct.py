"""What a dialogue is penalised for besides being wrong: speaking for another, and saying it again.

Optima's code: an utterance that holds both speakers' names as prefixes, or one of them twice, has spoken
for the other. There each utterance begins with its own name, which is put there if it lacks; here it
may, and the rule is the same. A dialogue in which an utterance repeats an earlier one gets no
likelihood term.
"""

from collections.abc import Sequence

from coterie.trajectories.turn import Turn


def count_leaks(path: Sequence[Turn], agents: Sequence[str]) -> int:
    """How many utterances speak for somebody else.

    Such an utterance has any agent's name as a prefix (``Bob:``), its own one at the beginning left out.
    """
    return sum(_leaks(turn, agents) for turn in path)


def _leaks(turn: Turn, agents: Sequence[str]) -> bool:
    said = turn.text.lstrip().removeprefix(f"{turn.speaker.name}:")
    return any(f"{agent}:" in said for agent in agents)


def count_repeats(path: Sequence[Turn]) -> int:
    """How many utterances repeat an earlier one; case, outer blanks and the own name do not count."""
    said = [
        turn.text.strip().removeprefix(f"{turn.speaker.name}:").strip().casefold() for turn in path
    ]
    return len(said) - len(set(said))
