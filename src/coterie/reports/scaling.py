"""The page of a policy that was sampled several times a task: what more dialogues are worth.

Two charts of coverage and majority, as in figures 3 and 4 of Optima (arXiv 2410.08115): by number of
dialogues, each doubling as wide as the next, and by tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.evaluation.self_consistency import Estimate, Point
from coterie.reports.axes import WIDE, Scale, Tick, axis, doubling_axis, log_axis, polyline
from coterie.reports.charts import Chart, Dot, Series, Tone
from coterie.reports.page import write_template


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """All that the page shows."""

    benchmark: str
    policy: str
    method: str
    metric: str
    temperature: float
    n: int
    failed: int
    points: tuple[Point, ...]
    """For 1, 2, ... dialogues a task; those with intervals are marked."""

    @property
    def marked(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.coverage.interval)


def write_scaling_page(report: ScalingReport, path: Path) -> None:
    """Write the page, one HTML file that needs nothing else. Equal reports give equal bytes."""
    context = {"report": report, "last": report.points[-1], "charts": scaling_charts(report)}
    write_template("scaling.html.j2", context, path)


def scaling_charts(report: ScalingReport) -> tuple[Chart, Chart]:
    """Coverage and majority by dialogues, and by tokens a task."""
    left, right = WIDE.left, WIDE.width - WIDE.right
    by_k, k_ticks = doubling_axis([point.k for point in report.marked], left, right)
    tokens = [point.tokens for point in report.points]
    by_tokens, token_ticks = log_axis(min(tokens), max(tokens), left, right)
    places = [by_k(point.k) for point in report.points]
    token_places = [by_tokens(point.tokens) for point in report.points]
    return (
        _chart("dialogues", "dialogues a task (log scale)", report, places, k_ticks),
        _chart("tokens", "tokens a task (log scale)", report, token_places, token_ticks),
    )


def _chart(
    name: str, x_label: str, report: ScalingReport, places: Sequence[float], ticks: tuple[Tick, ...]
) -> Chart:
    """Both series at the places of their points, from 0 to 1."""
    y, y_ticks = axis(0.0, 1.0, WIDE.height - WIDE.bottom, WIDE.top)
    best = [point.coverage for point in report.points]
    voted = [point.majority for point in report.points]
    coverage = _series("coverage", "grey", report, best, places, y)
    majority = _series("majority", "accent", report, voted, places, y)
    told = "; ".join(dot.title for line in (coverage, majority) for dot in line.dots)
    return Chart(
        name,
        f"{report.metric} by {name}",
        f"{report.metric} by {name}: {told}",
        WIDE,
        x_label,
        report.metric,
        ticks,
        y_ticks,
        (coverage, majority),
    )


def _series(
    name: str,
    tone: Tone,
    report: ScalingReport,
    estimates: Sequence[Estimate],
    places: Sequence[float],
    y: Scale,
) -> Series:
    """A line through all points, dots and the band of intervals at the marked ones."""
    dots: list[Dot] = []
    line: list[tuple[float, float]] = []
    upper: list[tuple[float, float]] = []
    lower: list[tuple[float, float]] = []
    for point, estimate, x in zip(report.points, estimates, places, strict=True):
        line.append((x, y(estimate.mean)))
        if estimate.interval is None:
            continue
        low, high = estimate.interval
        title = (
            f"{name} of {point.k}: {report.metric} {estimate.mean:.3f}, 95% interval {low:.3f} to "
            f"{high:.3f}, {point.tokens:.0f} tokens a task"
        )
        dots.append(Dot(x, y(estimate.mean), title))
        upper.append((x, y(high)))
        lower.append((x, y(low)))
    band = polyline([*upper, *reversed(lower)])
    return Series(name, tone, tuple(dots), polyline(line), band)
