"""DensePolicy: dense trees against sparse pairs, imitation, and pairs with random sides.

Claims, margins and tests were fixed before any run (one-sided paired bootstrap over tasks and seeds, p < 0.05;
score is success within the limit of steps on held-out BabyAI games):

* must: dense trees score above the base;
* must: they score above the same pairs with sides drawn at random;
* reported: they score above as many sparse pairs (two whole runs of a task with different outcomes, paired where they
  first differ);
* reported: they score above supervised training on as many successful runs of the same trees;
* reported: density pays: the densest budget scores above the sparsest, with equal pairs out of the same trees (one
  seed).

Each method has the best of four learning rates (0.5, 1, 2 and 4 times 1e-4) on a spare seed, 9. The level and the
limit of steps were chosen with the model, before any training on trees.

Nothing is trained if the gate is not passed: the base must sometimes succeed and sometimes fail, and among several
runs of one game there must be better ones. Sums with Python are played on one seed: success within 1, 4 and 8
answers, before and after.
"""

import random
from dataclasses import replace
from itertools import cycle, islice
from statistics import fmean

from coterie.progress import Progress
from coterie.recipes.dense_tree import DenseTree
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.recipes.trainings import train_sft
from coterie.record.tree import Metrics, Selection
from coterie.record.turn import digest
from coterie.rollout.episodes import Episode
from coterie.runs.loop import Stage
from coterie.runs.run import Run
from experiments.experiment import (
    Claim,
    Experiment,
    Gate,
    above,
    make_recipe,
    marked,
    sampled_scores,
)

NAME = "dense_tree/tiny"
RUNS = 8
"""Whole runs of a task, for sparse pairs and for the gate."""
SPARSE = (
    f"search.max_children={RUNS}",
    f"search.rollouts_per_task={RUNS}",
    "search.children=sampling",
    "pairs.rule=first_difference",
    "budget.tasks=none",
)
DENSITIES = {1: "density 1", 2: "density 1/2", 4: "density 1/4", 8: "density 1/8"}
"""By the number of tasks of the budget, as a multiple of the densest one's."""
DENSITY_PAIRS = 96
"""Pairs of each density: all that the densest eighth of the trees holds."""
SUMS_TASKS = 200
"""Held-out sums. Their grades include success within 1, 2, 4 and 8 answers."""
CLAIMS = [
    ("over_base", "dense trees score above the base", True, "base"),
    (
        "over_random_sides",
        "dense trees score above their pairs with random sides",
        True,
        "random sides",
    ),
    ("over_sparse", "dense trees score above as many sparse pairs", False, "sparse"),
    ("over_sft", "dense trees score above SFT on as many successful runs", False, "SFT"),
]
BEST_MINUS_MEAN, MIN_BASE, MAX_BASE = 0.2, 0.2, 0.7


class Control(DenseTree):
    """Base class of controls, which share the trees of a run."""

    def stages(self) -> list[Stage]:
        return marked(super().stages(), type(self).__name__)


class RandomSides(Control):
    """Trains on the same pairs with sides drawn at random."""

    def select_pairs(self, run: Run, iteration: int) -> tuple[list[Selection], dict[str, int]]:
        pairs, counts = super().select_pairs(run, iteration)
        return [self.turn(pair) for pair in pairs], counts

    def turn(self, pair: Selection) -> Selection:
        assert pair.rejected is not None, "it is a pair"
        if int(digest("side", self.settings.seed, pair.leaf, pair.rejected)[:8], 16) % 2:
            return pair
        return replace(pair, leaf=pair.rejected, rejected=pair.leaf)


