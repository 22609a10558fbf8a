"""What a recipe shows on a run's page beside what all runs have: tables, and a quantity measured again and again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.reports.axes import WIDE, axis, bar, iteration_axis, polyline
from coterie.reports.charts import Chart, Dot, Series


@dataclass(frozen=True, slots=True)
class Level:
    """A quantity as it was measured at one time."""

    label: str
    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a heading, and a chart above it if something is measured in a row."""

    id: str
    """In the page, such as ``joint``."""
    title: str
    intro: str
    """A sentence or two: what the numbers are."""
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """As many cells each as there are heads. Texts are shown as they are."""
    quantity: str = ""
    levels: tuple[Level, ...] = ()
    """The chart's points; none for no chart."""
    bars: bool = False
    """Whether the chart has a bar from zero for each level, and not a line through them."""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.heads) for row in self.rows):
            raise ValueError(f"a row of {self.id} has other cells than {', '.join(self.heads)}")


def section_chart(section: Section) -> Chart:
    draw = _bars_chart if section.bars else levels_chart
    return draw(f"{section.id}-chart", section.quantity, section.levels)


def _bars_chart(id_: str, quantity: str, levels: Sequence[Level]) -> Chart:
    frame = WIDE
    x, x_ticks = iteration_axis(range(len(levels)), frame)
    y, y_ticks = axis(0, max(one.value for one in levels), frame.height - frame.bottom, frame.top)
    half = (x(1) - x(0)) / 3 if len(levels) > 1 else 20
    bars = "".join(bar(x(n), y(0), y(one.value), half) for n, one in enumerate(levels))
    dots = tuple(
        Dot(x(n), y(one.value), f"{one.label}: {one.value:g}") for n, one in enumerate(levels)
    )
    ticks = tuple(replace(t, label=one.label) for t, one in zip(x_ticks, levels, strict=False))
    series = Series(quantity, "accent", dots, band=bars)
    summary = f"{quantity}: " + "; ".join(dot.title for dot in dots)
    return Chart(id_, quantity, summary, frame, "", quantity, ticks, y_ticks, (series,))


def levels_chart(id_: str, quantity: str, levels: Sequence[Level]) -> Chart:
    """Levels in their order, with one standard error around each."""
    frame = WIDE
    x, x_ticks = iteration_axis(range(len(levels)), frame)
    low = min(one.value - one.error for one in levels)
    high = max(one.value + one.error for one in levels)
    y, y_ticks = axis(low, high, frame.height - frame.bottom, frame.top)
    dots = tuple(
        Dot(x(n), y(one.value), f"{one.label}: {one.value:.3f}, standard error {one.error:.3f}")
        for n, one in enumerate(levels)
    )
    bars = "".join(
        bar(x(n), y(one.value - one.error), y(one.value + one.error))
        for n, one in enumerate(levels)
    )
    series = Series(quantity, "accent", dots, polyline((dot.x, dot.y) for dot in dots), bars)
    summary = f"{quantity}: " + "; ".join(dot.title for dot in dots)
    ticks = (x_ticks, y_ticks)
    return Chart(id_, quantity, summary, frame, "measurement", quantity, *ticks, (series,))
