"""Preference pairs of trajectories or turns.

A side has all segments of one agent's view of a path (usually one), so pairs compare whole multi-turn trajectories or
single turns. Only the agent's own tokens are targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.trajectories.row import Row, rows
from coterie.trajectories.view import View


@dataclass(frozen=True, slots=True)
class Pair:
    """Rows of the chosen and the rejected side."""

    chosen: tuple[Row, ...]
    rejected: tuple[Row, ...]
    reference: tuple[float, float] | None = None
    """Log-prob (nats) of each side's targets under the reference model, reduced like the policy's (a sum, for DPO)."""
    weight: float = 1.0
    group: str = ""
    """Pairs of one group (a tree's) are trained in one step, so that shared prefixes are computed once."""

    @property
    def name(self) -> str:
        return " over ".join(
            side[0].origin or "?" if side else "nothing" for side in (self.chosen, self.rejected)
        )

    @property
    def equal_sides(self) -> bool:
        """True if both sides have equal tokens and targets, so the gradient is zero."""
        return _trained(self.chosen) == _trained(self.rejected)


def trajectory_pair(chosen: View, rejected: View, *, weight: float = 1.0, group: str = "") -> Pair:
    """Pair two trajectories of one agent; the targets are its tokens of all turns."""
    _check_agents(chosen, rejected)
    return Pair(_side(chosen), _side(rejected), None, weight, group)


def turn_pair(chosen: View, rejected: View, *, weight: float = 1.0, group: str = "") -> Pair:
    """Pair two alternatives of one turn; the targets are the last turn of each view."""
    _check_agents(chosen, rejected)
    sides = [(replace(_side(v)[-1], targets=_side(v)[-1].targets[-1:], logprobs=None),)
             for v in (chosen, rejected)]  # fmt: skip
    return Pair(sides[0], sides[1], None, weight, group)


def _side(view: View) -> tuple[Row, ...]:
    side = tuple(row for row in rows(view) if row.targets)
    if not side:
        raise ValueError(
            f"{view.agent} has no turn on the path to {view.leaf}, so it can't be a side of a pair"
        )
    return side


def _check_agents(chosen: View, rejected: View) -> None:
    if chosen.agent != rejected.agent:
        raise ValueError(f"a pair needs one agent, got {chosen.agent} and {rejected.agent}")


def _trained(side: Sequence[Row]) -> list[tuple[object, ...]]:
    return [(row.ids, [(t.start, t.stop) for t in row.targets]) for row in side]
