"""Trees as report pages show them: turns with their values, and the siblings that they were compared with."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from coterie.reports.data import Ended, Sibling, TreeTurn
from coterie.trajectories.selection import Selection
from coterie.trajectories.tree import CONTEXT, LENGTH, TURNS, Outcome, Tree


class Valued(Protocol):
    """What the rollouts through a node came to."""

    @property
    def mean(self) -> float: ...

    @property
    def visits(self) -> int: ...


def shown_turns(
    tree: Tree, parent: str, values: Mapping[str, Valued], pairs: Sequence[Selection]
) -> tuple[TreeTurn, ...]:
    """The turns right after ``parent``, each with all that follows it."""
    children = tree.children(parent)
    number = {turn.id: place for place, turn in enumerate(children, 1)}
    turns = []
    for turn in children:
        value, outcome = values.get(turn.id), tree.outcomes.get(turn.id)
        over = [s.rejected for s in pairs if s.leaf == turn.id and s.rejected in number]
        under = [s.leaf for s in pairs if s.rejected == turn.id]
        turns.append(
            TreeTurn(
                number[turn.id],
                turn.speaker.name,
                turn.text.strip(),
                value.mean if value else None,
                value.visits if value else 0,
                _siblings(turn.id, [one for one in over if one is not None], number, values),
                _siblings(turn.id, under, number, values),
                _ended(outcome) if outcome else None,
                shown_turns(tree, turn.id, values, pairs),
            )
        )
    return tuple(turns)


def _ended(outcome: Outcome) -> Ended:
    limits = {
        TURNS.reason: "no turns left",
        LENGTH.reason: "cut off",
        CONTEXT.reason: "no room in the context",
    }
    reason = limits.get(outcome.ending.reason, outcome.ending.reason)
    return Ended(reason, outcome.answer, outcome.score)


def _siblings(
    turn: str, others: Sequence[str], number: Mapping[str, int], values: Mapping[str, Valued]
) -> tuple[Sibling, ...]:
    """The other sides of a turn's pairs, in the order in which they stand."""
    gaps = ((number[o], abs(values[turn].mean - values[o].mean)) for o in others)
    return tuple(Sibling(place, apart) for place, apart in sorted(gaps))
