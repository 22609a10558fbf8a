"""The page of a sweep: held-out scores over the values of one key, with their intervals."""

from dataclasses import dataclass
from pathlib import Path

from coterie.reports.axes import WIDE, Tick, axis, bar, iteration_axis, polyline
from coterie.reports.charts import Chart, Dot, Series
from coterie.reports.page import write_template


@dataclass(frozen=True, slots=True)
class SweepRow:
    """Held-out results of the last policies of one run, or of all seeds of a value."""

    value: str
    seed: int | None
    """``None`` for all seeds together."""
    iteration: int
    n: int
    score: float
    low: float
    """Lower end of the score's 95% bootstrap interval over tasks."""
    high: float
    tokens: float
    """Mean tokens of a dialogue."""
    folder: str


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Content of the page."""

    title: str
    command: str
    key: str
    metric: str
    rows: list[SweepRow]

    @property
    def drawn(self) -> list[SweepRow]:
        """Rows of all seeds together where there are several seeds, else all rows."""
        return [row for row in self.rows if row.seed is None] or self.rows


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
