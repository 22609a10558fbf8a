"""Claims of papers on micro-worlds: variants over seeds, paired tests, and the output of ``coterie reproduce``.

A module of this folder tests the claims of one paper. Its docstring says what was fixed before the run. It has a
function ``reproduce(x)`` that runs the variants and returns the tested claims, and may have ``gate(x)``, which
measures before any training whether the micro-world leaves something to learn.
"""

import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from coterie.config.folders import make_folder
from coterie.errors import UserError, did_you_mean
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.registry import played_by, settings
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.settings import RecipeSettings
from coterie.record.store import Store
from coterie.record.tree import Metrics
from coterie.runs.evaluation import grade_means, held_out_draws
from coterie.runs.loop import EVALUATION, Stage, fork, run_stages
from coterie.runs.run import Run, StageKey, open_run
from coterie.terminal import ConsoleProgress, results
from experiments.paired_test import PairedTest, paired_bootstrap

NAMES = (
    *("optima", "optima/isft", "sweet_rl", "sweet_rl-frontend", "moat", "dense_tree"),
    *("dense_tree-textworld", "gap", "gap-sft", "multi_agent"),
)
SIGNIFICANCE = 0.05
MIN_TASKS = 500
"""Held-out tasks a seed that a claim needs."""


@dataclass(frozen=True, slots=True)
class HeldOutResult:
    """Result of one policy on one held-out task."""

    score: float
    tokens: int
    """Sampled tokens of the dialogue. A failed dialogue has 0 tokens and a score of 0."""


def held_out_results(store: Store, version: int) -> dict[str, HeldOutResult]:
    draws = held_out_draws(store, version, samples=1)
    return {task: HeldOutResult(draw.score, draw.tokens) for task, (draw,) in draws.items()}


Results = Mapping[int, Mapping[str, HeldOutResult]]
"""Held-out results of one method by seed and task."""
_score, _tokens = attrgetter("score"), attrgetter("tokens")


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and the outcome of its test."""

    id: str
    claim: str
    must: bool
    holds: bool
    p: float
    effect: float
    tried: str


@dataclass(frozen=True, slots=True)
class Gate:
    """Measurements before any training, and whether they allow the claims to be tested."""

    values: Mapping[str, float]
    passed: bool
    asked: str
    """The conditions on the values, in words."""


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy of one method and seed on the held-out tasks."""

    method: str
    seed: int
    iteration: int
    n: int
    score: float
    tokens: float
    rows: int
    """Training rows so far."""
    steps: int
    """Optimizer steps so far."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Means of the environment's other grades, such as turns."""

    @property
    def row(self) -> dict[str, Any]:
        """The flat object that is printed."""
        values = asdict(self)
        return values | values.pop("means")


