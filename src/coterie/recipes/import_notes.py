"""What is said of an import of a published system's files, and how to go on from it."""

from pathlib import Path

from rich.console import Console


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
