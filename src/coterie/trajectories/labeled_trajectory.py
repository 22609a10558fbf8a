"""A trajectory with what came of it: what a value function is trained on."""

from dataclasses import dataclass

from coterie.trajectories.row import Row, rows
from coterie.trajectories.view import View


@dataclass(frozen=True, slots=True)
class LabeledTrajectory:
    """One agent's rows of a trajectory, and whether it succeeded."""

    rows: tuple[Row, ...]
    success: bool
    weight: float = 1.0
    group: str = ""
    """Trajectories of one group (a tree's) are trained in one step, so that what they share runs once."""

    @property
    def name(self) -> str:
        return (self.rows[0].origin if self.rows else "") or "?"


def labeled_trajectory(
    view: View, success: bool, *, weight: float = 1.0, group: str = ""
) -> LabeledTrajectory:
    """All rows of a view that have turns of the agent's own."""
    return LabeledTrajectory(
        tuple(row for row in rows(view) if row.targets), success, weight, group
    )
