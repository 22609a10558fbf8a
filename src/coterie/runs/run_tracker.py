"""Experiment tracker of a whole run: training steps by role, and metrics of stages.

All metrics share one axis, the optimizer steps of the run so far. A resumed run continues the same experiment where the
tracker supports it.
"""

from collections.abc import Mapping
from pathlib import Path

from coterie.config.settings import Settings, key
from coterie.record.store import Store
from coterie.record.tree import Metrics
from coterie.training.trackers import NoTracker, Tracker, TrackerName, make_tracker

FINISHED = "finished"
"""Sample name of the item that marks a stage as finished."""


class RunSettings(Settings):
    """Settings of a recipe that runs read."""

    tracker: TrackerName = key(
        "none", "Experiment tracker that also receives the metrics of the run."
    )


class RunTracker:
    """Tracker of one open run. Starts with the first metrics and must be closed."""

    def __init__(self, folder: Path, settings: Settings, store: Store) -> None:
        self._folder, self._settings, self._store = folder, settings, store
        self._name = settings.tracker if isinstance(settings, RunSettings) else "none"
        self._tracker: Tracker | None = None

    def of(self, role: str) -> Tracker:
        """Return the tracker of a role's next training."""
        return _RoleTracker(self, role, self._steps()) if self._name != "none" else NoTracker()

    def stage(self, name: str, metrics: Metrics) -> None:
        if self._name != "none":
            named = {
                f"{name}/{metric}": n for metric, n in metrics.items() if not isinstance(n, str)
            }
            self.log(named, self._steps())

    def step(self, name: str, metrics: Metrics, updates: int) -> None:
        """Log the metrics of a step of a stage after ``updates`` optimizer steps of the stage."""
        if self._name != "none":
            named = {
                f"{name}/{metric}": n for metric, n in metrics.items() if not isinstance(n, str)
            }
            self.log(named, self._steps() + updates)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics by full name after ``step`` optimizer steps of the run."""
        if self._tracker is None:
            folder, config = self._folder / "tracking", self._settings.model_dump()
            self._tracker = make_tracker(self._name, folder, self._folder.absolute().name, config)
        self._tracker.log(metrics, step)

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()

    def _steps(self) -> int:
        finished = self._store.metrics_of(FINISHED)
        return sum(int(metrics["steps"]) for metrics in finished if "trained_tokens" in metrics)


class _RoleTracker:
    """Tracker that prefixes metrics with the role and continues the step count of the run."""

    def __init__(self, tracker: RunTracker, role: str, before: int) -> None:
        self._run, self._role, self._before = tracker, role, before

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        named = {f"{self._role}/{metric}": n for metric, n in metrics.items() if metric != "step"}
        self._run.log(named, self._before + step)

    def close(self) -> None: ...
