"""Output of ``coterie evaluate BENCHMARK``: a table, a page with examples, and one JSON object (the last line).

The object is {"benchmark", "metric", "rows"}, with a row for each policy, or for each policy and number of dialogues k.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.table import Table

from coterie.environments.protocol import WELL_FORMED, agents_of
from coterie.errors import UserError
from coterie.evaluation import Estimate, difference_interval, mean_interval
from coterie.evaluation import Point as CurvePoint
from coterie.models.chat import ChatRenderer
from coterie.record.store import Store
from coterie.reports import page
from coterie.reports.charts import Chart, Series, score_point
from coterie.reports.examples import Example, Shown, example, rollout
from coterie.reports.page import Report, Section, write_page
from coterie.reports.pictures import add_pictures
from coterie.rollout.episodes import CUT_OFF
from coterie.runs.benchmark import BenchmarkSettings, BestOfN, Consistency, WinRate
from coterie.runs.loop import EVALUATION, command_line
from coterie.runs.work_items import Evaluation, held_out_draws
from coterie.terminal import results

CURVE = ("k", "coverage", "95%", "majority", "95%", "average", "spread", "tokens", "fraction")
BY, DIFFERENCES = "by", "differences"
MOST = 6
"""Maximum number of metrics next to the score."""
EXAMPLES = 12
"""Number of example tasks on the page."""
WIDTH = 120
"""Table width in columns. A narrow terminal wraps its lines instead of hiding columns."""


@dataclass(frozen=True)
class Figures:
    """Results of one policy."""

    label: str
    version: int
    evaluation: Evaluation | Consistency
    store: Path
    """Store of the dialogues. The page is written to the folder of the last store."""
    decoder: Callable[[str], ChatRenderer] | None = None
    """Function that returns the renderer of an agent's model; ``None`` for a server."""
    cost: float | None = None
    """Cost of all dialogues, in the currency of the prices; ``None`` without prices, or if some were reused."""
    picked: BestOfN | None = None
    """Best of n by a judge, if the settings have a judge."""
    wins: WinRate | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """Value of the column ``by`` of each task."""

    @cached_property
    def scores(self) -> dict[str, float]:
        """Mean score of each task."""
        samples = self.evaluation.points[-1].k if isinstance(self.evaluation, Consistency) else 1
        with Store.open(self.store, read_only=True) as store:
            draws = held_out_draws(store, store.iterations(EVALUATION)[-1], samples)
        return {task: fmean(draw.score for draw in several) for task, several in draws.items()}

    @property
    def by_value(self) -> dict[str, list[float]]:
        """Scores of the tasks with each value of the column, in the order of the values."""
        groups: dict[str, list[float]] = {}
        for task in sorted(self.scores, key=lambda task: self.columns.get(task, "")):
            if task in self.columns:
                groups.setdefault(self.columns[task], []).append(self.scores[task])
        return groups

    def minus(self, baseline: "Figures") -> tuple[float, tuple[float, float], int]:
        """Return the mean difference of the scores on common tasks, its 95% interval, and their number."""
        common = sorted(self.scores.keys() & baseline.scores.keys())
        pairwise = [self.scores[task] - baseline.scores[task] for task in common]
        if not pairwise:
            raise UserError(
                f"{self.label} and {baseline.label} have no graded task in common",
                "evaluate more tasks, or each policy by itself",
            )
        return fmean(pairwise), difference_interval(pairwise, seed=0), len(pairwise)


