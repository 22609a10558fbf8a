"""What ``coterie evaluate BENCHMARK`` prints: a table, pages of plots, and one JSON object.

With one dialogue a task, the last line printed is {"benchmark", "rows": [{"policy", "version",
"method", "n", "failed", "score", "score_ci", "tokens", "tokens_per_score", "well_formed", "cut_off"}]}; with more, rows
are by their number k: {"policy", "version", "method", "k", "n", "failed", "coverage",
"coverage_ci", "majority", "majority_ci", "average", "spread", "tokens", "tokens_per_score", "of_all": {"well_formed",
"cut_off"}}, the intervals at powers of two and at the last k, else null. The last row also has ``"picked"`` (best of n
by a judge), and ``"cost"`` and ``"cost_of_pass"`` where prices are given. For an endpoint there is also ``"usage"``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from coterie.environments.protocol import WELL_FORMED
from coterie.evaluation.self_consistency import Estimate
from coterie.reports.scaling import ScalingReport, write_scaling_page
from coterie.rollout.episodes import CUT_OFF
from coterie.runs.benchmark import BenchmarkSettings, Consistency
from coterie.runs.best_of_n import BestOfN
from coterie.runs.evaluation_results import Evaluation
from coterie.terminal.console import results
from coterie.terminal.means import beside, in_words, means_table, share

WIDTH = 112
"""Columns that the table may take: one that a narrow terminal breaks into lines still has all its figures."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one policy came to."""

    label: str
    version: int
    found: Evaluation | Consistency
    store: Path
    """Where its dialogues are; a page of plots is written beside it."""
    cost: float | None = None
    """Of all its dialogues, in the currency of the prices; ``None`` without prices, or if some were played before."""
    picked: BestOfN | None = None
    """Best of n by a judge, if there is one."""


def show(
    benchmark: str, settings: BenchmarkSettings, figures: Sequence[Figures], usage: str | None
) -> None:
    """Print the table, where the pages are, and the JSON object as the last line."""
    console = results(WIDTH)
    title = f"{benchmark}, held-out tasks"
    title += "" if settings.method == "dialogue" else f", {settings.method}"
    console.print(_curves(title, figures) if settings.samples > 1 else _scores(title, figures))
    means = [one.found.means for one in figures if isinstance(one.found, Evaluation)]
    if (more := means_table([one.label for one in figures], means)) is not None:
        console.print(more)
    for one in figures:
        if isinstance(one.found, Consistency):
            page = one.store.with_suffix(".html")
            write_scaling_page(_report(benchmark, settings, one, one.found), page)
            console.print(f"{one.label}: plot in {page}", soft_wrap=True)
        if one.picked is not None:
            console.print(_picked_line(one.label, one.picked), soft_wrap=True)
    rows = [{"method": settings.method, **row} for one in figures for row in _rows(one)]
    result = {"benchmark": benchmark, "rows": rows}
    print(json.dumps(result | ({} if usage is None else {"usage": usage})))


def _rows(one: Figures) -> list[dict[str, Any]]:
    found = one.found
    common = {"policy": one.label, "version": one.version, "n": found.n, "failed": found.failed}
    if isinstance(found, Evaluation):
        score = {
            "score": round(found.score, 4),
            "score_ci": [round(found.low, 4), round(found.high, 4)],
            "tokens": round(found.tokens, 2),
            "tokens_per_score": _ratio(found.tokens, found.score),
            **_cost_of_pass(one.cost, found.score * found.n),
            **{name: round(value, 4) for name, value in found.means.items()},
        }
        return [common | score]
    rows = [
        common
        | {
            "k": point.k,
            "coverage": round(point.coverage.mean, 4),
            "coverage_ci": _rounded(point.coverage),
            "majority": round(point.majority.mean, 4),
            "majority_ci": _rounded(point.majority),
            "average": round(point.average, 4),
            "spread": point.spread and round(point.spread, 4),
            "tokens": round(point.tokens, 2),
            "tokens_per_score": _ratio(point.tokens / point.k, point.average),
            **({} if point.fraction is None else {"fraction": round(point.fraction, 4)}),
            "of_all": {name: round(value, 4) for name, value in found.means.items()},
        }
        for point in found.points
    ]
    last = found.points[-1]
    rows[-1] |= _cost_of_pass(one.cost, last.average * last.k * found.n) | _picked_row(one.picked)
    return rows


