"""Preference pairs out of a real run's store: the dialogues of a task, best against the others."""

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from coterie.environments.dialogue import drop_format
from coterie.models.loading import load
from coterie.progress import Silent
from coterie.recipes.optima import Optima
from coterie.recipes.registry import settings
from coterie.record.rows import Pair, View, recontext, trajectory_pair
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey, open_run

WORDS = ["rollout.tasks=2", "rollout.rollouts_per_task=8", "evaluate.tasks=1", "engine.device=cpu"]
PAIRS_A_TASK = 2


@cache
def recorded_pairs() -> tuple[Pair, ...]:
    """Two tasks' pairs of Alice's whole trajectories, as a rollout by ``tiny-exchange`` left them.

    The reference log-probs are made up (about those of a random model of SmolLM2's vocabulary).
    """
    recipe, rng = Optima(settings("optima/isft", WORDS)), random.Random(3)
    renderer = load("tiny-exchange").renderer
    found: list[Pair] = []
    with (
        TemporaryDirectory() as folder,
        open_run(Path(folder) / "run", "optima/isft", recipe.settings) as run,
    ):
        run_stages(recipe, run, Silent(), [StageKey(0, stage) for stage in ("rollout", "reward")])
        rewards = recipe.rewards(run, 0)
        for tree in run.store.trees(0, "rollout"):

            def view(leaf: str, tree=tree) -> View:  # type: ignore[no-untyped-def]
                return recontext(
                    tree, leaf, "Alice", name="drop", edit=drop_format, render=renderer.render
                )

            best, *others = sorted(rewards[tree.task], key=lambda r: r.total, reverse=True)
            for other in others[-PAIRS_A_TASK:]:
                one = trajectory_pair(view(best.leaf), view(other.leaf), group=tree.task)
                counts = [side[0].target_count for side in (one.chosen, one.rejected)]
                sums = [-10.8 * count + rng.gauss(0, 5) for count in counts]
                found.append(Pair(one.chosen, one.rejected, (sums[0], sums[1]), 1.0, tree.task))
    return tuple(found)