def show(
    benchmark: str, settings: BenchmarkSettings, figures: Sequence[Figures], usage: str | None
) -> None:
    """Print the table, the path of the page and, as the last line, the JSON object."""
    console = results(WIDTH)
    metric = settings.build_environment().metric
    title = f"{benchmark}, held-out tasks, {metric}"
    title += "" if settings.method == "dialogue" else f", {settings.method}"
    single = [(o.label, o.evaluation) for o in figures if isinstance(o.evaluation, Evaluation)]
    if single:
        console.print(score_table(title, single, failed=True))
    report = evaluation_report(benchmark, settings, figures, command_line(sys.argv))
    for section in report.sections:
        if section.charts or (section.rows and section.id in (BY, DIFFERENCES)):
            console.print(_table(section.title, [section.heads, *section.rows]))
            console.print(section.intro, soft_wrap=True)
    for result in figures:
        if (picked := result.picked) is not None:
            score = _with_interval(picked.score, picked.interval)
            line = f"{result.label}: {score} best of {picked.n} by {picked.judge}; {picked.unreadable} tasks"
            console.print(f"{line} without a readable reply", soft_wrap=True)
        if (wins := result.wins) is not None:
            rate = _with_interval(wins.rate, wins.interval)
            left_out = f" ({wins.left_out} left out)" * bool(wins.left_out)
            line = f"{result.label}: win rate {rate} against {wins.other} on {wins.n} tasks{left_out}; a win is a"
            line += f" higher score, and each of the {wins.ties} ties counts half"
            console.print(f"{line} (SWEET-RL does not say how it counts ties)", soft_wrap=True)
    file = figures[-1].store.with_suffix(".html")
    write_page(report, file)
    console.print(f"page: {file}", soft_wrap=True)
    rows = [
        {"method": settings.method, **row}
        for result in figures
        for row in _rows(result, figures[0])
    ]
    output = {"benchmark": benchmark, "metric": metric, "rows": rows}
    print(json.dumps(output | ({} if usage is None else {"usage": usage})))


def _rows(figures: Figures, baseline: Figures) -> list[dict[str, Any]]:
    result = figures.evaluation
    common: dict[str, Any] = {"policy": figures.label, "version": figures.version}
    common |= {"n": result.n, "failed": result.failed}
    means = {name: round(value, 4) for name, value in result.means.items()}
    # All differences are from the first policy.
    if figures is not baseline:
        difference, interval, n = figures.minus(baseline)
        common |= _measure("difference", difference, interval)
        common |= {"difference_from": baseline.label, "difference_n": n}
    if figures.columns:
        common["by"] = {
            value: {
                "n": len(scores),
                **_measure("score", fmean(scores), mean_interval(scores, seed=0)),
            }
            for value, scores in figures.by_value.items()
        }
    if wins := figures.wins:
        common |= _measure("win_rate", wins.rate, wins.interval)
        common |= {"ties": wins.ties, "against": wins.other, "compared": wins.n}
    if isinstance(result, Evaluation):
        score = {
            **_measure("score", result.score, (result.low, result.high)),
            "tokens": round(result.tokens, 2),
            "tokens_per_score": _ratio(result.tokens, result.score),
            **_cost_of_pass(figures.cost, result.score * result.n),
        }
        return [{**common, **score, **means}]
    rows = [
        {
            **common,
            "k": point.k,
            **_measure("coverage", point.coverage.mean, point.coverage.interval),
            **_measure("majority", point.majority.mean, point.majority.interval),
            "average": round(point.average, 4),
            "spread": point.spread and round(point.spread, 4),
            "tokens": round(point.tokens, 2),
            "tokens_per_score": _ratio(point.tokens / point.k, point.average),
            **({} if point.fraction is None else {"fraction": round(point.fraction, 4)}),
            "of_all": means,
        }
        for point in result.points
    ]
    last_point = result.points[-1]
    # Costs are known only of all rollouts together, which the last row has.
    rows[-1] |= _cost_of_pass(figures.cost, last_point.average * last_point.k * result.n)
    if picked := figures.picked:
        rows[-1] |= _measure("picked", picked.score, picked.interval)
        rows[-1] |= {"picked_by": picked.judge, "unreadable_picks": picked.unreadable}
    return rows


def _measure(
    name: str, value: float, interval: tuple[float, float] | None
) -> dict[str, float | list[float] | None]:
    """Return a mean and its interval (``NAME_ci``), rounded."""
    ends = interval and [round(end, 4) for end in interval]
    return {name: round(value, 4), f"{name}_ci": ends}


