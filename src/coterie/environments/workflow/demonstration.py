"""Interface of environments with expert traces."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from coterie.environments.workflow.trace import Trace
from coterie.trajectories.task import Task


@runtime_checkable
class Demonstrates(Protocol):
    """An environment with expert traces of its tasks."""

    def trace(self, task: Task) -> Trace:
        """Return the expert trace of a training task.

        Raises:
            NoTrace: no sound trace exists.
        """
        ...

    def grounded(self, task: Task, results: Sequence[str]) -> bool:
        """Return True if tool results contain the facts that the answer depends on."""
        ...
