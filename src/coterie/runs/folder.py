"""A run folder: the resolved settings, the store, the checkpoints and the report of one run.

FOLDER/config.yaml                the recipe's name, the day on which the run was made, every setting
FOLDER/store.sqlite               the record (one writer: a second process is refused)
FOLDER/training/ROLE/iteration-00/  a training in progress, and its final weights
FOLDER/commands.txt               the commands that started and resumed it, one a line
FOLDER/report.html
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import yaml

from coterie.config.day import pinned, today
from coterie.config.folders import check_new_folder, flush, make_folder, whole_folder
from coterie.config.resolve import flatten, read_yaml
from coterie.config.settings import Settings
from coterie.engines.protocol import POLICY
from coterie.errors import UserError
from coterie.runs.tracking import FINISHED, Tracking
from coterie.trajectories.selection import Selection
from coterie.trajectories.store import ItemKey, Metrics, Store

COMMANDS = "commands.txt"
MADE = "made"
"""Key of a config for the day on which its run was made."""
MIN_FREE = 256 * 2**20
"""Bytes that must be free on the disk before a run starts."""


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of one iteration."""

    iteration: int
    stage: str

    @property
    def key(self) -> ItemKey:
        return ItemKey(self.iteration, self.stage, "", FINISHED)

    @property
    def begun(self) -> ItemKey:
        return ItemKey(self.iteration, self.stage, "", "begun")

    def __str__(self) -> str:
        return f"{self.stage} of iteration {self.iteration}"


@dataclass(slots=True)
class Run:
    """An open run folder."""

    folder: Path
    recipe: str
    settings: Settings
    store: Store
    made: date
    """The day that chat templates with a clock write, however long the run takes."""
    tracking: Tracking
    """Where its metrics go besides the store."""

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def commands(self) -> tuple[str, ...]:
        """Return the commands that did work in the folder, in order; none if Python code did it."""
        file = self.folder / COMMANDS
        return tuple(file.read_text().splitlines()) if file.is_file() else ()

    def note_command(self, command: str) -> None:
        """Keep a command, unless the one before it was the same."""
        if command and self.commands()[-1:] != (command,):
            with (self.folder / COMMANDS).open("a", encoding="utf-8") as file:
                file.write(command.replace("\n", " ") + "\n")

    def training_folder(self, iteration: int, role: str = POLICY) -> Path:
        """Where the training of a role in one iteration leaves its checkpoints and final weights."""
        return self.folder / "training" / role / f"iteration-{iteration:02d}"

    def is_finished(self, step: Step) -> bool:
        return self.store.finished(step.key)

    def begun_under(self, step: Step) -> str | None:
        """Fingerprint of the settings under which a step was begun; ``None`` if it was not."""
        found = (self.store.metrics_at(step.begun) or {}).get("settings")
        return None if found is None else str(found)

    def begin(self, step: Step, fingerprint: str) -> None:
        """Note under which settings a step is begun, so that it is not gone on with under others."""
        if self.begun_under(step) is None:
            self.store.finish(step.begun, metrics={"settings": fingerprint})

    def finish(self, step: Step, fingerprint: str, metrics: Metrics) -> None:
        self.store.finish(step.key, metrics={**metrics, "settings": fingerprint})
        self.tracking.stage(step.stage, metrics)

    def select(self, iteration: int, selections: Sequence[Selection]) -> None:
        if not self.store.finished(ItemKey(iteration, "select", "")):
            self.store.select(iteration, "select", selections)

    def metrics(self, step: Step) -> Metrics:
        """What was measured of a finished step; empty if it is not finished."""
        return self.store.metrics_at(step.key) or {}


