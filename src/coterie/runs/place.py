"""Where a stage stands in its run, and how long it and the rest will take, by the stages that are finished."""

from collections.abc import Sequence

from coterie.progress import StagePlace
from coterie.runs.folder import Run
from coterie.runs.stage import Stage

EVALUATION = "evaluate"
"""The stage that also follows the last iteration."""
REINFORCE = "reinforce"
"""The stage of many steps, which tells its time left itself: the bar of one step does not know the others."""


def place_of(run: Run, stages: Sequence[Stage], stage: Stage) -> StagePlace:
    iterations = sorted({s.step.iteration for s in stages if s.step.stage != EVALUATION})
    taken = _seconds(run, stages)
    left = [s for s in stages[list(stages).index(stage) + 1 :] if not run.is_finished(s.step)]
    later = [taken.get(s.kind) for s in left if s.kind != stage.kind]
    here = stage.step.iteration
    return StagePlace(
        here,
        iterations.index(here) + 1 if here in iterations else None,
        len(iterations),
        taken.get(stage.kind),
        None
        if None in later or stage.step.stage == REINFORCE
        else sum(seconds or 0.0 for seconds in later),
        sum(s.kind == stage.kind for s in left),
    )


def _seconds(run: Run, stages: Sequence[Stage]) -> dict[str, float]:
    found = {stage.kind: run.metrics(stage.step).get("seconds") for stage in stages
             if run.is_finished(stage.step)}  # fmt: skip
    return {kind: float(seconds) for kind, seconds in found.items() if seconds is not None}
