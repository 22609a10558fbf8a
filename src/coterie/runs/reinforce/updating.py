"""A step's updates: its groups in random order, cut into minibatches, each one optimiser step of every role."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.errors import UserError
from coterie.runs.reinforce.learner import Learner
from coterie.runs.reinforce.paths import Path
from coterie.runs.reinforce.settings import StepSettings
from coterie.trajectories.row import Row

SUMMED = frozenset({"seconds_left", "step", "rows_dropped"})
"""Of a training, not of a step: no mean is taken of them."""


@dataclass(slots=True)
class Updated:
    """What the optimiser steps of one step were like: of each role the mean of each number."""

    sums: dict[str, list[float]] = field(default_factory=dict)
    updates: int = 0
    too_long: int = 0
    """Rows that were left out of them."""
    targets: int = 0
    """Target tokens that policies were trained on."""

    def add(self, role: str, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name not in SUMMED:
                self.sums.setdefault(f"{role}/{name}", []).append(value)

    def means(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.sums.items()}


def minibatches(
    tasks: Sequence[str], settings: StepSettings, seed: str
) -> Iterator[frozenset[str]]:
    """The tasks of each optimiser step of a step. An epoch sees each once; sizes differ by one at most.

    There are fewer steps than ``minibatches`` where fewer tasks are left.
    """
    for epoch in range(settings.epochs):
        order = sorted(set(tasks))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        parts = min(settings.minibatches, len(order))
        for part in range(parts):
            yield frozenset(order[part::parts])


def update(
    paths: Sequence[Path], learners: Sequence[Learner], settings: StepSettings, seed: str
) -> Updated:
    """Train each role on the paths of its agents. Rows that are too long are left out and counted.

    Raises :class:`UserError` if all are.
    """
    found = Updated()
    for tasks in minibatches([path.task for path in paths], settings, seed):
        for learner in learners:
            every = _rows(paths, learner.what.agents, tasks)
            rows = [row for row in every if len(row.ids) <= learner.trainer.longest]
            found.too_long += len(every) - len(rows)
            learner.trainer.leave_out(len(every) - len(rows), 0)
            if rows:
                if learner.what.like is None:  # not a critic
                    found.targets += sum(row.target_count for row in rows)
                found.add(learner.role, learner.trainer.step(rows))
                found.updates += 1
    if found.too_long and not found.updates:
        raise UserError(
            f"all {found.too_long} rows of a step are longer than a training takes "
            f"({max(one.trainer.longest for one in learners)} tokens): nothing can be learned from them",
            "raise update.max_length (up to the model's context), or let dialogues be shorter "
            "(rollout.max_tokens, fewer turns)",
        )
    return found


def _rows(paths: Sequence[Path], agents: Sequence[str], tasks: frozenset[str]) -> list[Row]:
    mine = (path for path in paths if path.task in tasks and path.agent in agents)
    return [row for path in mine for row in path.rows]