def _ratio(cost: float, gain: float) -> float | None:
    """Return the cost per unit of gain; ``None`` without gain."""
    return round(cost / gain, 2) if gain > 0 else None


def _cost_of_pass(cost: float | None, passes: float) -> dict[str, float | None]:
    if cost is None:
        return {}
    each = round(cost / passes, 6) if passes > 0 else None
    return {"cost": round(cost, 6), "cost_of_pass": each}


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def score_table(
    title: str, rows: Sequence[tuple[str, Evaluation]], *, failed: bool = False
) -> Table:
    """Return a table with a row for each policy, or with a column for each policy if there are many metrics."""
    names = list(dict.fromkeys(name for _, result in rows for name in result.means))
    words = [name.replace("_", " ") for name in names]
    heads = ["policy", "score", "95% interval", "tokens", *words, "n", "failed"]
    lines = []
    for label, result in rows:
        means = (f"{result.means[name]:.2f}" if name in result.means else "" for name in names)
        interval, tokens = f"{result.low:.3f} to {result.high:.3f}", f"{result.tokens:.1f}"
        counts = (f"{result.n}", f"{result.failed}")
        lines.append([label, f"{result.score:.3f}", interval, tokens, *means, *counts])
    # A row for each metric, with a column for each policy; transposed if that fits the width.
    table = list(zip(heads, *lines, strict=True))
    if not failed:
        del table[-1]
    if len(names) <= MOST:
        table = list(zip(*table, strict=True))
    return _table(title, table)


def _cells(point: CurvePoint) -> tuple[str, ...]:
    """Return the cells of the columns ``CURVE``."""
    cells = [f"{point.k}"]
    for estimate in (point.coverage, point.majority):
        low, high = estimate.interval or (estimate.mean, estimate.mean)
        cells += [f"{estimate.mean:.3f}", f"{low:.3f}–{high:.3f}"]
    rates = (point.spread, point.fraction)
    spread, fraction = ("" if rate is None else f"{rate:.3f}" for rate in rates)
    return (*cells, f"{point.average:.3f}", spread, f"{point.tokens:,.1f}", fraction)


def _table(title: str, lines: Sequence[Sequence[str]]) -> Table:
    """Return a table of a line of heads and lines of cells."""
    table = Table(title=title, box=None)
    for number, head in enumerate(lines[0]):
        # The first column may wrap, but numbers stay in one line.
        fold: Literal["fold", "ellipsis"] = "fold" if number == 0 else "ellipsis"
        table.add_column(head, justify="right", overflow=fold, no_wrap=number > 0)
    for line in lines[1:]:
        table.add_row(*line)
    return table


