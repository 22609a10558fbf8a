"""How long work tells what it is doing. The command line renders it; silence is the default."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a stage stands in its run, and what the stages before it say about how long it will take."""

    iteration: int
    number: int | None
    """Which iteration it is, from 1; ``None`` if it comes after the last one, for its policy."""
    iterations: int
    seconds: float | None = None
    """How long the last stage of its kind took; ``None`` if there was none."""
    later: float | None = None
    """The same of all stages of other kinds that come after it together; ``None`` if one is the first of its kind."""
    again: int = 0
    """How many stages of its own kind come after it."""


class Progress(Protocol):
    """Somebody who watches. All calls come from the main rank, in order."""

    def stage(self, place: StagePlace) -> None:
        """A stage of a run begins; its work follows, in one part or several."""
        ...

    def start(self, total: int, description: str) -> None:
        """``total`` units of work (dialogues, optimiser steps, bytes) are ahead."""
        ...

    def advance(self, n: int, **fields: float) -> None:
        """``n`` more are done. A training's ``fields`` are those of ``metrics.jsonl``."""
        ...

    def say(self, text: str) -> None:
        """Something that a person should read before the work goes on."""
        ...

    def close(self) -> None:
        """No more calls will come; also called when the training failed."""
        ...


class Silent:
    """Shows nothing."""

    def stage(self, place: StagePlace) -> None: ...

    def start(self, total: int, description: str) -> None: ...

    def advance(self, n: int, **fields: float) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...
