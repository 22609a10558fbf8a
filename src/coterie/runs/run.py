"""Folder of a run: its files, stages and experiment tracker.

    FOLDER/config.yaml                  name of the recipe, date of creation, all settings
    FOLDER/store.sqlite                 the record, with one writing process at a time
    FOLDER/training/ROLE/iteration-00/  checkpoints and final weights of a training
    FOLDER/commands.txt                 the commands that started and resumed it, one per line
    FOLDER/report.html

The tracker receives training steps by role and metrics of stages. All metrics share one axis, the optimizer steps of
the run so far. A resumed run continues the same experiment where the tracker supports it.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from coterie.clusters import open_cluster
from coterie.config.folders import (
    atomic_folder,
    check_new,
    expanded,
    flush,
    make_folder,
    pinned,
    today,
)
from coterie.config.resolve import flatten, read_yaml
from coterie.config.settings import Settings, key
from coterie.engines.protocol import POLICY
from coterie.errors import UserError
from coterie.record.store import ItemKey, Store
from coterie.record.tree import LeftOut, Metrics, Selection
from coterie.training.settings import Rollout, Tracker, TrackerName, make_tracker

if TYPE_CHECKING:
    from coterie.clusters import Cluster

FINISHED = "finished"
"""Sample name of the item that marks a stage as finished."""


class RunSettings(Settings):
    """Settings of a recipe that its run reads."""

    tracker: TrackerName = key(
        "none", "Experiment tracker that also receives the metrics of the run."
    )
    tracker_samples: int = key(
        4,
        "Number of rollouts of each step of reinforcement learning that `trackio` and `wandb` show.",
        ge=0,
    )
    cluster: str = key(
        "none",
        "Machines for servers and ranks: `none` (this machine), `ray` (the Ray cluster at RAY_ADDRESS, or of this "
        "machine), `ray://HOST:PORT`, or `slurm` (submit the run as a job).",
        pattern=r"^(none|ray|ray://[^/]+:\d+|slurm)$",
    )


class RunTracker:
    """Tracker of one open run. Starts with the first metrics and must be closed."""

    def __init__(self, folder: Path, settings: Settings, store: Store) -> None:
        self._folder, self._settings, self._store = folder, settings, store
        of_run = settings if isinstance(settings, RunSettings) else RunSettings()
        self._name: TrackerName = of_run.tracker
        self.samples = of_run.tracker_samples if self._name in ("trackio", "wandb") else 0
        """Number of rollouts of a step to show."""
        self._tracker: Tracker | None = None
        self._stepped = set[str]()
        """Stages that logged their steps; the metrics of the whole stage would look like another step."""

    def of(self, role: str) -> Tracker:
        """Return a tracker that prefixes metrics with the role and continues the step count of the run."""
        # Earlier trainings of the run come first on the common axis of optimizer steps.
        previous_steps = self._steps()

        def write(metrics: Mapping[str, float], step: int) -> None:
            self.log(
                {f"{role}/{metric}": n for metric, n in metrics.items()}, previous_steps + step
            )

        return Tracker(write)

    def stage(self, name: str, metrics: Metrics, updates: int = 0) -> None:
        """Log the metrics of a stage, or of its step after ``updates`` of its optimizer steps."""
        if updates:
            self._stepped.add(name)
        elif name in self._stepped:
            return
        numbers = ((metric, n) for metric, n in metrics.items() if not isinstance(n, str))
        self.log({f"{name}/{metric}": n for metric, n in numbers}, self._steps() + updates)

    def show(self, rollouts: Sequence[Rollout], updates: int) -> None:
        """Show rollouts of the step after ``updates`` optimizer steps of the stage."""
        if rollouts and (show := self._open().show):
            self._open().log({"reinforce/rollouts": show(rollouts)}, self._steps() + updates)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._open().log(metrics, step)

    def _open(self) -> Tracker:
        if self._tracker is None:
            folder, config = self._folder / "tracking", self._settings.model_dump(mode="json")
            self._tracker = make_tracker(self._name, folder, self._folder.absolute().name, config)
        return self._tracker

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()

    def _steps(self) -> int:
        # Only trainings have ``trained_tokens``; ``steps`` of other stages are no optimizer steps.
        finished = [item.metrics for item in self._store.items(sample=FINISHED)]
        return sum(int(metrics["steps"]) for metrics in finished if "trained_tokens" in metrics)


COMMANDS = "commands.txt"
CREATED = "made"
STARTED = ("store.sqlite", ".config.yaml.partial", "report.html", ".report.html.partial")
"""Beginnings of the names of files in the folder of a run that stopped at its start."""
MIN_FREE = 256
"""Free disk space in MiB that a run needs to start."""


@dataclass(frozen=True, slots=True)
class StageKey:
    """One stage of one iteration."""

    iteration: int
    stage: str

    @property
    def finished_key(self) -> ItemKey:
        """Key of the finished stage in the store."""
        return ItemKey(self.iteration, self.stage, "", FINISHED)

    @property
    def start_key(self) -> ItemKey:
        """Key of the started stage in the store."""
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
    created: date
    """Date that chat templates write, constant during the run."""
    tracker: RunTracker
    stage: str = "train"
    """Name of the stage that runs."""

    @property
    def cluster(self) -> "Cluster | None":
        """Cluster of the run's servers and ranks; ``None`` for this machine."""
        name = self.settings.cluster if isinstance(self.settings, RunSettings) else "none"
        return open_cluster(name)

    @property
    def launch(self) -> dict[str, Any]:
        """Arguments of :class:`~coterie.training.ranks.Ranks` for the cluster."""
        cluster = self.cluster
        return {} if cluster is None else {"launch": cluster.ranks, "host": cluster.host}

    @property
    def report(self) -> Path:
        """Path of the report."""
        return self.folder / "report.html"

    def commands(self) -> tuple[str, ...]:
        """Return the commands that did work in the folder, in order; none if Python code did it."""
        file = self.folder / COMMANDS
        return tuple(file.read_text().splitlines()) if file.is_file() else ()

    def note_command(self, command: str) -> None:
        """Append a command to the list of commands."""
        # Resuming several times with one command adds one line only.
        if command and self.commands()[-1:] != (command,):
            with (self.folder / COMMANDS).open("a", encoding="utf-8") as file:
                file.write(command.replace("\n", " ") + "\n")

    def training_folder(self, iteration: int, role: str = POLICY) -> Path:
        """Return the folder of checkpoints and final weights of a role's training in an iteration."""
        return self.folder / "training" / role / f"iteration-{iteration:02d}"

    def is_finished(self, key: StageKey) -> bool:
        """Return True if a stage has finished."""
        return self.store.finished(key.finished_key)

    def start_fingerprint(self, key: StageKey) -> str | None:
        """Return the fingerprint of the settings when a stage started; ``None`` if it did not start."""
        fingerprint = (self.store.metrics_at(key.start_key) or {}).get("settings")
        return None if fingerprint is None else str(fingerprint)

    def has_results(self, key: StageKey) -> bool:
        """Return True if a stage, finished or not, has an item or a training."""
        items = self.store.finished_keys(key.iteration, key.stage)
        return (
            bool(items - {(key.start_key.task, key.start_key.sample)})
            or bool(self.store.stages(key.iteration, f"{key.stage}/*"))
            or any(self.folder.glob(f"training/*/iteration-{key.iteration:02d}"))
        )

    def begin(self, key: StageKey, fingerprint: str) -> None:
        """Record that a stage starts with a fingerprint of its settings."""
        self.stage = key.stage
        # A resumed stage keeps the fingerprint of its start, which later starts are compared with.
        # A stage that failed before its first result may start under other settings.
        started = self.start_fingerprint(key)
        if started not in (None, fingerprint) and not self.has_results(key):
            self.store.remove(key.start_key)
            started = None
        if started is None:
            self.store.finish(key.start_key, metrics={"settings": fingerprint})

    def finish(self, key: StageKey, fingerprint: str, metrics: Metrics) -> None:
        """Record that a stage has finished."""
        self.store.finish(key.finished_key, metrics={**metrics, "settings": fingerprint})
        self.tracker.stage(key.stage, metrics)

    def select(
        self, iteration: int, selections: Sequence[Selection], left_out: Sequence[LeftOut] = ()
    ) -> None:
        """Store the selections of an iteration, and the samples that were not selected."""
        key = ItemKey(iteration, "select", "")
        if not self.store.finished(key):
            self.store.finish(key, selections=selections, left_out=left_out)

    def metrics(self, key: StageKey) -> Metrics:
        """Return the metrics of a finished stage; empty if it has not finished."""
        return self.store.metrics_at(key.finished_key) or {}