def _ratio(cost: float, gain: float) -> float | None:
    """What one costs; ``None`` if there is none."""
    return round(cost / gain, 2) if gain > 0 else None


def _cost_of_pass(cost: float | None, passes: float) -> dict[str, float | None]:
    if cost is None:
        return {}
    each = round(cost / passes, 6) if passes > 0 else None
    return {"cost": round(cost, 6), "cost_of_pass": each}


def _picked_row(picked: BestOfN | None) -> dict[str, Any]:
    if picked is None:
        return {}
    interval = [round(end, 4) for end in picked.interval]
    return {
        "picked": round(picked.score, 4),
        "picked_ci": interval,
        "picked_by": picked.judge,
        "unreadable_picks": picked.unreadable,
    }


def _picked_line(label: str, picked: BestOfN) -> str:
    low, high = picked.interval
    text = f"{label}: {picked.score:.3f} ({low:.3f} to {high:.3f}) best of {picked.n} by {picked.judge}"
    return text + f"; {picked.unreadable} tasks without a reply that can be read" * bool(
        picked.unreadable
    )


def _rounded(estimate: Estimate) -> list[float] | None:
    return estimate.interval and [round(end, 4) for end in estimate.interval]


def _scores(title: str, figures: Sequence[Figures]) -> Table:
    names = beside([one.found.means for one in figures if isinstance(one.found, Evaluation)])
    heads = map(in_words, names)
    table = _table(title, "score", "95% interval", "tokens", *heads, "n", "failed")
    for one in figures:
        assert isinstance(one.found, Evaluation)
        found = one.found
        table.add_row(
            one.label,
            f"{found.score:.3f}",
            f"{found.low:.3f} to {found.high:.3f}",
            f"{found.tokens:.1f}",
            *(share(found.means, name) for name in names),
            f"{found.n}",
            f"{found.failed}",
        )
    return table


def _curves(title: str, figures: Sequence[Figures]) -> Table:
    """Several dialogues a task: coverage and majority, where there are intervals."""
    shares = (WELL_FORMED, CUT_OFF)
    found = [(one.label, one.found) for one in figures if isinstance(one.found, Consistency)]
    tested = any(point.fraction is not None for _, some in found for point in some.points)
    names = (
        *("k", "coverage", "95%", "majority", "95%", "average", "spread", "tokens"),
        *(["best fraction"] if tested else []),
        *("failed", *map(in_words, shares)),
    )
    table = _table(f"{title}, {figures[0].found.n} with k dialogues each", *names)
    for label, some in found:
        for point in some.points:
            if point.coverage.interval and point.majority.interval:
                fraction = "" if point.fraction is None else f"{point.fraction:.3f}"
                table.add_row(
                    label,
                    f"{point.k}",
                    f"{point.coverage.mean:.3f}",
                    "{:.3f}-{:.3f}".format(*point.coverage.interval),
                    f"{point.majority.mean:.3f}",
                    "{:.3f}-{:.3f}".format(*point.majority.interval),
                    f"{point.average:.3f}",
                    "" if point.spread is None else f"{point.spread:.3f}",
                    f"{point.tokens:.1f}",
                    *([fraction] if tested else []),
                    f"{some.failed}",
                    *(share(some.means, name) for name in shares),
                )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=None)
    table.add_column("policy")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _report(
    benchmark: str, settings: BenchmarkSettings, one: Figures, found: Consistency
) -> ScalingReport:
    return ScalingReport(
        benchmark=benchmark,
        policy=one.label,
        method=settings.method,
        metric=settings.build_environment().metric,
        temperature=settings.temperature,
        n=found.n,
        failed=found.failed,
        points=found.points,
    )
