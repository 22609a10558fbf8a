"""One tracker for a whole run: the steps of its trainings, by role, and what its stages measured.

All have one axis: the optimiser steps that the run has taken so far. A run that is gone on with goes on in the same
place, where the tracker has such a thing.
"""

from collections.abc import Mapping
from pathlib import Path

from coterie.config.settings import Settings, key
from coterie.training.trackers import NoTracker, Tracker, TrackerName, make_tracker
from coterie.trajectories.item import Metrics
from coterie.trajectories.store import Store

FINISHED = "finished"
"""The sample's name of the item that marks a stage as finished."""


class RunSettings(Settings):
    """What runs read of a recipe's settings."""

    tracker: TrackerName = key(
        "none", "Where metrics go besides the run folder: one tracker for the whole run."
    )


class Tracking:
    """The tracker of one open run; it starts with the first metrics, and is to be closed."""

    def __init__(self, folder: Path, settings: Settings, store: Store) -> None:
        self._folder, self._settings, self._store = folder, settings, store
        self._name = settings.tracker if isinstance(settings, RunSettings) else "none"
        self._tracker: Tracker | None = None

    def of(self, role: str) -> Tracker:
        """What is told of the steps of a role's next training."""
        return _OfRole(self, role, self._steps()) if self._name != "none" else NoTracker()

    def stage(self, name: str, metrics: Metrics) -> None:
        if self._name != "none":
            named = {f"{name}/{what}": n for what, n in metrics.items() if not isinstance(n, str)}
            self.log(named, self._steps())

    def step(self, name: str, metrics: Metrics, updates: int) -> None:
        """What was measured of a step of a stage, after so many optimiser steps of its own."""
        if self._name != "none":
            named = {f"{name}/{what}": n for what, n in metrics.items() if not isinstance(n, str)}
            self.log(named, self._steps() + updates)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Metrics under their full names, after so many steps of the run."""
        if self._tracker is None:
            folder, config = self._folder / "tracking", self._settings.model_dump()
            self._tracker = make_tracker(self._name, folder, self._folder.absolute().name, config)
        self._tracker.log(metrics, step)

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()

    def _steps(self) -> int:
        finished = self._store.metrics_of(FINISHED)
        return sum(int(found["steps"]) for found in finished if "trained_tokens" in found)


class _OfRole:
    """Names the metrics of a role's training, and counts its steps after those of the run before it."""

    def __init__(self, tracking: Tracking, role: str, before: int) -> None:
        self._tracking, self._role, self._before = tracking, role, before

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        named = {f"{self._role}/{what}": n for what, n in metrics.items() if what != "step"}
        self._tracking.log(named, self._before + step)

    def close(self) -> None: ...
