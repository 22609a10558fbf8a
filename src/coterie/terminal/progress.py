"""Progress bars with rate and time left, or plain lines without a terminal."""

import time
from collections import deque

from rich.console import Console
from rich.progress import (  # fmt: skip
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from coterie.progress import StagePlace

SECONDS_BETWEEN_LINES = 5.0
EVIDENCE = 0.1
"""Minimum share of the work before an estimate of the time left."""
EVIDENCE_SECONDS = 3.0
"""Minimum time before an estimate, in seconds."""
RECENT = 0.5
"""Share of the finished work, most recent first, for the rate: many units start at once and end late."""


class ConsoleProgress:
    """Progress of stages as bars, or as a line every few seconds; see ``coterie.progress``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._total = 0
        self._description = ""
        self._place: StagePlace | None = None
        self._stage_began = 0.0
        self._pace = Pace(0, 0.0)
        self._last = 0.0

    def stage(self, place: StagePlace) -> None:
        self._place, self._stage_began = place, time.monotonic()

    def start(self, total: int, description: str) -> None:
        """Begin a bar of ``total`` units."""
        self.close()
        self._total, self._description = total, self._title(description)
        self._last = time.monotonic()
        self._pace = Pace(total, self._last)
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description:<12}", markup=False),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}", markup=False),
                console=self._console,
            )
            self._task = self._bar.add_task(self._description, total=total, rate="", left="")
            self._bar.start()

    def advance(self, n: int, **fields: float) -> None:
        now = time.monotonic()
        self._pace.add(n, now)
        done, text, left = self._pace.done, self._text(now, fields), self._left(now)
        if self._bar is not None:
            self._bar.update(self._task, advance=n, rate=text, left=left)
        elif now - self._last >= SECONDS_BETWEEN_LINES or done == self._total:
            self._last = now
            line = f"{self._description:<12} {done}/{self._total}  {text}"
            self._console.print(f"{line}  {left}" if left else line)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _title(self, description: str) -> str:
        if (place := self._place) is None:
            return description
        name = description.removesuffix(f" {place.iteration}")
        if place.number is None:
            return f"last policy: {name}"
        return f"iteration {place.iteration} ({place.number} of {place.iterations}): {name}"

    def _left(self, now: float) -> str:
        """Format the estimated time left of this work and of the run."""
        left = self._pace.left(now)
        parts = [] if left is None else [f"{duration(left)} left"]
        whole = None if self._place is None else self._left_of_run(self._place, left, now)
        if whole is not None:
            parts.append(f"run: {duration(whole)} left")
        return "  ".join(parts)

    def _left_of_run(self, place: StagePlace, left: float | None, now: float) -> float | None:
        elapsed = now - self._stage_began
        if left is None and place.seconds is not None:
            left = max(place.seconds - elapsed, 0.0)
        if left is None or place.later is None:
            return None
        return left + place.again * (elapsed + left) + place.later

    def _text(self, now: float, fields: dict[str, float]) -> str:
        seconds = max(now - self._pace.began, 1e-6)
        parts = [f"{self._pace.done / seconds:,.1f}/s"]
        if "sampled_tokens" in fields:
            parts.append(f"{fields['sampled_tokens'] / seconds:,.0f} tokens/s")
        if "loss" in fields:
            parts.append(f"loss {fields['loss']:.3f}")
        if fields.get("failed"):
            parts.append(f"{fields['failed']:.0f} failed")
        return "  ".join(parts)


class Pace:
    """Rate of work and estimate of the time left."""

    def __init__(self, total: int, began: float) -> None:
        self.total, self.began, self.done = total, began, 0
        self._points: deque[tuple[int, float]] = deque()
        """Recent pairs of units done and time."""

    def add(self, n: int, now: float) -> None:
        self.done += n
        self._points.append((self.done, now))
        while len(self._points) > 2 and self._points[1][0] <= self.done * (1 - RECENT):
            self._points.popleft()

    def left(self, now: float) -> float | None:
        """Estimate the seconds left from the recent rate; ``None`` without enough evidence."""
        if self.done >= self.total:
            return 0.0
        if self.done < EVIDENCE * self.total or now - self.began < EVIDENCE_SECONDS:
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
