"""DensePolicy: does density pay? Few dense trees against many thin ones, in a world where values are hard to tell.

Claims, margins, tests and the gate were fixed before any training (one-sided paired tests, p < 0.05; score is the share
of held-out tasks of ``sums_row`` that are solved):

* must: the densest budget scores above the base at its best decode;
* reported: density pays at equal pairs: 320 pairs of 8 trees score above 320 pairs of 64 trees, all of 240 rollouts;
* reported: density pays at about equal sampled tokens: 320 pairs of 32 trees of 240 rollouts score above 320 pairs of
  64 trees of 30. (A label of a node is sampled once, so 8 times the rollouts are not 8 times the tokens: on the spare
  seed 1,127 tokens a tree against 638);
* reported: the densest budget scores above as many sparse pairs, of whole runs where they first differ;
* reported: it scores above supervised training on as many successful runs of its trees.

Nothing was tuned: all methods have the learning rate of ``dense_tree/tiny``.

Gate, on the spare seed and before any training: a world in which pairs of whole runs are nearly always the right way
round has no use for better values, and one in which a tree repeats itself has no use for more rollouts.

* Of the sparse pairs of 8 whole runs at most 0.70 are the right way round. Each side is judged by 40 further runs from
  it. A pair of equal sides counts half.
* Of 48 whole runs of a task at least 0.7 are distinct.
* The base at its best decode scores 0.3 to 0.6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean

from coterie.recipes.dense_tree import DenseTree, by_score
from coterie.record.tree import Task
from coterie.rollout.episodes import Driver
from coterie.rollout.positions import Position
from coterie.rollout.samplers import CandidateSampler, TokenSampler
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Rollout, Search
from coterie.runs.run import Run
from coterie.runs.search_items import TreeWriter, grow_trees
from coterie.runs.work_items import sampled_tokens
from coterie.selection import DensePairSettings, Preference, first_differences
from experiments.claims import Claim, Hypothesis
from experiments.dense_tree import NAME, SPARSE, Successes, run_method
from experiments.experiment import SPARE_SEED, Experiment, Gate, Quick, make_recipe
from experiments.results import BEST, Measurements

WORLD = f"{Path(__file__).with_name('sums_row.py')}:SumsRow"
PAIRS = 320
COMMON = (
    *("model=tiny-acts", "environment.steps=12", "rollout.max_tokens=32", "rollout.tasks=64"),
    *("search.children=sampling", "search.max_children=8", "search.rollouts_per_search=8"),
    "search.rollouts_per_task=240",
    # No tree stops at a number of pairs, so that all trees of a method have equally many rollouts.
    *("search.pairs=100000", "pairs.margin=0.3", "pairs.max_visits=1", f"budget.pairs={PAIRS}"),
    *("train.learning_rate=2e-4", "train.warmup_ratio=0.1", "train.batch_size=16"),
    *("train.max_length=1024", "evaluate.tasks=500"),
)
DENSE, WIDE, THIN = "8 of 64 trees", "64 trees", "64 trees of 30 rollouts"
FEW = "32 trees"
METHODS: Mapping[str, Sequence[str]] = {
    DENSE: ("budget.tasks=8",),
    WIDE: ("budget.tasks=64",),
    "SFT": ("budget.tasks=8",),
    FEW: ("rollout.tasks=32",),
    THIN: ("search.rollouts_per_task=30",),
    "sparse": (*SPARSE, f"rollout.tasks={PAIRS}"),
}
"""Settings of each method. The first three share their trees."""
CLAIMS = (
    Hypothesis("over_base", "8 of 64 trees score above the base", DENSE, "base" + BEST),
    Hypothesis(
        "density_pairs",
        "8 of 64 trees score above all 64 at equal pairs",
        *(DENSE, WIDE),
        must=False,
    ),
    Hypothesis(
        "density_samples",
        "32 trees of 240 rollouts score above 64 of 30 at equal pairs",
        *(FEW, THIN),
        must=False,
    ),
    Hypothesis(
        "over_sparse",
        "8 of 64 trees score above as many sparse pairs",
        *(DENSE, "sparse"),
        must=False,
    ),
    Hypothesis(
        "over_sft",
        "8 of 64 trees score above SFT on as many successful runs",
        *(DENSE, "SFT"),
        must=False,
    ),
)
QUICK = Quick((FEW, THIN), ("evaluate.tasks=100",))
GATE_TASKS, RUNS, WHOLE, FURTHER = 100, 8, 48, 40
"""Tasks of the gate; whole runs of a task that make the pairs, and all whole runs; further runs from each side."""
MAX_RIGHT, MIN_DISTINCT, MIN_BASE, MAX_BASE = 0.70, 0.7, 0.3, 0.6


def make(overrides: Sequence[str]) -> DenseTree:
    recipe: DenseTree = make_recipe(NAME, [*COMMON, *overrides], WORLD)
    return recipe


def run(x: Experiment) -> None:
    """Run the methods."""
    for seed in x.seeds:
        for number, method in enumerate(x.chosen(METHODS)):
            recipe = make([*METHODS[method], *x.overrides, f"seed={seed}"])
            shares = DENSE if method in (WIDE, "SFT") else None
            base = "" if number else "base"
            if method == "SFT":
                recipe = Successes(recipe.settings)
            run_method(x, method, recipe, shares, base)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    return measurements.test(*CLAIMS)


@dataclass(eq=False)
class SideSearch(Search):
    """Whole runs of a task, and then further runs from each side of the pairs that the first of them make."""

    agent: str
    sampler: CandidateSampler
    pair_settings: DensePairSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        # The whole runs, and two sides of at most `RUNS` pairs.
        self.searches = 1 + 2 * RUNS

    def plan(self, search: int, rng: Random) -> list[Rollout]:
        if not search:
            return [Rollout(0, number, self.tree.root) for number in range(WHOLE)]
        sides = [side for pair in self.pairs() for side in (pair.chosen.id, pair.rejected.id)]
        # A turn may be a side of several pairs.
        starts = [*dict.fromkeys(sides)][search - 1 : search]
        return [Rollout(search, number, start) for start in starts for number in range(FURTHER)]

    def samplers_of(self, rollout: Rollout, position: Position) -> Mapping[str, CandidateSampler]:
        return {self.agent: self.sampler}

    def seed_of(self, rollout: Rollout, position: Position, index: int) -> int:
        depth = len(position.state.turns)
        return int(self.key("side", rollout.search, rollout.number, depth)[:15], 16)

    def pairs(self) -> list[Preference]:
        """Return the sparse pairs of the first whole runs."""
        rewards = {
            run.leaf: run.reward or 0.0 for run in self.whole_runs()[:RUNS] if run.leaf is not None
        }
        return first_differences(self.tree, rewards, self.agent, self.pair_settings)

    def whole_runs(self) -> list[Rollout]:
        return sorted((r for r in self.rollouts if r.search == 0), key=lambda r: r.number)

    def right(self) -> list[float]:
        """Return 1 for each pair that is the right way round by the further runs, 0.5 for equal sides, else 0."""
        rewards: dict[str, list[float]] = {}
        for rollout in self.rollouts:
            if rollout.search > 0:
                rewards.setdefault(rollout.start, []).append(rollout.reward or 0.0)
        gaps = [fmean(rewards[p.chosen.id]) - fmean(rewards[p.rejected.id]) for p in self.pairs()]
        return [0.5 if gap == 0 else float(gap > 0) for gap in gaps]

    def distinct(self) -> float:
        """Return the number of different texts of whole runs, divided by the number of these runs."""
        paths = [self.tree.path(run.leaf) for run in self.whole_runs() if run.leaf is not None]
        texts = {tuple(turn.text.strip() for turn in path) for path in paths}
        return len(texts) / len(paths)


def gate(x: Experiment) -> Gate:
    """Choose the decode of the base, and judge the pairs of its whole runs."""
    recipe = make([*x.overrides, f"seed={SPARE_SEED}"])
    with x.base(recipe) as run:
        base = max(x.choose_decode(recipe, run).values())
        searches = recipe.models(run).engines.run(search_sides(x, recipe, run))
    # Without a pair there is nothing that better values could put right.
    right = fmean([share for search in searches for share in search.right()] or [1.0])
    distinct = fmean(search.distinct() for search in searches)
    return Gate(
        {"right": right, "distinct": distinct, "base": base},
        passed=right <= MAX_RIGHT and distinct >= MIN_DISTINCT and MIN_BASE <= base <= MAX_BASE,
        conditions=f"right at most {MAX_RIGHT}, distinct at least {MIN_DISTINCT}, base {MIN_BASE} to {MAX_BASE}",
    )


async def search_sides(x: Experiment, recipe: DenseTree, run: Run) -> list[SideSearch]:
    """Play (or resume) the whole runs and the further ones of held-out tasks, at temperature 1."""
    tasks, searches = recipe.heldout_tasks()[:GATE_TASKS], list[SideSearch]()
    sampler: TokenSampler = await recipe.sampler(run, 0, 1.0)
    run.store.put_tasks(tasks)
    writer = TreeWriter(run.store, 0, x.progress, sampled_tokens([sampler]), stage="gate_sides")
    # Tasks have different numbers of sides, of which this is the most.
    x.progress.start(len(tasks) * (1 + 2 * RUNS), "sides of pairs")

    def begin(driver: Driver, sessions: Sessions, task: Task) -> SideSearch:
        tree, recorded = writer.load(task)
        branches = driver.branches(task, tree, sessions)
        common = (recipe.agent, sampler, recipe.settings.pairs)
        search = SideSearch(branches, by_score, *common, rollouts=recorded, seed=SPARE_SEED)
        searches.append(search)
        return search

    async with recipe.actors(run) as actors:
        driver = actors.driver({recipe.agent: sampler}, SPARE_SEED)
        await grow_trees(driver, writer, tasks, begin, len(tasks))
    return searches
