"""Tables and charts of an evaluation: scores of all policies, their differences, and what more rollouts bring."""

from collections.abc import Sequence

from coterie.environments.protocol import CUT_OFF, WELL_FORMED
from coterie.evaluation import Estimate, Point
from coterie.record.browse import Fields
from coterie.reports import sections
from coterie.reports.sections import chart, line, section, signed
from coterie.runs.benchmark import BenchmarkSettings
from coterie.runs.evaluation import Evaluation

CURVE = ("k", "coverage", "95%", "majority", "95%", "average", "spread", "tokens", "fraction")
BY, DIFFERENCES = "by", "differences"


def evaluation_sections(
    settings: BenchmarkSettings, results: Sequence[Evaluation], metric: str, column: str | None
) -> list[Fields]:
    """Return the tables of an evaluation, with texts as cells, for the page and the terminal.

    Args:
        settings: Settings of the benchmark.
        results: Results of each policy; the first policy is the baseline of the differences.
        metric: Name of the score.
        column: Column of the rows by whose values the scores are grouped.
    """
    if settings.samples == 1:
        parts = [sections.scores(results, metric)]
    else:
        parts = [scaling_section(n, result, metric) for n, result in enumerate(results)]
    return [*parts, _differences(results, metric), _values(results, column)]


def _differences(results: Sequence[Evaluation], metric: str) -> Fields:
    """Compare all policies with the first one, task by task."""
    rows = []
    for result in results[1:]:
        comparison = result.compare(results[0])
        difference = comparison.difference
        mean, *ends = (signed(n, 3) for n in (difference.mean, *difference.ends))
        rows.append((result.label, mean, " to ".join(ends), f"{comparison.n:,}"))
    return section(
        DIFFERENCES,
        f"Difference from {results[0].label}",
        f"{metric}: mean difference on the same tasks, with its 95% interval (paired bootstrap over tasks). Where the "
        "interval contains 0, these tasks do not show which policy is better.",
        ("policy", "difference", "95% interval", "tasks"),
        rows,
    )


def _values(results: Sequence[Evaluation], column: str | None) -> Fields:
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
    return section(BY, f"Scores by {column}", intro, heads, rows)


def scaling_section(n: int, result: Evaluation, metric: str) -> Fields:
    """Return coverage and majority by the number of rollouts a task, and by their tokens."""
    # Without an interval, a point is left out of table and charts.
    marked = [p for p in result.points if p.coverage.interval and p.majority.interval]
    means = result.means
    shares = {name: means[name] for name in (WELL_FORMED, CUT_OFF) if name in means}
    left_out = f"; {means['left_out']} left out" if "left_out" in means else ""
    charts = []
    for attribute, unit in (("k", "rollouts"), ("tokens", "tokens")):
        estimates: dict[str, list[Estimate]] = {
            name: [getattr(point, name) for point in marked] for name in ("coverage", "majority")
        }
        lines = [
            line(name, ((e.mean, *e.ends) for e in of)) for name, of in estimates.items() if of
        ]
        # Names have equal distances, like the powers of two on a log scale.
        steps = [f"{getattr(point, attribute):,.0f}" for point in marked]
        charts.append(chart(f"{metric} by {unit}", f"{unit} a task", steps, lines))
    return section(
        f"scaling-{n}",
        f"{result.label}: more rollouts of each task",
        f"{metric}, {result.n:,} held-out tasks; {result.failed:,} rollouts failed{left_out}"
        + "".join(f"; {name.replace('_', ' ')} {share:.2f}" for name, share in shares.items())
        + ". Bands are 95% intervals over tasks.",
        CURVE,
        map(_cells, marked),
        charts if marked else (),
    )


def _cells(point: Point) -> tuple[str, ...]:
    """Return the cells of the columns ``CURVE``."""
    cells = [f"{point.k}"]
    for estimate in (point.coverage, point.majority):
        cells += [f"{estimate.mean:.3f}", "{:.3f}–{:.3f}".format(*estimate.ends)]
    rates = (point.spread, point.fraction)
    spread, fraction = ("" if rate is None else f"{rate:.3f}" for rate in rates)
    return (*cells, f"{point.average:.3f}", spread, f"{point.tokens:,.1f}", fraction)
