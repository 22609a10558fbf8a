"""How long work tells what it is doing. The command line renders it; silence is the default."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

EVIDENCE = 0.1
"""The share of the work that must be done before its end can be told."""
EVIDENCE_SECONDS = 3.0
"""The least time that must have passed before."""
RECENT = 0.5
"""The share of the work done, the last of it, whose rate counts: much work starts at once and ends late."""


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


class Pace:
    """How fast work is done, and when it will be over."""

    def __init__(self, total: int, began: float) -> None:
        self.total, self.began, self.done = total, began, 0
        self._points: deque[tuple[int, float]] = deque()
        """(units done, when), of the recent ones."""

    def add(self, n: int, now: float) -> None:
        self.done += n
        self._points.append((self.done, now))
        while len(self._points) > 2 and self._points[1][0] <= self.done * (1 - RECENT):
            self._points.popleft()

    def left(self, now: float, evidence: float = EVIDENCE) -> float | None:
        """Return the seconds that are left, by the recent rate; ``None`` before enough is done."""
        if self.done >= self.total:
            return 0.0
        if self.done < evidence * self.total or now - self.began < EVIDENCE_SECONDS:
            return None
        units, since = self._points[0]
        if units == self.done:
            return None
        return (self.total - self.done) * (now - since) / (self.done - units)


def duration(seconds: float) -> str:
    """Such as ``40 s``, ``12 min`` or ``3 h 20 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
