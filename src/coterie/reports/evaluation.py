"""Page of an evaluation: scores of all policies, their differences, and examples of their rollouts side by side."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from coterie.environments.protocol import WELL_FORMED, agents_of
from coterie.evaluation import Estimate, Point
from coterie.models.chat import ChatRenderer
from coterie.record.store import Store
from coterie.reports import page
from coterie.reports.charts import Chart, Series, score_point
from coterie.reports.examples import Example, ExampleSample, add_pictures, example, rollout
from coterie.reports.page import Report, Section
from coterie.rollout.episodes import CUT_OFF
from coterie.runs.benchmark import BenchmarkSettings
from coterie.runs.evaluation import Evaluation
from coterie.runs.loop import EVALUATION

CURVE = ("k", "coverage", "95%", "majority", "95%", "average", "spread", "tokens", "fraction")
BY, DIFFERENCES = "by", "differences"
EXAMPLES = 12
"""Number of example tasks on the page."""


def evaluation_report(
    settings: BenchmarkSettings,
    results: Sequence[Evaluation],
    command: str,
    column: str | None = None,
) -> Report:
    """Return the page of an evaluation: scores of all policies, and their rollouts side by side.

    Args:
        settings: Settings of the benchmark.
        results: Results of each policy; the first policy is the baseline of the differences.
        command: Command to show.
        column: Column of the rows by whose values the scores are grouped.
    """
    metric = settings.build_environment().metric
    if settings.samples == 1:
        parts = [page.scores(results, metric)]
    else:
        parts = [scaling_section(n, result, metric) for n, result in enumerate(results)]
    parts += [_differences(results, metric), _values(results, column)]
    examples = _examples(settings, results)
    intro = (
        "Tasks whose scores differ come first, then tasks without a right answer. Nothing is trained here: replies are "
        "in black, prompts in grey."
    )
    with Store.open(results[-1].store, read_only=True) as store:
        tools = page.tools(store.calls())
    return Report(
        kind="evaluation",
        title=f"{', '.join(result.label for result in results)} on {settings.benchmark}",
        facts=(
            ("method", settings.method),
            ("temperature", f"{settings.temperature:g}"),
            ("rollouts a task", f"{settings.samples}"),
            ("seed", f"{settings.seed}"),
        ),
        commands=(command,) if command else (),
        sections=(
            *parts,
            page.changes(settings, None),
            Section("examples", "Examples", intro, examples=examples),
            tools,
            page.settings(settings),
        ),
    )


def _differences(results: Sequence[Evaluation], metric: str) -> Section:
    """Compare all policies with the first one, task by task."""
    rows = []
    for result in results[1:]:
        comparison = result.compare(results[0])
        difference = comparison.difference
        mean, *ends = (page.signed(n, 3) for n in (difference.mean, *difference.ends))
        rows.append((result.label, mean, " to ".join(ends), f"{comparison.n:,}"))
    return Section(
        DIFFERENCES,
        f"Difference from {results[0].label}",
        f"{metric}: mean difference on the same tasks, with its 95% interval (paired bootstrap over tasks). Where the "
        "interval contains 0, these tasks do not show which policy is better.",
        ("policy", "difference", "95% interval", "tasks"),
        tuple(rows),
    )


def _values(results: Sequence[Evaluation], column: str | None) -> Section:
    """Return the score of each policy on the tasks of each value of a column."""
    rows = []
    for value in dict.fromkeys(value for result in results for value in result.by_value):
        for result in results:
            if value in result.by_value:
                n, score = result.by_value[value]
                interval = "{:.3f} to {:.3f}".format(*score.ends)
                rows.append((value, result.label, f"{score.mean:.3f}", interval, f"{n:,}"))
    intro = "Intervals are 95% intervals over the tasks of a value."
    heads = (column or "", "policy", "score", "95% interval", "tasks")
    return Section(BY, f"Scores by {column}", intro, heads, tuple(rows))


def scaling_section(n: int, result: Evaluation, metric: str) -> Section:
    """Return coverage and majority by the number of rollouts a task, and by their tokens."""
    # Without an interval, a point is left out of table and charts.
    marked = [p for p in result.points if p.coverage.interval and p.majority.interval]
    means = result.means
    shares = {name: means[name] for name in (WELL_FORMED, CUT_OFF) if name in means}
    left_out = f"; {means['left_out']} left out" if "left_out" in means else ""
    charts = []
    for attribute, unit in (("k", "rollouts"), ("tokens", "tokens")):
        lines = []
        for name in ("coverage", "majority"):
            points = []
            for point in marked:
                estimate: Estimate = getattr(point, name)
                x, title = getattr(point, attribute), f"{name} of {point.k}: {metric}"
                points.append(score_point(x, title, estimate.mean, *estimate.ends))
            lines.append(Series(name, tuple(points), "grey" if name == "coverage" else "accent"))
        title, axis = f"{metric} by {unit}", f"{unit} a task (log scale)"
        charts.append(
            Chart(f"{unit}-{n}", title, axis, metric, tuple(lines), log=True, y_range=(0, 1))
        )
    return Section(
        f"scaling-{n}",
        f"{result.label}: more rollouts of each task",
        f"{metric}, {result.n:,} held-out tasks; {result.failed:,} rollouts failed{left_out}"
        + "".join(f"; {name.replace('_', ' ')} {share:.2f}" for name, share in shares.items())
        + ". Bands are 95% intervals over tasks.",
        CURVE,
        tuple(map(_cells, marked)),
        tuple(charts),
    )


def _cells(point: Point) -> tuple[str, ...]:
    """Return the cells of the columns ``CURVE``."""
    cells = [f"{point.k}"]
    for estimate in (point.coverage, point.majority):
        cells += [f"{estimate.mean:.3f}", "{:.3f}–{:.3f}".format(*estimate.ends)]
    rates = (point.spread, point.fraction)
    spread, fraction = ("" if rate is None else f"{rate:.3f}" for rate in rates)
    return (*cells, f"{point.average:.3f}", spread, f"{point.tokens:,.1f}", fraction)


def _examples(settings: BenchmarkSettings, results: Sequence[Evaluation]) -> tuple[Example, ...]:
    """Return example tasks with the rollouts of all policies."""
    decoders = {result.label: result.decoder for result in results if result.decoder}
    agents = agents_of(settings.build_environment())
    # Rollouts share a prompt on the page only if the models have the same vocabulary.
    vocabularies = [of(agent).tokenizer.get_vocab() for of in decoders.values() for agent in agents]
    same = all(vocabulary == vocabularies[0] for vocabulary in vocabularies)
    with ExitStack() as stack:
        stores = [
            stack.enter_context(Store.open(result.store, read_only=True)) for result in results
        ]
        attempts = [store.iterations(EVALUATION)[-1] for store in stores]
        scores: dict[str, list[float]] = {}
        for store, attempt in zip(stores, attempts, strict=True):
            for tree in store.outlines(attempt, EVALUATION):
                outcomes = [outcome.score or 0.0 for outcome in tree.outcomes.values()]
                scores.setdefault(tree.task, []).extend(outcomes)
        examples, environment = [], settings.build_environment()
        for task in _picked_tasks(scores):
            samples: list[ExampleSample] = []
            for result, store, attempt in zip(results, stores, attempts, strict=True):
                if task not in store.tree_tasks(attempt, EVALUATION):
                    continue
                tree = store.tree(attempt, EVALUATION, task)
                for outcome, path in tree.trajectories():
                    number = f", rollout {outcome.sample}" if settings.samples > 1 else ""
                    sample = rollout(tree, outcome, path, f"{result.label}{number}")
                    prefix = "" if same else f"{result.label}: "
                    named = tuple((f"{prefix}{agent}", row) for agent, row in sample.rows)
                    samples.append(replace(sample, rows=named))
            first_task, decode = stores[0].task(task), partial(_renderer, decoders)
            example_ = example(first_task, samples, decode, environment=environment)
            examples.append((example_, first_task, samples))
        return add_pictures(examples, environment, results[-1].store.with_suffix("") / "pictures")


def _renderer(decoders: Mapping[str, Callable[[str], ChatRenderer]], name: str) -> ChatRenderer:
    # The label of a policy precedes the agent only where vocabularies differ.
    label, _, agent = name.rpartition(": ")
    return (decoders[label] if label else next(iter(decoders.values())))(agent)


def _picked_tasks(scores: Mapping[str, Sequence[float]]) -> list[str]:
    """Choose example tasks: differing scores first, then wrong, then right."""
    ends = {task: (min(of_task), max(of_task)) for task, of_task in scores.items() if of_task}
    differing = [task for task, (low, high) in ends.items() if low < high]
    wrong = [task for task, (low, high) in ends.items() if low == high < 0.5]
    right = [task for task, (low, high) in ends.items() if low == high >= 0.5]
    # A third of each kind, and more of the others where one kind has too few tasks.
    third = EXAMPLES // 3
    chosen = [*differing[:third], *wrong[:third], *right[:third]]
    remaining = [task for task in (*differing, *wrong, *right) if task not in chosen]
    return chosen + remaining[: EXAMPLES - len(chosen)]
