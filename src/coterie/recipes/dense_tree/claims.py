"""``coterie reproduce dense_tree``: dense trees against sparse pairs, imitation, and pairs with random sides.

Claims, margins and tests are fixed here, before any run (one-sided paired bootstrap over tasks and seeds, p < 0.05;
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

Nothing is trained if the gate is not passed (``gate``). Sums with Python are played on one seed: success within 1, 4
and 8 answers, before and after.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from coterie.config.folders import make_folder
from coterie.evaluation.claims import Claim, Results, above
from coterie.progress import Progress
from coterie.recipes.dense_tree.recipe import DenseTree
from coterie.recipes.dense_tree.settings import DenseTreeSettings, TinySettings
from coterie.recipes.findings import ClaimResults, Findings, settings_for_claims
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.folder import open_run
from coterie.runs.loop import fork, run_steps

BASE, DENSE, RANDOM, SFT, SPARSE = "base", "dense", "random sides", "SFT", "sparse"
CONTROLS = {
    RANDOM: ("learns=random_sides", "train.learning_rate=4.0e-4"),
    SFT: ("learns=successes",),
}
"""What shares its trees with the dense run; a learning rate where the preset's is not the method's best."""
RUNS = 8
"""Whole runs of a task, for sparse pairs."""
SPARSE_WORDS = (
    f"search.base={RUNS}", f"search.runs={RUNS}", "search.children=sampling", "pairs.rule=first_difference",
    "budget.tasks=none",
)  # fmt: skip
DENSITIES = (1, 2, 4, 8)
"""Of the tasks of a budget: so many times those of the densest one."""
DENSITY_PAIRS = 96
"""Pairs of each density: what the densest eighth of the trees holds."""
SUMS_TASKS = 200
"""Held-out sums. What their grades say is success within 1, 2, 4 and 8 answers."""


def reproduce(
    folder: Path,
    seeds: Iterable[int],
    words: Sequence[str],
    say: Callable[[str], None],
    progress: Progress,
) -> ClaimResults:
    """Run (or resume) everything, and test the claims."""
    make_folder(folder)
    found = Findings()
    seeds = list(seeds)
    for seed in seeds:
        base, own = folder / f"seed-{seed}", [*words, f"seed={seed}"]
        base.mkdir(exist_ok=True)
        say(f"seed {seed}: {DENSE}")
        dense = _recipe(own)
        dense.check()
        _run(DENSE, dense, base, progress, found)
        for name, more in CONTROLS.items():
            say(f"seed {seed}: {name}")
            _run(name, _recipe([*own, *more]), base, progress, found, shares=DENSE)
        say(f"seed {seed}: {SPARSE}")
        _run(SPARSE, _sparse(dense.settings, own), base, progress, found)
    first = folder / f"seed-{seeds[0]}"
    _densities([*words, f"seed={seeds[0]}"], first, say, progress, found)
    _sums([*words, f"seed={seeds[0]}"], first, say, progress, found)
    return ClaimResults(found, _claims(found))


def _claims(found: Findings) -> list[Claim]:
    """The claims, each tested on all seeds that have what it is about."""
    told = (
        ("over_base", "dense trees score above the base", BASE, True),
        ("over_random_sides", "dense trees score above their pairs with random sides", RANDOM, True),
        ("over_sparse", "dense trees score above as many sparse pairs", SPARSE, False),
        ("over_sft", "dense trees score above SFT on as many successful runs", SFT, False),
    )  # fmt: skip
    dense = _of(found, DENSE)
    claims = [
        above(id_, text, dense, _of(found, other), must=must) for id_, text, other, must in told
    ]
    most, least = (_of(found, _density(times)) for times in (DENSITIES[0], DENSITIES[-1]))
    text = f"density 1 scores above density 1/{DENSITIES[-1]} at equal pairs"
    return [*claims, above("density", text, most, least, must=False)]


def _of(found: Findings, method: str) -> Results:
    """A method's newest results, by seed."""
    return {seed: tasks for (name, seed), tasks in found.tasks.items() if name == method}


def _recipe(words: Sequence[str]) -> DenseTree:
    recipe = recipe_of(settings_for_claims(TinySettings.recipe, words))
    assert isinstance(recipe, DenseTree), "these are claims about dense trees"
    return recipe


def _sparse(dense: DenseTreeSettings, words: Sequence[str]) -> DenseTree:
    """Whole runs of so many tasks that there are enough pairs: about one and a half a task."""
    assert dense.budget.pairs is not None, "the micro-world's preset has a budget"
    return _recipe([*words, *SPARSE_WORDS, f"rollout.tasks={dense.budget.pairs}"])


def _run(
    method: str,
    recipe: DenseTree,
    base: Path,
    progress: Progress,
    found: Findings,
    *,
    shares: str | None = None,
) -> None:
    """A whole run, begun with what it has in common with another one."""
    own, folder = recipe.settings, base / method.replace(" ", "_").replace("/", "_of_")
    if shares is not None and not folder.exists():
        fork(recipe, base / shares.replace(" ", "_"), folder, own)
    with open_run(folder, recipe.name, own) as run:
        run_steps(recipe, run, progress)
        if method == DENSE:
            found.add(BASE, own.seed, run, 0)
        found.add(method, own.seed, run, own.rounds)
    recipe.close()


def _density(times: int) -> str:
    return f"density 1/{times}" if times > 1 else "density 1"


def _densities(
    words: Sequence[str],
    base: Path,
    say: Callable[[str], None],
    progress: Progress,
    found: Findings,
) -> None:
    """Equal pairs out of the same trees: of all tasks, and of fewer that have more each."""
    tasks = _recipe(words).settings.rollout.tasks // DENSITIES[-1]
    for times in DENSITIES:
        name = _density(times)
        say(f"{name}: {tasks * times} tasks")
        budget = [f"budget.tasks={tasks * times}", f"budget.pairs={DENSITY_PAIRS}"]
        recipe = _recipe([*words, *budget])
        _run(name, recipe, base, progress, found, shares=DENSE)


def _sums(
    words: Sequence[str],
    base: Path,
    say: Callable[[str], None],
    progress: Progress,
    found: Findings,
) -> None:
    """Sums with Python: the base and dense trees, by how many answers were allowed."""
    say("sums with Python")
    own = [*words, "environment=sums", f"evaluate.tasks={SUMS_TASKS}"]
    recipe = recipe_of(settings(TinySettings.recipe, own))
    assert isinstance(recipe, DenseTree), "it is the same method"
    with open_run(base / "sums", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, progress)
        for name, version in ((f"{BASE} (sums)", 0), (f"{DENSE} (sums)", recipe.settings.rounds)):
            found.add(name, recipe.settings.seed, run, version)
    recipe.close()
