"""Position of a stage in its run and remaining time, estimated from finished stages."""

from collections.abc import Sequence

from coterie.progress import StagePlace
from coterie.runs.folder import Run
from coterie.runs.stage import Stage

EVALUATION = "evaluate"
"""Name of the evaluation stage, which also follows the last iteration."""
REINFORCE = "reinforce"
"""Stage of many steps, which reports its time left itself."""


def stage_place(run: Run, stages: Sequence[Stage], stage: Stage) -> StagePlace:
    iterations = sorted({s.step.iteration for s in stages if s.step.stage != EVALUATION})
    seconds_by_kind = _seconds(run, stages)
    left = [s for s in stages[list(stages).index(stage) + 1 :] if not run.is_finished(s.step)]
    later = [seconds_by_kind.get(s.kind) for s in left if s.kind != stage.kind]
    here = stage.step.iteration
    return StagePlace(
        here,
        iterations.index(here) + 1 if here in iterations else None,
        len(iterations),
        seconds_by_kind.get(stage.kind),
        None
        if None in later or stage.step.stage == REINFORCE
        else sum(seconds or 0.0 for seconds in later),
        sum(s.kind == stage.kind for s in left),
    )


def _seconds(run: Run, stages: Sequence[Stage]) -> dict[str, float]:
    seconds_by_kind = {stage.kind: run.metrics(stage.step).get("seconds") for stage in stages
             if run.is_finished(stage.step)}  # fmt: skip
    return {
        kind: float(seconds) for kind, seconds in seconds_by_kind.items() if seconds is not None
    }