class Experiment:
    """Runs of one ``coterie reproduce``, and the results measured so far."""

    def __init__(
        self,
        folder: Path,
        overrides: Sequence[str],
        seeds: Sequence[int],
        say: Callable[[str], None],
        progress: Progress,
    ) -> None:
        self.folder, self.overrides, self.seeds = folder, list(overrides), seeds
        self.say, self.progress = say, progress
        self.min_tasks = MIN_TASKS
        self.rows: list[PolicyResult] = []
        self.tasks: dict[tuple[str, int], Mapping[str, HeldOutResult]] = {}
        """Held-out results of each method's newest policy, by (method, seed)."""

    def path(self, method: str, seed: int) -> Path:
        """Return the folder of a method's run."""
        slug = method.lower().replace(" ", "_").replace("/", "_of_")
        return self.folder / f"seed-{seed}" / slug

    @contextmanager
    def run(
        self,
        method: str,
        recipe: Recipe,
        *,
        shares: str | None = None,
        steps: Sequence[StageKey] | None = None,
    ) -> Iterator[Run]:
        """Run (or resume) a method. It takes over the equal steps of the method that it ``shares``."""
        own = recipe.settings
        self.say(f"seed {own.seed}: {method}")
        folder = self.path(method, own.seed)
        make_folder(folder.parent)
        if shares is None:
            recipe.plan()
        elif not folder.exists():
            fork(recipe, self.path(shares, own.seed), folder, own)
        with open_run(folder, recipe.name, own) as run:
            run_stages(recipe, run, self.progress, steps)
            try:
                yield run
            finally:
                recipe.close()

    @contextmanager
    def play(
        self, recipe: Recipe, folder: Path, work: Callable[[Run], Coroutine[Any, Any, None]]
    ) -> Iterator[Run]:
        """Open a run and play in it, without its stages."""
        recipe.plan()
        with open_run(folder, recipe.name, recipe.settings) as run:
            try:
                recipe.models(run).engines.run(work(run))
            finally:
                recipe.close()
            yield run

    def add(
        self,
        method: str,
        seed: int,
        version: int,
        tasks: Mapping[str, HeldOutResult],
        means: Mapping[str, float] | None = None,
        trainings: Sequence[Metrics] = (),
    ) -> None:
        """Record the held-out results of one policy."""
        n = len(tasks)
        score, tokens = (
            sum(values) / n
            for values in zip(*((one.score, one.tokens) for one in tasks.values()), strict=True)
        )
        named = {name: round(value, 4) for name, value in (means or {}).items()}
        if turns := (means or {}).get("turns"):
            named["tokens_a_turn"] = round(tokens / turns, 2)
        rows, steps = (sum(int(one[key]) for one in trainings) for key in ("rows", "steps"))
        row = (method, seed, version, n, round(score, 4), round(tokens, 2), rows, steps, named)
        self.rows.append(PolicyResult(*row))
        self.tasks[method, seed] = tasks

    def add_run(
        self,
        method: str,
        run: Run,
        version: int,
        trainings: Sequence[str] = ("train",),
        store: Store | None = None,
    ) -> None:
        """Record one policy of a run, trained in stages ``trainings`` and evaluated in the ``store``."""
        assert isinstance(run.settings, RecipeSettings)
        steps = [StageKey(i, stage) for i in range(version) for stage in trainings]
        done = [run.metrics(step) for step in steps if run.is_finished(step)]
        store = store or run.store
        means = grade_means(store, version, EVALUATION)
        tasks = held_out_results(store, version)
        self.add(method, run.settings.seed, version, tasks, means, done)

    def of(self, method: str) -> Results:
        """Return the newest results of a method by seed."""
        return {seed: tasks for (name, seed), tasks in self.tasks.items() if name == method}

    def claims(self, ours: str, table: Sequence[tuple[str, str, bool, str]]) -> list[Claim]:
        """Test that ``ours`` scores above other methods: (id, sentence, must, other method)."""
        return [
            above(id_, text, self.of(ours), self.of(other), must=must)
            for id_, text, must, other in table
        ]


def make_recipe(name: str, overrides: Sequence[str], micro_world: str = "") -> Any:
    """Return a recipe under its settings; refuse data other than the micro-world, which is the recipe's first one."""
    world = micro_world or played_by(name)[0]
    own = settings(name, [f"environment={world}", *overrides] if micro_world else overrides)
    if own.benchmark != world:
        raise UserError(
            f"{own.benchmark}: claims are tested on the micro-world {world}",
            "leave dataset and environment out; `coterie run` takes any",
        )
    return recipe_of(own)


def marked(stages: Sequence[Stage], *control: object) -> list[Stage]:
    """Return the stages of a control, whose selections and trainings differ from those of the run that it shares."""
    return [
        replace(one, depends=(*one.depends, *control))
        if one.key.stage in ("select", "train")
        else one
        for one in stages
    ]


def sampled_scores(run: Run, version: int, stage: str) -> list[list[float]]:
    """Return the scores of each task's episodes; an episode without a grade has 0."""
    return [
        [outcome.score or 0.0 for outcome in tree.outcomes.values()]
        for tree in run.store.trees(version, stage)
    ]


# -- tests -----------------------------------------------------------------------------------------