@contextmanager
def open_run(folder: Path, recipe: str, settings: Settings, *, write: bool = True) -> Iterator[Run]:
    """Open a run folder, or make it. Its config is (re)written with ``settings``.

    In the block, chat templates write the day on which the folder was made (that of the run that is
    open already, if this one is made from it).

    Raises :class:`UserError` if the folder belongs to another recipe or an earlier version, holds other things or
    trainings without their record, can't be written to, is in use by another process, or lies on a disk that is full.
    """
    _check_folder(folder, recipe)
    if write:
        make_folder(folder)
        free = shutil.disk_usage(folder).free
        if free < MIN_FREE:
            raise UserError(
                f"only {free / 2**20:.0f} MiB are free on the disk of {folder}",
                f"a run needs at least {MIN_FREE / 2**20:.0f} MiB: free some space or use "
                "--folder on another disk",
            )
    path = folder / "store.sqlite"
    trained = any(folder.glob("training/*/iteration-*"))
    if trained and not path.is_file():
        raise _without_record(path, "is gone")
    made = _made(folder)
    with Store.open(path, read_only=not write) as store, pinned(made):
        if trained and store.is_empty():
            raise _without_record(path, "is empty")
        with closing(Tracking(folder, settings, store)) as tracking:
            yield Run(folder, recipe, settings, store, made, tracking)


@contextmanager
def new_run(folder: Path, recipe: str, settings: Settings, todo: str) -> Iterator[Run]:
    """A run folder that is there, whole, when the block ends well, and else not at all.

    Raises :class:`UserError` (with ``todo``) if there is something already, and as :func:`open_run`.
    """
    check_new_folder(folder, todo)
    with whole_folder(folder) as partial, open_run(partial, recipe, settings) as run:
        write_config(run)
        yield run


def write_config(run: Run) -> None:
    """Write the recipe's name and settings, atomically."""
    values = {"recipe": run.recipe, MADE: run.made, **run.settings.model_dump(mode="json")}
    temporary = run.folder / ".config.yaml.partial"
    temporary.write_text(yaml.safe_dump(values, sort_keys=False))
    flush(temporary)
    temporary.replace(run.folder / "config.yaml")


def read_config(folder: Path) -> tuple[str, dict[str, object]]:
    """(recipe, settings as written) of a run folder; raises :class:`UserError` if it is none."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(
            f"{folder} is not a run folder (it has no config.yaml)",
            "start one with: coterie run RECIPE --folder FOLDER",
        )
    values = read_yaml(path)
    values.pop(MADE, None)
    if "recipe" not in values:
        raise UserError(f"{path} does not name its recipe", "put it back from a copy")
    return str(values.pop("recipe")), values


def _made(folder: Path) -> date:
    """The day on which a run folder was made: as its config says, or today."""
    path = folder / "config.yaml"
    found = read_yaml(path).get(MADE) if path.is_file() else None
    return found if isinstance(found, date) else today()


def differences(old: dict[str, object], new: Settings) -> list[str]:
    before, after = flatten(old), flatten(new.model_dump(mode="json"))
    return [
        f"{name}: {before.get(name)} -> {after.get(name)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _check_folder(folder: Path, recipe: str) -> None:
    if (folder / "config.yaml").is_file():
        found, _ = read_config(folder)
        if found != recipe:
            raise UserError(
                f"{folder} is a run of {found}, not of {recipe}",
                "give another --folder, or the right recipe",
            )
    elif folder.is_file() or (folder.is_dir() and not _only_beginnings(folder)):
        raise UserError(
            f"{folder} exists and is not a run folder", "give another --folder, or an empty one"
        )
    if old := min(folder.glob("training/iteration-*"), default=None):
        raise UserError(
            f"{folder} was written by an earlier version of coterie, which kept trainings in {old} "
            "and not in a folder of each role",
            "open it with the coterie version that wrote it, or run again into a new folder",
        )


def _without_record(path: Path, how: str) -> UserError:
    """Starting over would adopt trainings of which nothing is known any more."""
    folder = path.parent
    return UserError(
        f"{path}, the record of the run, {how}, and {folder / 'training'} holds its trainings",
        f"put {path.name} back from a copy; to start over, remove {folder} or give another --folder",
    )


def _only_beginnings(folder: Path) -> bool:
    """Whether a folder holds nothing but what a run that was stopped at its start leaves."""
    ours = ("store.sqlite", ".config.yaml.partial", "report.html", ".report.html.partial")
    return all(entry.name.startswith(ours) for entry in folder.iterdir())