@contextmanager
def open_run(folder: Path, recipe: str, settings: Settings, *, write: bool = True) -> Iterator[Run]:
    """Open or create a run folder. Raises :class:`UserError` if it can't be used.

    Inside the block, chat templates write the run's date of creation (or the date of an outer open run that this run is
    made from).
    """
    check_folder(folder, recipe)
    if write:
        make_folder(folder)
        free = shutil.disk_usage(folder).free // 2**20
        if free < MIN_FREE:
            problem = (
                f"only {free} MiB are free on the disk of {folder}; a run needs {MIN_FREE} MiB"
            )
            raise UserError(problem, "free some space, or use --folder on another disk")
    path = folder / "store.sqlite"
    # Without its record the recipe would start over and overwrite the trainings in the folder.
    has_training = any(folder.glob("training/*/iteration-*"))
    if has_training and not path.is_file():
        raise _without_record(path, "is gone")
    config = folder / "config.yaml"
    # Templates that print the date must give the same tokens after a resume on another day.
    created = read_yaml(config).get(CREATED) if config.is_file() else None
    created = created if isinstance(created, date) else today()
    with Store.open(path, read_only=not write) as store, pinned(created):
        if has_training and store.is_empty():
            raise _without_record(path, "is empty")
        with closing(RunTracker(folder, settings, store)) as tracker:
            yield Run(folder, recipe, settings, store, created, tracker)