class Successes(Control):
    """Trains by SFT on successful rollouts, one per pair. Rollouts repeat only after all are used."""

    def select_pairs(self, run: Run, iteration: int) -> tuple[list[Selection], dict[str, int]]:
        pairs, counts = super().select_pairs(run, iteration)
        leaves = [
            leaf
            for tree in run.store.outlines(iteration, "rollout")
            for leaf, outcome in tree.outcomes.items()
            if (outcome.score or 0.0) >= 1
        ]
        random.Random(f"successes/{self.settings.seed}/{iteration}").shuffle(leaves)
        context = self.context(self.train_tasks(iteration))
        repeated = islice(cycle(leaves), len(pairs))
        return [Selection(leaf, self.agent, context) for leaf in repeated], counts

    def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        return train_sft(self, run, i, self.settings.train, progress)


def reproduce(x: Experiment) -> list[Claim]:
    """Run the methods, and with the first seed the densities and the sums; test the claims."""
    for seed in x.seeds:
        overrides = [*x.overrides, f"seed={seed}"]
        dense: DenseTree = make_recipe(NAME, overrides)
        with x.run("dense", dense) as run:
            x.add_run("base", run, 0)
            x.add_run("dense", run, dense.settings.iteration_count)
        turned = make_recipe(
            NAME, [*overrides, "train.learning_rate=4.0e-4"]
        )  # best for the control
        run_method(x, "random sides", RandomSides(turned.settings), shares="dense")
        run_method(x, "SFT", Successes(dense.settings), shares="dense")
        # about one and a half pairs a task, so these tasks are enough
        sparse = [*overrides, *SPARSE, f"rollout.tasks={dense.settings.budget.pairs}"]
        run_method(x, "sparse", make_recipe(NAME, sparse))
    overrides = [*x.overrides, f"seed={x.seeds[0]}"]
    tasks = make_recipe(NAME, overrides).settings.rollout.tasks // max(DENSITIES)
    for times, name in DENSITIES.items():
        budget = (f"budget.tasks={tasks * times}", f"budget.pairs={DENSITY_PAIRS}")
        run_method(x, name, make_recipe(NAME, [*overrides, *budget]), shares="dense")
    sums = recipe_of(
        settings(NAME, [*overrides, "environment=sums", f"evaluate.tasks={SUMS_TASKS}"])
    )
    with x.run("sums", sums) as run:
        x.add_run("base (sums)", run, 0)
        x.add_run("dense (sums)", run, sums.settings.iteration_count)
    most, *_, least = DENSITIES.values()
    text = f"{most} scores above {least} at equal pairs"
    density = above("density", text, x.of(most), x.of(least), must=False)
    return [*x.claims("dense", CLAIMS), density]


def run_method(x: Experiment, method: str, recipe: DenseTree, shares: str | None = None) -> None:
    """Run a method and record its last policy."""
    with x.run(method, recipe, shares=shares) as run:
        x.add_run(method, run, recipe.settings.iteration_count)


def gate(x: Experiment) -> Gate:
    """Play held-out games with the untrained model: once greedily, and several times sampled."""
    recipe: DenseTree = make_recipe(NAME, x.overrides)
    stages = (("gate_greedy", 0.0, 1), ("gate_sampled", 1.0, RUNS))

    async def play(run: Run) -> None:
        for stage, temperature, runs in stages:
            tasks = recipe.heldout_tasks()
            sampler = await recipe.sampler(run, 0, temperature)
            episodes = [Episode(task, n, 0, stage) for task in tasks for n in range(runs)]
            await recipe.play_by(run, episodes, {recipe.agent: sampler}, x.progress)

    with x.play(recipe, x.folder, play) as run:
        greedy, sampled = (sampled_scores(run, 0, stage) for stage, *_ in stages)
    best = fmean(max(some) - fmean(some) for some in sampled)
    base = fmean(score for some in greedy for score in some)
    return Gate(
        {"best_minus_mean": best, "base": base, "sampled": fmean(map(fmean, sampled))},
        passed=best >= BEST_MINUS_MEAN and MIN_BASE <= base <= MAX_BASE,
        asked=f"best_minus_mean at least {BEST_MINUS_MEAN}, base between {MIN_BASE} and {MAX_BASE}",
    )
