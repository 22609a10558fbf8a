"""A preference pair: two ways to go on, of which one was better.

A side is all segments of one agent's view of a path (usually one), so a pair may be of whole
multi-turn trajectories or of single turns; only the agent's own sampled tokens are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.trajectories.row import Row, rows
from coterie.trajectories.view import View


@dataclass(frozen=True, slots=True)
class Pair:
    """Rows of the better and of the worse side."""

    chosen: tuple[Row, ...]
    rejected: tuple[Row, ...]
    reference: tuple[float, float] | None = None
    """Log-probs (nats) of the targets of each side under the reference model, reduced to one number as
    the objective reduces the policy's (a sum, for plain DPO)."""
    weight: float = 1.0
    group: str = ""
    """Pairs of one group (a tree's) are trained in one step, so that what they share runs once."""

    @property
    def name(self) -> str:
        return " over ".join(
            side[0].origin or "?" if side else "nothing" for side in (self.chosen, self.rejected)
        )

    @property
    def equal_sides(self) -> bool:
        """Whether both sides are the same tokens and targets, so that nothing can be learned."""
        return _trained(self.chosen) == _trained(self.rejected)


def trajectory_pair(chosen: View, rejected: View, *, weight: float = 1.0, group: str = "") -> Pair:
    """Two whole trajectories of one agent; its own tokens of every turn are compared."""
    _check_agents(chosen, rejected)
    return Pair(_side(chosen), _side(rejected), None, weight, group)


def turn_pair(chosen: View, rejected: View, *, weight: float = 1.0, group: str = "") -> Pair:
    """Two ways to say one turn: of each view, only the last sampled turn is compared."""
    _check_agents(chosen, rejected)
    sides = [(replace(_side(v)[-1], targets=_side(v)[-1].targets[-1:], logprobs=None),)
             for v in (chosen, rejected)]  # fmt: skip
    return Pair(sides[0], sides[1], None, weight, group)


def _side(view: View) -> tuple[Row, ...]:
    found = tuple(row for row in rows(view) if row.targets)
    if not found:
        raise ValueError(f"{view.agent} said nothing on the path to {view.leaf}: no side of a pair")
    return found


def _check_agents(chosen: View, rejected: View) -> None:
    if chosen.agent != rejected.agent:
        raise ValueError(f"a pair is of one agent, not of {chosen.agent} and {rejected.agent}")


def _trained(side: Sequence[Row]) -> list[tuple[object, ...]]:
    return [(row.ids, [(t.start, t.stop) for t in row.targets]) for row in side]