@contextmanager
def new_run(folder: Path, recipe: str, settings: Settings, todo: str) -> Iterator[Run]:
    """Create a run folder that appears only if the block succeeds. Raises :class:`UserError` if it exists."""
    check_new(folder, todo)
    with atomic_folder(folder) as partial, open_run(partial, recipe, settings) as run:
        write_config(run)
        yield run


def write_config(run: Run) -> None:
    values = {"recipe": run.recipe, CREATED: run.created, **run.settings.model_dump(mode="json")}
    # The file is replaced in one operation, so a killed process never leaves half of it.
    temporary = run.folder / ".config.yaml.partial"
    temporary.write_text(yaml.safe_dump(values, sort_keys=False))
    flush(temporary)
    temporary.replace(run.folder / "config.yaml")


def read_config(folder: Path) -> tuple[str, dict[str, object]]:
    """Return the recipe and the stored settings of a run folder."""
    path = folder / "config.yaml"
    if not path.is_file():
        problem = f"{folder} is not a run folder (it has no config.yaml)"
        raise UserError(problem, "start one with: coterie run RECIPE --folder FOLDER")
    values = read_yaml(path)
    values.pop(CREATED, None)
    if "recipe" not in values:
        raise UserError(f"{path} does not name its recipe", "restore it from a copy")
    return str(values.pop("recipe")), values


def find_run(name: str) -> tuple[Path, int | None] | None:
    """Return the folder and the step of ``RUN`` or ``RUN@STEP``; ``None`` if this is not a run."""
    # A folder whose own name contains ``@`` takes precedence over a step.
    if name and (expanded(name) / "config.yaml").is_file():
        return expanded(name), None
    run, _, step = name.rpartition("@")
    if not run or not (expanded(run) / "config.yaml").is_file():
        return None
    if not step.isdecimal():
        raise UserError(f"{name} names no step of {run}", f"give a number, such as {run}@50")
    return expanded(run), int(step)


def differences(old: dict[str, object], new: Settings) -> list[str]:
    old_values, new_values = flatten(old), flatten(new.model_dump(mode="json"))
    return [
        f"{name}: {old_values.get(name)} -> {new_values.get(name)}"
        for name in sorted(old_values.keys() | new_values.keys())
        if old_values.get(name) != new_values.get(name)
    ]


def check_folder(folder: Path, recipe: str | None) -> None:
    """Raise ``UserError`` if a folder is not a run of ``recipe`` (``None``: of any recipe), nor new or empty."""
    if (folder / "config.yaml").is_file():
        name, _ = read_config(folder)
        if recipe not in (None, name):
            problem = f"{folder} is a run of {name}, not of {recipe}"
            raise UserError(problem, "use another --folder or the right recipe")
    elif folder.is_file() or (
        folder.is_dir() and not all(file.name.startswith(STARTED) for file in folder.iterdir())
    ):
        raise UserError(
            f"{folder} exists and is not a run folder", "use another --folder or an empty one"
        )


def _without_record(path: Path, how: str) -> UserError:
    """Return the error of a folder with trainings but no record, which must not be reused."""
    folder = path.parent
    return UserError(
        f"{path}, the record of the run, {how}, but {folder / 'training'} has its trainings",
        f"restore {path.name} from a copy; to start over, remove {folder} or use another --folder",
    )
