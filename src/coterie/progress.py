"""Protocol for progress of long work. The command line renders it; the default is silent."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Position of a stage in its run, with durations of earlier stages."""

    iteration: int
    number: int | None
    """Number of the iteration, from 1; ``None`` for stages of the last policy, after the last iteration."""
    iterations: int
    seconds: float | None = None
    """Duration of the last stage of the same kind; ``None`` for the first."""
    later: float | None = None
    """Expected duration of all later stages of other kinds; ``None`` if one of them is the first of its kind."""
    again: int = 0
    """Number of later stages of the same kind."""


class Progress(Protocol):
    """Receiver of progress. The main rank makes all calls, in order."""

    def stage(self, place: StagePlace) -> None:
        """Begin a stage of a run, with one or more parts of work."""
        ...

    def start(self, total: int, description: str) -> None:
        """Begin ``total`` units of work (dialogues, optimizer steps, bytes)."""
        ...

    def advance(self, n: int, **fields: float) -> None:
        """Report ``n`` finished units. Training passes the fields of ``metrics.jsonl``."""
        ...

    def say(self, text: str) -> None:
        """Print a message for the user."""
        ...

    def close(self) -> None:
        """End the progress; also called after a failure."""
        ...


class Silent:
    """Progress without output."""

    def stage(self, place: StagePlace) -> None: ...

    def start(self, total: int, description: str) -> None: ...

    def advance(self, n: int, **fields: float) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...
