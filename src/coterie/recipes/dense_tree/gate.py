"""Whether the micro-world gives trees something to work on, measured before any training.

The base must sometimes succeed and sometimes fail, and among several runs of one game there must be better ones.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from coterie.progress import Progress
from coterie.recipes.dense_tree.recipe import DenseTree
from coterie.recipes.dense_tree.settings import DenseTreeSettings, TinySettings
from coterie.recipes.findings import GateResult, settings_for_claims
from coterie.rollout.episodes import Episode
from coterie.runs.folder import Run, open_run

BEST_MINUS_MEAN, LEAST_BASE, MOST_BASE = 0.2, 0.2, 0.7
RUNS = 8
GREEDY, SAMPLED = "gate_greedy", "gate_sampled"
"""Where episodes are stored."""


def gate(folder: Path, words: Sequence[str], progress: Progress) -> GateResult:
    """Play held-out games with the model as it begins: once greedily, and several times sampled."""
    settings = settings_for_claims(TinySettings.recipe, words)
    assert isinstance(settings, DenseTreeSettings), "these are claims about dense trees"
    recipe = DenseTree(settings)
    recipe.check()
    with open_run(folder, recipe.name, settings) as run:
        try:
            recipe.models(run).run_async(_played(recipe, run, progress))
        finally:
            recipe.close()
        sampled, greedy = _scores(run, SAMPLED), _scores(run, GREEDY)
    best = statistics.fmean(max(some) - statistics.fmean(some) for some in sampled)
    base = statistics.fmean(score for some in greedy for score in some)
    mean = statistics.fmean(statistics.fmean(some) for some in sampled)
    return GateResult(
        {"best_minus_mean": best, "base": base, "sampled": mean},
        passed=best >= BEST_MINUS_MEAN and LEAST_BASE <= base <= MOST_BASE,
        asked=f"best_minus_mean at least {BEST_MINUS_MEAN}, base between {LEAST_BASE} and {MOST_BASE}",
    )


async def _played(recipe: DenseTree, run: Run, progress: Progress) -> None:
    tasks = recipe.heldout_tasks()
    for stage, temperature, runs in ((GREEDY, 0.0, 1), (SAMPLED, 1.0, RUNS)):
        sampler = await recipe.sampler(run, 0, temperature)
        episodes = [Episode(task, n, 0, stage) for task in tasks for n in range(runs)]
        await recipe.play_by(run, episodes, {recipe.agent: sampler}, progress)


def _scores(run: Run, stage: str) -> list[list[float]]:
    """The scores of the runs of each game; what failed has none."""
    return [
        [outcome.score or 0.0 for outcome in tree.outcomes.values()]
        for tree in run.store.trees(0, stage)
    ]
