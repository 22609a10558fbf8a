"""DensePolicy: dense trees against sparse pairs, imitation, and pairs with random sides.

Claims, margins and tests were fixed before any run (one-sided paired bootstrap over tasks and seeds, p < 0.05;
score is success within the limit of steps on held-out BabyAI games):

* must: dense trees score above the base;
* must: they score above the same pairs with sides drawn at random;
* reported: they score above as many sparse pairs (two whole runs of a task with different outcomes, paired where they
  first differ);
* reported: they score above supervised training on as many successful runs of the same trees.

Each method has the best of four learning rates (0.5, 1, 2 and 4 times 1e-4) on a spare seed, 9. The level and the
limit of steps were chosen with the model, before any training on trees.

Nothing is trained if the gate is not passed: the base must sometimes succeed and sometimes fail, and among several
runs of one game there must be better ones. Sums with Python make no claim: success within 1, 4 and 8 answers, before
and after.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from statistics import fmean

from coterie.progress import Progress
from coterie.recipes.dense_tree import DenseTree
from coterie.recipes.trainings import train_sft
from coterie.record.tree import Metrics, Selection
from coterie.record.turn import digest
from coterie.runs.loop import Stage
from coterie.runs.run import Run
from experiments.claims import Claim, Hypothesis
from experiments.experiment import SPARE_SEED, Experiment, Gate, Quick, make_recipe, marked
from experiments.results import BEST, Measurements

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
SUMS = (
    *("environment.feedback=neutral", "environment.answers=8", "evaluate.temperature=1"),
    *("search.rollouts_per_task=24", "evaluate.tasks=200"),
)
"""Settings of sums that leave something to learn.

With replies that say what is wrong, or greedily, the base solves too many within 4 answers.
"""
CLAIMS = (
    Hypothesis("over_base", "dense trees score above the base", "dense", "base" + BEST),
    Hypothesis(
        "over_random_sides",
        "dense trees score above their pairs with random sides",
        *("dense", "random sides"),
    ),
    Hypothesis(
        "over_sparse", "dense trees score above as many sparse pairs", "dense", "sparse", must=False
    ),
    Hypothesis(
        "over_sft",
        "dense trees score above SFT on as many successful runs",
        *("dense", "SFT"),
        must=False,
    ),
)
QUICK = Quick(("dense", "random sides"), ("evaluate.tasks=200",))
TUNING: dict[str, dict[str, float | None]] = {
    method: {f"train.learning_rate={rate}e-4": None for rate in (0.5, 1, 2, 4)}
    for method in ("dense", "random sides", "sparse", "SFT")
}
"""Learning rates that were tried on seed 9. Their scores were not kept."""
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


def run(x: Experiment) -> None:
    """Run the methods and the sums."""
    for seed in x.seeds:
        overrides = [*x.overrides, f"seed={seed}"]
        dense: DenseTree = make_recipe(NAME, overrides)
        run_method(x, "dense", dense, base="base")
        # best for the control
        turned = make_recipe(NAME, [*overrides, "train.learning_rate=4.0e-4"])
        # about one and a half pairs a task, so these tasks are enough
        sparse = [*overrides, *SPARSE, f"rollout.tasks={dense.settings.budget.pairs}"]
        run_methods(
            x,
            {
                "random sides": RandomSides(turned.settings),
                "SFT": Successes(dense.settings),
                "sparse": make_recipe(NAME, sparse),
            },
        )
        if x.chosen(["sums"]):
            recipe = sums(overrides)
            run_method(x, "dense (sums)", recipe, base="base (sums)")


def sums(overrides: Sequence[str]) -> DenseTree:
    """Return the recipe on sums with Python."""
    recipe: DenseTree = make_recipe(NAME, [*overrides, *SUMS], micro_world="sums")
    return recipe


def run_methods(x: Experiment, recipes: Mapping[str, DenseTree]) -> None:
    """Run methods beside dense trees. All but sparse pairs take over the trees."""
    for method in x.chosen(recipes):
        run_method(x, method, recipes[method], shares=None if method == "sparse" else "dense")


def run_method(
    x: Experiment, method: str, recipe: DenseTree, shares: str | None = None, base: str = ""
) -> None:
    """Run a method and record its last policy, and first its ``base`` if that has a name."""
    with x.run(method, recipe, shares=shares) as run:
        if base:
            x.add_run(base, recipe, run, 0)
        x.add_run(method, recipe, run, recipe.settings.iteration_count)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    return measurements.test(*CLAIMS)


def gate(x: Experiment) -> Gate:
    """Play held-out games with the untrained model: greedily, and several times sampled."""
    if x.chosen(["sums"]):
        with x.run(
            "base (sums)", recipe := sums([*x.overrides, f"seed={SPARE_SEED}"]), steps=()
        ) as run:
            x.choose_decode(recipe, run)
    recipe = make_recipe(NAME, [*x.overrides, f"seed={SPARE_SEED}"])
    with x.base(recipe) as run:
        base = x.choose_decode(recipe, run)[0.0]
        sampled = x.sample_groups(recipe, run, RUNS)
    best = fmean(max(scores) - fmean(scores) for scores in sampled)
    return Gate(
        {"best_minus_mean": best, "base": base, "sampled": fmean(map(fmean, sampled))},
        passed=best >= BEST_MINUS_MEAN and MIN_BASE <= base <= MAX_BASE,
        conditions=f"best_minus_mean at least {BEST_MINUS_MEAN}, base between {MIN_BASE} and {MAX_BASE}",
    )
