"""Experiment trackers that receive the metrics of a training.

    with Trainer(model, objective, settings, folder, tracker=make_tracker("wandb", folder, "my run", {})) as trainer:

All but ``none`` are tracker classes of Accelerate, and their packages are imported only when selected. Nothing leaves
the machine by default: ``wandb`` and ``swanlab`` start offline unless ``WANDB_MODE`` or ``SWANLAB_MODE`` is set, and
write to the given folder, as ``tensorboard`` does. ``trackio`` has one local database for all runs, which ``trackio
show`` reads (``TRACKIO_DIR`` moves it).
"""

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from coterie.errors import UserError

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

TrackerName = Literal["none", "tensorboard", "trackio", "wandb", "swanlab"]
PROJECT = "coterie"


class Tracker(Protocol):
    """Receiver of the metrics of a training."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of an optimizer step (counted from 1)."""
        ...

    def close(self) -> None:
        """Flush and finish; also called after a failed training."""
        ...


class NoTracker:
    """Tracker that discards the metrics."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class AccelerateTracker:
    """Tracker class of Accelerate, started."""

    def __init__(self, tracker: "GeneralTracker", config: Mapping[str, Any]) -> None:
        self._tracker = tracker
        tracker.start()
        tracker.store_init_configuration({name: _plain(value) for name, value in config.items()})

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        values = {name: value for name, value in metrics.items() if name != "step"}
        self._tracker.log(values, step=step)

    def close(self) -> None:
        self._tracker.finish()


def make_tracker(name: TrackerName, folder: Path, run: str, config: Mapping[str, Any]) -> Tracker:
    """Return a tracker that writes to ``folder`` under the run name ``run``.

    Raises :class:`UserError` if its package is not installed.
    """
    if name == "none":
        return NoTracker()
    check_tracker(name)
    folder.mkdir(parents=True, exist_ok=True)
    return AccelerateTracker(_MAKERS[name](folder, run), config)


def check_tracker(name: TrackerName, key: str = "tracker") -> None:
    """Raise ``UserError`` if the tracker's package is not installed; ``key`` is the name of the setting."""
    if name != "none" and importlib.util.find_spec(name) is None:
        raise UserError(
            f"{key}={name} needs the package {name!r}, which is not installed",
            f"pip install -e '.[{name}]', or choose {key}=none",
        )


def _tensorboard(folder: Path, run: str) -> "GeneralTracker":
    from accelerate.tracking import TensorBoardTracker

    return TensorBoardTracker(run, folder)


def _wandb(folder: Path, run: str) -> "GeneralTracker":
    from accelerate.tracking import WandBTracker

    mode = os.environ.get("WANDB_MODE", "offline")
    return WandBTracker(
        PROJECT, name=run, id=_id(folder, run), resume="allow", dir=str(folder), mode=mode
    )


def _swanlab(folder: Path, run: str) -> "GeneralTracker":
    from accelerate.tracking import SwanLabTracker

    mode = os.environ.get("SWANLAB_MODE", "offline")
    return SwanLabTracker(PROJECT, experiment_name=run, logdir=str(folder), mode=mode)


def _trackio(_: Path, run: str) -> "GeneralTracker":
    from accelerate.tracking import TrackioTracker

    return TrackioTracker(PROJECT, name=run, resume="allow")


def _id(folder: Path, run: str) -> str:
    return hashlib.sha256(f"{folder.absolute()} {run}".encode()).hexdigest()[:16]


_MAKERS: "dict[str, Callable[[Path, str], GeneralTracker]]" = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "swanlab": _swanlab,
    "trackio": _trackio,
}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
