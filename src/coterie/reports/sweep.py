"""The page of a sweep: held-out scores over the values of one key, with their intervals."""

from dataclasses import dataclass
from pathlib import Path

from coterie.reports.axes import WIDE, Tick, axis, bar, iteration_axis, polyline
from coterie.reports.charts import Chart, Dot, Series
from coterie.reports.page import write_template


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value of the key: one seed, or all of them together."""

    value: str
    seeds: str
    n: int
    """Held-out tasks."""
    score: float
    low: float
    """Lower end of the 95% bootstrap interval."""
    high: float
    tokens: float
    """Mean tokens of a dialogue."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """All that the page shows."""

    title: str
    command: str
    key: str
    metric: str
    points: tuple[SweepPoint, ...]
    """In the order in which values were given."""

    @property
    def drawn(self) -> tuple[SweepPoint, ...]:
        """Those of all seeds together where there are several, else each."""
        together = tuple(one for one in self.points if one.seeds == "all")
        return together or self.points


def write_sweep_page(report: SweepReport, path: Path) -> None:
    """Write the page, one HTML file that needs nothing else. Equal reports give equal bytes."""
    write_template("sweep.html.j2", {"report": report, "chart": sweep_chart(report)}, path)


def sweep_chart(report: SweepReport) -> Chart:
    """Score by value, each value as wide as the next, with a bar for the interval."""
    points, frame = report.drawn, WIDE
    x, _ = iteration_axis(range(len(points)), frame)
    ticks = tuple(Tick(x(n), one.value) for n, one in enumerate(points))
    low, high = min(one.low for one in points), max(one.high for one in points)
    y, y_ticks = axis(low, high, frame.height - frame.bottom, frame.top)
    dots = tuple(
        Dot(
            x(n),
            y(one.score),
            f"{report.key}={one.value}: {report.metric} {one.score:.3f}, 95% interval {one.low:.3f} to {one.high:.3f}",
        )
        for n, one in enumerate(points)
    )
    bars = "".join(bar(x(n), y(one.low), y(one.high)) for n, one in enumerate(points))
    line = polyline((dot.x, dot.y) for dot in dots)
    series = Series(report.metric, "accent", dots, line, bars)
    title = f"{report.metric} over {report.key}"
    summary = f"{title}: " + "; ".join(dot.title for dot in dots)
    return Chart(
        "sweep", title, summary, frame, report.key, report.metric, ticks, y_ticks, (series,)
    )