def compare(
    ours: Results, theirs: Results, value: Callable[[HeldOutResult], float], margin: float = 0.0
) -> tuple[PairedTest, str]:
    """Test ``ours`` against ``theirs`` (one-sided paired bootstrap over tasks and seeds), and describe the test."""
    pairs = [
        (seed, value(mine), value(theirs[seed][task]))
        for seed, tasks in ours.items()
        for task, mine in sorted(tasks.items())
    ]
    clusters, a, b = zip(*pairs, strict=True)
    test = paired_bootstrap(a, b, margin=margin, seed=0, clusters=clusters)
    interval = f"95% interval of the effect {test.low:.3f} to {test.high:.3f}"
    return test, f"{len(ours)} seeds, {len(pairs)} tasks; {interval}"


def above(
    id_: str,
    claim: str,
    ours: Results,
    theirs: Results,
    *,
    margin: float = 0.0,
    must: bool = True,
    at_no_more_tokens: str = "",
) -> Claim:
    """Claim that ``ours`` scores above ``theirs``, on the seeds of ``ours``, by more than ``margin``.

    With ``at_no_more_tokens``, the name of the other method, also that its mean tokens are no more.
    """
    ours, theirs = common_tasks(ours, {seed: theirs[seed] for seed in ours})
    test, tried = compare(ours, theirs, _score, margin)
    used, holds = token_ratio(ours, theirs), test.p < SIGNIFICANCE
    if at_no_more_tokens:
        tried += f"; {used:.2f} of {at_no_more_tokens}'s tokens"
        holds = holds and used <= 1
    elif any(one.tokens for tasks in theirs.values() for one in tasks.values()):
        tried += f"; {used:.2f} of the tokens"
    return Claim(id_, claim, must, holds, round(test.p, 5), round(test.effect, 4), tried)


def longer(id_: str, claim: str, ours: Results, theirs: Results) -> Claim:
    """Claim that ``ours`` has more tokens a dialogue than ``theirs``."""
    test, tried = compare(ours, theirs, _tokens)
    p = round(test.p, 5)
    return Claim(id_, claim, True, test.p < SIGNIFICANCE, p, round(test.effect, 4), tried)


def brief(
    id_: str, claim: str, ours: Results, theirs: Results, *, share: float, loss: float
) -> Claim:
    """Claim that ``ours`` has less than ``share`` of the tokens and scores lower by less than ``loss``.

    ``p`` is the larger one of both tests, ``effect`` the change in tokens.
    """
    scaled = scale(theirs, lambda one: HeldOutResult(one.score, round(one.tokens * share)))
    tokens, _ = compare(scaled, ours, _tokens)
    score, tried = compare(ours, theirs, _score, -loss)
    p, effect = max(tokens.p, score.p), token_ratio(ours, theirs) - 1
    tried = f"{tried} (score); effect is the change in tokens"
    return Claim(id_, claim, True, p < SIGNIFICANCE, round(p, 5), round(effect, 4), tried)


def scale(results: Results, change: Callable[[HeldOutResult], HeldOutResult]) -> Results:
    """Change every result."""
    return {
        seed: {task: change(one) for task, one in tasks.items()} for seed, tasks in results.items()
    }


def token_ratio(ours: Results, theirs: Results) -> float:
    """Return the tokens of ``ours`` divided by the tokens of ``theirs``."""
    mine, other = (
        sum(one.tokens for tasks in results.values() for one in tasks.values())
        for results in (ours, theirs)
    )
    return mine / max(other, 1)


def common_tasks(one: Results, other: Results) -> tuple[Results, Results]:
    """Keep the tasks that both have a result for."""
    both = {seed: tasks.keys() & other[seed].keys() for seed, tasks in one.items()}
    first, second = (
        {
            seed: {task: own for task, own in tasks.items() if task in both[seed]}
            for seed, tasks in results.items()
        }
        for results in (one, other)
    )
    return first, second


# -- the command -----------------------------------------------------------------------------------


def load(name: str) -> Any:
    """Import the experiment of a name."""
    if name not in NAMES:
        fix = f"use {', '.join(NAMES[:-1])}, or {NAMES[-1]}"
        raise UserError(f"there are no claims {name!r} to test", did_you_mean(name, NAMES) + fix)
    return import_module(f"experiments.{name.replace('/', '_').replace('-', '_')}")


