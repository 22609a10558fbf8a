"""Progress of long work. The command line renders it; the default is silent."""

from collections import deque
from dataclasses import dataclass

EVIDENCE = 0.1
"""Minimum share of finished work before the end is estimated."""
EVIDENCE_SECONDS = 3.0
"""Minimum seconds before the end is estimated."""
RECENT = 0.5
"""Share of the finished work, the most recent part, whose rate counts. Work that starts together ends late."""


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


class Progress:
    """Receiver of progress that does nothing. The main rank makes all calls, in order."""

    def stage(self, stage_place: StagePlace) -> None:
        """Begin a stage of a run, with one or more parts of work."""

    def start(self, total: int, description: str) -> None:
        """Begin ``total`` units of work (dialogues, optimizer steps, bytes)."""

    def advance(self, n: int, **fields: float) -> None:
        """Report ``n`` finished units. Training passes the fields of ``metrics.jsonl``."""

    def say(self, text: str) -> None:
        """Print a message for the user."""

    def close(self) -> None:
        """End the progress; also called after a failure."""


class Silent(Progress):
    """Progress without output."""


class Pace:
    """Rate of work, and an estimate of the remaining time."""

    def __init__(self, total: int, began: float) -> None:
        self.total, self.began, self.done = total, began, 0
        self._points: deque[tuple[int, float]] = deque()
        """Recent pairs of finished units and time."""

    def add(self, n: int, now: float) -> None:
        self.done += n
        self._points.append((self.done, now))
        while len(self._points) > 2 and self._points[1][0] <= self.done * (1 - RECENT):
            self._points.popleft()

    def left(self, now: float, evidence: float = EVIDENCE) -> float | None:
        """Return the remaining seconds at the recent rate; ``None`` before enough work is done."""
        if self.done >= self.total:
            return 0.0
        if self.done < evidence * self.total or now - self.began < EVIDENCE_SECONDS:
            return None
        units, since = self._points[0]
        if units == self.done:
            return None
        return (self.total - self.done) * (now - since) / (self.done - units)


def duration(seconds: float) -> str:
    """Format seconds as ``40 s``, ``12 min`` or ``3 h 20 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
