"""DensePolicy on games of TextWorld: dense trees against their base, sparse pairs and controls.

Claims, margins and tests were fixed before the run (one-sided paired bootstrap over tasks and seeds, p < 0.05; score is
the share of the quest that is done on held-out games, 1 if it is won):

* must: dense trees score above the base;
* reported: they score above the same pairs with sides drawn at random;
* reported: they score above as many sparse pairs (two whole runs of a task with different outcomes, paired where they
  first differ);
* reported: they score above supervised training on as many successful runs of the same trees.

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
from experiments.claims import Claim
from experiments.dense_tree import (
    CLAIMS,
    SPARSE,
    RandomSides,
    Successes,
    run_method,
    run_methods,
)
from experiments.dense_tree import TUNING as TUNING
from experiments.experiment import (
    SPARE_SEED,
    Experiment,
    Gate,
    Quick,
    make_recipe,
    sampled_scores,
)
from experiments.results import Measurements

NAME = "dense_tree/tiny"
make = partial(make_recipe, NAME, micro_world="textworld")
RATES = {"random sides": 5e-5, "SFT": 2e-4, "sparse": 2e-4}
"""Learning rates of the other methods; the preset has that of dense trees."""
MIN_BOTH, MIN_BASE, MAX_BASE = 0.4, 0.2, 0.7
GATE_TREES = 32


QUICK = Quick(("dense", "random sides"), ("evaluate.tasks=200",))


def run(x: Experiment) -> None:
    """Run the methods."""
    for seed in x.seeds:
        overrides = [*x.overrides, f"seed={seed}"]
        dense: DenseTree = make(overrides)
        run_method(x, "dense", dense, base="base")
        words = {name: [*overrides, f"train.learning_rate={rate}"] for name, rate in RATES.items()}
        tasks = f"rollout.tasks={dense.settings.budget.pairs}"
        run_methods(
            x,
            {
                "random sides": RandomSides(make(words["random sides"]).settings),
                "SFT": Successes(make(words["SFT"]).settings),
                "sparse": make([*words["sparse"], *SPARSE, tasks]),
            },
        )


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims of BabyAI, of which only one must hold here."""
    return measurements.test(*(claim._replace(must=claim.id == "over_base") for claim in CLAIMS))


def gate(x: Experiment) -> Gate:
    """Play held-out games with the untrained model, and grow trees."""
    spare = (f"rollout.tasks={GATE_TREES}", f"seed={SPARE_SEED}")
    recipe: DenseTree = make([*x.overrides, *spare])
    steps = [StageKey(0, EVALUATION), StageKey(0, "rollout")]
    with x.run("base", recipe, steps=steps) as run:
        x.choose_decode(recipe, run)
        base = grade_means(run.store, 0, EVALUATION)["success"]
        trees = sampled_scores(run, 0, "rollout")
    wins = [[score >= 1 for score in scores] for scores in trees]
    both = fmean(any(tree) and not all(tree) for tree in wins)
    return Gate(
        {"base": base, "trees_with_both": both, "wins_of_paths": fmean(map(fmean, wins))},
        passed=both >= MIN_BOTH and MIN_BASE <= base <= MAX_BASE,
        conditions=f"trees_with_both at least {MIN_BOTH}, base between {MIN_BASE} and {MAX_BASE}",
    )
