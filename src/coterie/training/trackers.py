"""Experiment trackers that receive the metrics of a training.

Nothing leaves the machine by default: ``wandb`` and ``swanlab`` start offline unless ``WANDB_MODE`` or ``SWANLAB_MODE``
is set, and write to the given folder, as ``tensorboard`` does. ``trackio`` has one local database for all runs, which
``trackio show`` reads (``TRACKIO_DIR`` moves it). Their packages are imported only when selected.
"""

import hashlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from coterie.errors import UserError

TrackerName = Literal["none", "tensorboard", "trackio", "wandb", "swanlab"]
PROJECT = "coterie"


class Tracker:
    """Receiver of the metrics of a training. This class discards them."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of an optimizer step (counted from 1)."""

    def close(self) -> None:
        """Flush and finish; also called after a failed training."""


class _AccelerateTracker(Tracker):
    def __init__(self, tracker: Any, config: Mapping[str, Any]) -> None:
        self._tracker = tracker
        tracker.start()
        kinds = (bool, int, float, str, type(None))
        plain = {key: one if isinstance(one, kinds) else str(one) for key, one in config.items()}
        tracker.store_init_configuration(plain)

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
        return Tracker()
    check_tracker(name)
    folder.mkdir(parents=True, exist_ok=True)
    from accelerate import tracking

    mode = os.environ.get(f"{name.upper()}_MODE", "offline")
    if name == "tensorboard":
        tracker: Any = tracking.TensorBoardTracker(run, folder)
    elif name == "wandb":
        id_ = hashlib.sha256(f"{folder.absolute()} {run}".encode()).hexdigest()[:16]
        resume = {"id": id_, "resume": "allow", "dir": str(folder), "mode": mode}
        tracker = tracking.WandBTracker(PROJECT, name=run, **resume)
    elif name == "swanlab":
        place = {"logdir": str(folder), "mode": mode}
        tracker = tracking.SwanLabTracker(PROJECT, experiment_name=run, **place)
    else:
        tracker = tracking.TrackioTracker(PROJECT, name=run, resume="allow")
    return _AccelerateTracker(tracker, config)


def check_tracker(name: TrackerName, key: str = "tracker") -> None:
    """Raise ``UserError`` if the tracker's package is not installed; ``key`` is the name of the setting."""
    if name != "none" and importlib.util.find_spec(name) is None:
        raise UserError(
            f"{key}={name} needs the package {name!r}, which is not installed",
            f"pip install -e '.[{name}]', or choose {key}=none",
        )
