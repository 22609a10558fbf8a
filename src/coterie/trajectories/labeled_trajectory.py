"""Trajectories labeled with success, to train value functions."""

from dataclasses import dataclass

from coterie.trajectories.row import Row, rows
from coterie.trajectories.view import View


@dataclass(frozen=True, slots=True)
class LabeledTrajectory:
    """One agent's rows of a trajectory, with its success."""

    rows: tuple[Row, ...]
    success: bool
    weight: float = 1.0
    group: str = ""
    """Trajectories of one group (a tree's) are trained in one step, so that shared prefixes are computed once."""

    @property
    def name(self) -> str:
        return (self.rows[0].origin if self.rows else "") or "?"


def labeled_trajectory(
    view: View, success: bool, *, weight: float = 1.0, group: str = ""
) -> LabeledTrajectory:
    """Label the rows of a view that have targets."""
    return LabeledTrajectory(
        tuple(row for row in rows(view) if row.targets), success, weight, group
    )
