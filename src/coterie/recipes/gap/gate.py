"""Whether the micro-world gives plans something to work on, measured without training.

The model must sometimes be right and sometimes be wrong, and an expert that plans must need fewer rounds than one that
does not, with all facts found by the real retriever.
"""

from collections.abc import Sequence
from pathlib import Path

from coterie.progress import Progress
from coterie.recipes.findings import GateResult
from coterie.recipes.gap.claims import PARALLEL, ROUNDS, SEQUENTIAL, recipe_for
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import run_steps

LEAST_BASE, MOST_BASE, LEAST_FOUND = 0.2, 0.8, 0.98


def gate(folder: Path, words: Sequence[str], progress: Progress) -> GateResult:
    """Play the held-out questions with the model as it begins, and training questions with both experts."""
    rounds, found, base = {}, {}, 0.0
    for form in (PARALLEL, SEQUENTIAL):
        recipe = recipe_for([*words, f"traces.form={form}"])
        recipe.check()
        before, rollout, select, *_ = recipe.steps()
        with open_run(folder / form, recipe.name, recipe.settings) as run:
            steps = [rollout, select] if form == SEQUENTIAL else [before, rollout, select]
            run_steps(recipe, run, progress, steps)
            played = run.metrics(rollout)
            rounds[form] = float(played["rounds"])
            found[form] = int(run.metrics(select)["selected"]) / int(played["n"])
            base = base or float(run.metrics(Step(0, "evaluate"))["score"])
        recipe.close()
    share, least = rounds[PARALLEL] / rounds[SEQUENTIAL], min(found.values())
    return GateResult(
        {"base": base, "share_of_rounds": share, "sound_traces": least},
        passed=LEAST_BASE <= base <= MOST_BASE and share <= ROUNDS and least >= LEAST_FOUND,
        asked=f"base between {LEAST_BASE} and {MOST_BASE}, share_of_rounds at most {ROUNDS}, sound_traces at least "
        f"{LEAST_FOUND}",
    )