def evaluation_report(
    benchmark: str, settings: BenchmarkSettings, figures: Sequence[Figures], command: str
) -> Report:
    """Return the page of an evaluation: scores of all policies, and their rollouts side by side."""
    metric = settings.build_environment().metric
    parts, single = list[Section](), list[tuple[str, Evaluation]]()
    for n, result in enumerate(figures):
        if isinstance(result.evaluation, Consistency):
            parts.append(scaling_section(n, result.label, result.evaluation, metric))
        else:
            single.append((result.label, result.evaluation))
    if single:
        parts.append(page.scores(single, metric))
    parts += [_differences(figures, metric), _values(figures, getattr(settings, "by", None))]
    examples = _examples(settings, figures)
    intro = (
        "Tasks whose scores differ come first, then tasks without a right answer. Nothing is trained here: replies are "
        "in black, prompts in grey."
    )
    with Store.open(figures[-1].store, read_only=True) as store:
        tools = page.tools(store.calls())
    return Report(
        kind="evaluation",
        title=f"{', '.join(result.label for result in figures)} on {benchmark}",
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


def _differences(figures: Sequence[Figures], metric: str) -> Section:
    """Compare all policies with the first one, task by task."""
    rows = []
    for result in figures[1:]:
        difference, (low, high), n = result.minus(figures[0])
        interval = f"{page.signed(low, 3)} to {page.signed(high, 3)}"
        rows.append((result.label, page.signed(difference, 3), interval, f"{n:,}"))
    return Section(
        DIFFERENCES,
        f"Difference from {figures[0].label}",
        f"{metric}: mean difference on the same tasks, with its 95% interval (paired bootstrap over tasks). Where the "
        "interval contains 0, these tasks do not show which policy is better.",
        ("policy", "difference", "95% interval", "tasks"),
        tuple(rows),
    )


def _values(figures: Sequence[Figures], column: str | None) -> Section:
    """Return the score of each policy on the tasks of each value of a column."""
    rows = []
    for value in dict.fromkeys(value for result in figures for value in result.by_value):
        for result in figures:
            scores = result.by_value.get(value)
            if scores:
                interval = "{:.3f} to {:.3f}".format(*mean_interval(scores, seed=0))
                cells = (f"{fmean(scores):.3f}", interval, f"{len(scores):,}")
                rows.append((value, result.label, *cells))
    intro = "Intervals are 95% intervals over the tasks of a value."
    heads = (column or "", "policy", "score", "95% interval", "tasks")
    return Section(BY, f"Scores by {column}", intro, heads, tuple(rows))


def scaling_section(n: int, label: str, consistency: Consistency, metric: str) -> Section:
    """Return coverage and majority by the number of rollouts a task, and by their tokens."""
    # Without an interval, a point is left out of table and charts.
    marked = [p for p in consistency.points if p.coverage.interval and p.majority.interval]
    means = consistency.means
    shares = {name: means[name] for name in (WELL_FORMED, CUT_OFF) if name in means}
    left_out = f"; {means['left_out']} left out" if "left_out" in means else ""
    charts = []
    for attribute, unit in (("k", "rollouts"), ("tokens", "tokens")):
        lines = []
        for name in ("coverage", "majority"):
            points = []
            for point in marked:
                estimate: Estimate = getattr(point, name)
                low, high = estimate.interval or (estimate.mean, estimate.mean)
                x, title = getattr(point, attribute), f"{name} of {point.k}: {metric}"
                points.append(score_point(x, title, estimate.mean, low, high))
            lines.append(Series(name, tuple(points), "grey" if name == "coverage" else "accent"))
        title, axis = f"{metric} by {unit}", f"{unit} a task (log scale)"
        charts.append(
            Chart(f"{unit}-{n}", title, axis, metric, tuple(lines), log=True, y_range=(0, 1))
        )
    return Section(
        f"scaling-{n}",
        f"{label}: more rollouts of each task",
        f"{metric}, {consistency.n:,} held-out tasks; {consistency.failed:,} rollouts failed{left_out}"
        + "".join(f"; {name.replace('_', ' ')} {share:.2f}" for name, share in shares.items())
        + ". Bands are 95% intervals over tasks.",
        CURVE,
        tuple(map(_cells, marked)),
        tuple(charts),
    )


def _examples(settings: BenchmarkSettings, figures: Sequence[Figures]) -> tuple[Example, ...]:
    """Return example tasks with the rollouts of all policies."""
    decoders = {result.label: result.decoder for result in figures if result.decoder}
    agents = agents_of(settings.build_environment())
    # Rollouts share a prompt on the page only if the models have the same vocabulary.
    vocabularies = [of(agent).tokenizer.get_vocab() for of in decoders.values() for agent in agents]
    same = all(vocabulary == vocabularies[0] for vocabulary in vocabularies)
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(f.store, read_only=True)) for f in figures]
        attempts = [store.iterations(EVALUATION)[-1] for store in stores]
        scores: dict[str, list[float]] = {}
        for store, attempt in zip(stores, attempts, strict=True):
            for tree in store.outlines(attempt, EVALUATION):
                outcomes = [outcome.score or 0.0 for outcome in tree.outcomes.values()]
                scores.setdefault(tree.task, []).extend(outcomes)
        examples, environment = [], settings.build_environment()
        for task in _picked_tasks(scores):
            samples: list[Shown] = []
            for result, store, attempt in zip(figures, stores, attempts, strict=True):
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
        return add_pictures(examples, environment, figures[-1].store.with_suffix("") / "pictures")


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
