"""DensePolicy on games of TextWorld: dense trees against their base, sparse pairs and controls.

Claims, margins and tests were fixed before the run (one-sided paired bootstrap over tasks and seeds, p < 0.05; score is
the share of the quest that is done on held-out games, 1 if it is won):

* must: dense trees score above the base;
* reported: they score above the same pairs with sides drawn at random;
* reported: they score above as many sparse pairs (two whole runs of a task with different outcomes, paired where they
  first differ);
* reported: they score above supervised training on as many successful runs of the same trees;
* reported: density pays: the densest budget scores above the sparsest, with equal pairs out of the same trees (one
  seed).

Each method has the best of four learning rates (0.5, 1, 2 and 4 times 1e-4) on a spare seed, 9. The sizes of the trees
and of the budgets were chosen on that seed too. The limit of messages was chosen with the model, before any training.

Nothing is trained if the gate is not passed: the base must sometimes win and sometimes not, and enough of its trees
must hold both wins and failures.
"""

from functools import partial
from statistics import fmean

from coterie.recipes.dense_tree import DenseTree
from coterie.runs.evaluation import grade_means
from coterie.runs.loop import EVALUATION
from coterie.runs.run import StageKey
from experiments.dense_tree import (
    CLAIMS,
    DENSITIES,
    SPARSE,
    RandomSides,
    Successes,
    run_method,
)
from experiments.experiment import Claim, Experiment, Gate, above, make_recipe, sampled_scores

NAME = "dense_tree/tiny"
make = partial(make_recipe, NAME, micro_world="textworld")
RATES = {"random sides": 5e-5, "SFT": 2e-4, "sparse": 2e-4}
"""Learning rates of the other methods; the preset has that of dense trees."""
DENSITY_PAIRS = 160
"""Pairs of each density: fewer than the densest eighth of the trees holds (about 195)."""
MIN_BOTH, MIN_BASE, MAX_BASE = 0.4, 0.2, 0.7
GATE_TREES = 32


def reproduce(x: Experiment) -> list[Claim]:
    """Run the methods, and with the first seed the densities; test the claims."""
    for seed in x.seeds:
        overrides = [*x.overrides, f"seed={seed}"]
        dense: DenseTree = make(overrides)
        with x.run("dense", dense) as run:
            x.add_run("base", run, 0)
            x.add_run("dense", run, dense.settings.iteration_count)
        own = {name: [*overrides, f"train.learning_rate={rate}"] for name, rate in RATES.items()}
        controls = {"random sides": RandomSides, "SFT": Successes}
        for name, control in controls.items():
            run_method(x, name, control(make(own[name]).settings), shares="dense")
        tasks = f"rollout.tasks={dense.settings.budget.pairs}"
        run_method(x, "sparse", make([*own["sparse"], *SPARSE, tasks]), shares="dense")
    overrides = [*x.overrides, f"seed={x.seeds[0]}"]
    tasks = make(overrides).settings.rollout.tasks // max(DENSITIES)
    for times, name in DENSITIES.items():
        budget = (f"budget.tasks={tasks * times}", f"budget.pairs={DENSITY_PAIRS}")
        run_method(x, name, make([*overrides, *budget]), shares="dense")
    most, *_, least = DENSITIES.values()
    text = f"{most} scores above {least} at equal pairs"
    claims = [(name, text, name == "over_base", other) for name, text, _, other in CLAIMS]
    density = above("density", text, x.of(most), x.of(least), must=False)
    return [*x.claims("dense", claims), density]


def gate(x: Experiment) -> Gate:
    """Play held-out games greedily and grow trees, both with the untrained model."""
    recipe: DenseTree = make([*x.overrides, f"rollout.tasks={GATE_TREES}"])
    with x.run("gate", recipe, steps=[StageKey(0, EVALUATION), StageKey(0, "rollout")]) as run:
        base = grade_means(run.store, 0, EVALUATION)["success"]
        trees = sampled_scores(run, 0, "rollout")
    wins = [[score >= 1 for score in scores] for scores in trees]
    both = fmean(any(tree) and not all(tree) for tree in wins)
    return Gate(
        {"base": base, "trees_with_both": both, "wins_of_paths": fmean(map(fmean, wins))},
        passed=both >= MIN_BOTH and MIN_BASE <= base <= MAX_BASE,
        asked=f"trees_with_both at least {MIN_BOTH}, base between {MIN_BASE} and {MAX_BASE}",
    )
