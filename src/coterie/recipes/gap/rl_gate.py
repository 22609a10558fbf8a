"""Whether the fine-tuned policy gives reinforcement learning something to work on: measured before any of it.

It must sometimes be right and sometimes be wrong, and among several paths of one question there must be better ones.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from coterie.progress import Progress
from coterie.recipes.findings import Findings, GateResult
from coterie.recipes.gap.claims import recipe_for
from coterie.recipes.gap.recipe import Gap
from coterie.recipes.gap.rl_claims import SFT, check_methods, fine_tuned
from coterie.rollout.episodes import Episode
from coterie.runs.folder import Run, open_run

LEAST, MOST, LEAST_GAIN = 0.3, 0.8, 0.15
PATHS = 8
SAMPLED = "gate_sampled"
"""Where the paths are stored."""


def gate(folder: Path, words: Sequence[str], progress: Progress) -> GateResult:
    """Fine-tune, and play the held-out questions once greedily, and several times sampled."""
    check_methods(words)
    found = Findings()
    fine_tuned(folder, words, progress, found)
    recipe = recipe_for(words)
    with open_run(folder, recipe.name, recipe.settings) as run:
        try:
            recipe.models(run).run_async(_sampled(recipe, run, progress))
        finally:
            recipe.close()
        paths = [
            [outcome.score or 0.0 for outcome in tree.outcomes.values()]
            for tree in run.store.trees(1, SAMPLED)
        ]
    greedy = next(one.score for one in found.rows if one.method == SFT)
    one = statistics.fmean(statistics.fmean(some) for some in paths)
    best = statistics.fmean(max(some) for some in paths)
    return GateResult(
        {"exact_match": greedy, "pass_1": one, f"pass_{PATHS}": best, "gain": best - one},
        passed=LEAST <= greedy <= MOST and best - one >= LEAST_GAIN,
        asked=f"exact_match of the fine-tuned policy between {LEAST} and {MOST}, gain (pass@{PATHS} minus pass@1) at "
        f"least {LEAST_GAIN}",
    )


async def _sampled(recipe: Gap, run: Run, progress: Progress) -> None:
    sampler = await recipe.sampler(run, 1, recipe.settings.rl.rollout.temperature)
    episodes = [
        Episode(task, n, 1, SAMPLED) for task in recipe.heldout_tasks() for n in range(PATHS)
    ]
    await recipe.play_by(run, episodes, {recipe.agent: sampler}, progress)