def main(
    name: str,
    folder: Path | None,
    seeds: int,
    overrides: Sequence[str],
    gate: bool,
    console: Console,
) -> None:
    """Measure the gate, if there is one, and test the claims unless only the ``gate`` is wanted."""
    module = load(name)
    if any(pair.startswith("seed=") for pair in overrides):
        raise UserError(
            "claims are tested on several seeds, so seed= can't be set", "use --seeds N"
        )
    if gate and not hasattr(module, "gate"):
        raise UserError(f"the claims of {name} have no gate", "leave out --gate")
    folder = folder or Path("runs") / f"reproduce-{name.replace('/', '-')}"
    progress = ConsoleProgress(console)
    if hasattr(module, "gate"):
        found = module.gate(Experiment(folder / "gate", overrides, [], console.print, progress))
        print_gate(found, alone=gate)
        if not found.passed:
            sys.exit(1)
    if not gate:
        x = Experiment(folder, overrides, range(seeds), console.print, progress)
        make_folder(folder)
        print_claims(x, module.reproduce(x))


def print_gate(gate: Gate, *, alone: bool) -> None:
    """Print the measurements, and one JSON object if it is the last line."""
    values = ", ".join(f"{name} {value:.3f}" for name, value in gate.values.items())
    results().print(f"before training: {values}")
    if not gate.passed:
        results().print(f"that is not enough to test the claims: {gate.asked}")
    if alone or not gate.passed:
        rounded = {name: round(value, 4) for name, value in gate.values.items()}
        print(json.dumps({**rounded, "passed": gate.passed}))


def print_claims(x: Experiment, claims: Sequence[Claim]) -> None:
    """Write per-task results beside the runs; print tables and, as the last line, one JSON object."""
    with (x.folder / "held_out.jsonl").open("w") as file:
        for (method, seed), tasks in x.tasks.items():
            for task, one in sorted(tasks.items()):
                row = {"method": method, "seed": seed, "task": task, **asdict(one)}
                file.write(json.dumps(row) + "\n")
    for table in (_results_table(x.rows, x.min_tasks), _means_table(x.rows)):
        if table.row_count:
            results(120).print(table)
    table = Table("claim", "holds", "effect", "p", "tried", title="claims", box=None)
    for c in claims:
        table.add_row(c.claim, "yes" if c.holds else "NO", f"{c.effect:+.3f}", f"{c.p}", c.tried)
    results().print(table)
    print(json.dumps({"claims": [asdict(c) for c in claims], "rows": [r.row for r in x.rows]}))


def _results_table(rows: Sequence[PolicyResult], least: int) -> Table:
    few = any(r.n < least for r in rows)
    note = f" (fewer than {least} tasks: for trying out, not a test)" * few
    table = Table(title=f"held-out results{note}", box=None)
    table.add_column("method", min_width=max(len(r.method) for r in rows))
    for title in ("seed", "iteration", "n", "score", "tokens", "rows", "steps"):
        table.add_column(title, justify="right")
    for r in rows:
        counts = (r.seed, r.iteration, r.n, f"{r.score:.3f}", f"{r.tokens:.1f}", r.rows, r.steps)
        table.add_row(r.method, *map(str, counts))
    return table


def _means_table(rows: Sequence[PolicyResult]) -> Table:
    """Build a table of the other grades: a row for each, a column for each method's newest policies."""
    newest = {(r.method, r.seed): r for r in rows}.values()
    methods = dict.fromkeys(r.method for r in newest if r.means)
    table = Table("", title="means of each method's newest policies", box=None)
    for method in methods:
        table.add_column(method, justify="right")
    for name in dict.fromkeys(name for r in newest for name in r.means):
        values = [
            [r.means[name] for r in newest if r.method == m and name in r.means] for m in methods
        ]
        table.add_row(name.replace("_", " "), *(f"{fmean(v):.2f}" if v else "" for v in values))
    return table
