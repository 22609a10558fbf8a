"""Progress on the terminal: a bar with rate and time left; plain lines where there is no terminal."""

import time

from rich.console import Console
from rich.progress import (  # fmt: skip
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 5.0


class ConsoleProgress:
    """Shows each stage as one bar (or as a line now and then); see ``coterie.progress``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._total = self._done = 0
        self._description = ""
        self._began = self._last = 0.0

    def start(self, total: int, description: str) -> None:
        """Begin a bar of ``total`` units."""
        self.close()
        self._total, self._done, self._description = total, 0, description
        self._began = self._last = time.monotonic()
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description:<12}", markup=False),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(compact=True),
                console=self._console,
            )
            self._task = self._bar.add_task(description, total=total, rate="")
            self._bar.start()

    def advance(self, n: int, **fields: float) -> None:
        """``n`` more units are done."""
        self._done += n
        now = time.monotonic()
        text = self._text(now, fields)
        if self._bar is not None:
            self._bar.update(self._task, advance=n, rate=text)
        elif now - self._last >= SECONDS_BETWEEN_LINES or self._done == self._total:
            self._last = now
            left = (now - self._began) / max(self._done, 1) * (self._total - self._done)
            self._console.print(
                f"{self._description:<12} {self._done}/{self._total}  {text}  {left:.0f} s left",
            )

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _text(self, now: float, fields: dict[str, float]) -> str:
        seconds = max(now - self._began, 1e-6)
        shown = [f"{self._done / seconds:,.1f}/s"]
        if "sampled_tokens" in fields:
            shown.append(f"{fields['sampled_tokens'] / seconds:,.0f} tokens/s")
        if "loss" in fields:
            shown.append(f"loss {fields['loss']:.3f}")
        if fields.get("failed"):
            shown.append(f"{fields['failed']:.0f} failed")
        return "  ".join(shown)
