"""What imports of published systems' files have in common: the run that they make, and what is said of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.line_files import NEW
from coterie.runs.folder import Run, Step, new_run
from coterie.trajectories.item import Metrics


@contextmanager
def imported_run(recipe: Recipe, folder: Path, progress: Progress) -> Iterator[Run]:
    """A new run, whose folder appears when the block ends well; the progress ends with the block."""
    try:
        with new_run(folder, recipe.name, recipe.settings, NEW) as run:
            yield run
    finally:
        progress.close()


def finish_imported(recipe: Recipe, run: Run, step: Step, file: Path, metrics: Metrics) -> None:
    """Mark a step as finished by what a file held."""
    settings = recipe.fingerprint(step)
    run.begin(step, settings)
    run.finish(step, settings, {**metrics, "imported": file.name, "seconds": 0.0})


class ImportNotes:
    """Notes on one import into a run folder."""

    def __init__(self, console: Console, folder: Path, recipe: str) -> None:
        self._console = console
        self._folder = folder
        self._recipe = recipe

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text)

    def left_out(self, what: str, count: int, unit: str = "") -> None:
        """What could not be used as it is; nothing is said of none."""
        if count:
            self.say(f"{what}: {count:,}{unit}")

    def go_on(self, stage: str, option: str = "") -> None:
        """The commands that come next."""
        first = f"coterie {stage} {self._folder}{option and f' {option}'}"
        self.say(f"continue with: {first}, or coterie run {self._recipe} --folder {self._folder}")
