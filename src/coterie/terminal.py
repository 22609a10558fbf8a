"""The terminal: where commands write, progress, and ``key=value`` overrides.

Markup is off, so ``coterie[wandb]``, names and text of models are printed unchanged.
"""

import time
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (  # fmt: skip
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment

from coterie.errors import CONTROL_CHARACTERS, UserError
from coterie.progress import Pace, StagePlace, duration
from coterie.progress import Progress as Receiver


class TextConsole(Console):
    """Console that shows control characters of a text as U+FFFD; Rich prints most of them as they are."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text.translate(CONTROL_CHARACTERS)
            yield segment if segment.control else Segment(text, segment.style)


def results(width: int = 0) -> Console:
    """Return standard output for tables, at least ``width`` columns wide so that no number is cut."""
    console = TextConsole(markup=False, emoji=False)
    console.width = max(console.width, width)
    return console


def notes() -> Console:
    """Return standard error for messages, without line wrapping so that paths stay intact."""
    return TextConsole(stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False)


def once(overrides: list[str] | None) -> list[str] | None:
    """Raise ``UserError`` for a duplicate key. ``user_simulator=`` and ``user_simulator.model=`` are the same key.

    ``policy=A policy=B`` evaluates both.
    """
    by_key: dict[str, str] = {}
    for pair in overrides or []:
        key, equals, _ = pair.partition("=")
        name = key.removesuffix(".model")
        if equals and key != "policy" and by_key.setdefault(name, pair) is not pair:
            raise UserError(f"{key} is given twice: {by_key[name]} and {pair}", "remove one")
    return overrides


RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]",
        help="Name from `coterie list`, or path/file.py:NAME; default: the recipe of the file or folder.",
    ),
]

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.", callback=once),
]

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL",
        help="Run folder, or RUN@STEP of reinforcement learning; or packaged model, model folder or hub name.",
    ),
]
Version = Annotated[
    int | None,
    typer.Option(
        "--iteration",
        help="With a run: the policy at the start of this iteration (0: the base); default: the newest.",
    ),
]

SECONDS_BETWEEN_LINES = 5.0


class ConsoleProgress(Receiver):
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

    def stage(self, stage_place: StagePlace) -> None:
        self._place, self._stage_began = stage_place, time.monotonic()

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
        done, text, time_left = self._pace.done, self._text(now, fields), self._left(now)
        if self._bar is not None:
            self._bar.update(self._task, advance=n, rate=text, left=time_left)
        elif now - self._last >= SECONDS_BETWEEN_LINES or done == self._total:
            self._last = now
            line = f"{self._description:<12} {done}/{self._total}  {text}"
            self._console.print(f"{line}  {time_left}" if time_left else line)

    def say(self, text: str) -> None:
        self._console.print(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _title(self, description: str) -> str:
        if (stage_place := self._place) is None:
            return description
        name = description.removesuffix(f" {stage_place.iteration}")
        if stage_place.number is None:
            return f"last policy: {name}"
        return f"iteration {stage_place.iteration} ({stage_place.number} of {stage_place.iterations}): {name}"

    def _left(self, now: float) -> str:
        """Format the estimated time left of this work and of the run."""
        seconds_left = self._pace.left(now)
        parts = [] if seconds_left is None else [f"{duration(seconds_left)} left"]
        run_seconds_left = (
            None if self._place is None else self._left_of_run(self._place, seconds_left, now)
        )
        if run_seconds_left is not None:
            parts.append(f"run: {duration(run_seconds_left)} left")
        return "  ".join(parts)

    def _left_of_run(
        self, stage_place: StagePlace, seconds_left: float | None, now: float
    ) -> float | None:
        elapsed = now - self._stage_began
        if seconds_left is None and stage_place.seconds is not None:
            seconds_left = max(stage_place.seconds - elapsed, 0.0)
        if seconds_left is None or stage_place.later is None:
            return None
        return seconds_left + stage_place.again * (elapsed + seconds_left) + stage_place.later

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
