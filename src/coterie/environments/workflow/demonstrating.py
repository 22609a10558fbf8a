"""Environments in which somebody knows how a question is worked out."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from coterie.environments.workflow.trace import Trace
from coterie.trajectories.task import Task


@runtime_checkable
class Demonstrates(Protocol):
    """Has traces of its own tasks."""

    def trace(self, task: Task) -> Trace:
        """What an expert says of a training task. Raises ``NoTrace`` where it can't say that soundly."""
        ...

    def grounded(self, task: Task, found: Sequence[str]) -> bool:
        """Whether the facts that the answer rests on are among what the tools gave."""
        ...
