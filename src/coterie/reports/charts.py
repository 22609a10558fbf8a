"""Line and bar charts as SVG.

Colors mean the same everywhere: accent for the policy and for selected samples, grey for all samples.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

Tone = Literal["accent", "grey"]
Scale = Callable[[float], float]
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 26, 38
"""Margins around the plot, in SVG units."""
WIDTH, HEIGHT = 440, 224
MAX_LABELS = 10


@dataclass(frozen=True, slots=True)
class Point:
    """Measured value with an optional interval."""

    x: float
    y: float
    title: str
    low: float | None = None
    high: float | None = None


def score_point(x: float, title: str, score: float, low: float, high: float) -> Point:
    """Return the point of a score with its 95% interval, which the title ends with."""
    title = f"{title} {score:.3f}, 95% interval {low:.3f} to {high:.3f}"
    return Point(x, score, title, low, high)


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind: a line with its intervals as a band, or bars from zero."""

    name: str
    points: tuple[Point, ...]
    tone: Tone = "accent"
    kind: Literal["line", "bars"] = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """Data of a chart.

    Values on the x axis are whole numbers (iterations, or indices of ``labels``), or positive numbers on a logarithmic
    axis (``log``).
    """

    id: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    labels: tuple[str, ...] = ()
    log: bool = False
    y_range: tuple[float, float] | None = None
    """Values that the y axis must show; default: the values of the points."""
    last: int = 0
    """Highest x value of the axis, such as the number of planned iterations."""

    @property
    def summary(self) -> str:
        """Text of the chart for screen readers."""
        points = [point for series in self.series for point in series.points]
        titles = "; ".join(point.title for point in points[:50])
        return f"{self.title}: {titles}{' …' if len(points) > 50 else ''}"


def number(value: float, digits: int = 0) -> str:
    """Return ``-1234.5`` as ``−1,234.5``; a dash for NaN and infinity."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:,.{digits}f}"
    # A zero loses its sign, and other negative numbers get a typographic minus.
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def svg(chart: Chart) -> Markup:
    """Return a chart as an SVG element. All texts are escaped."""
    points = [point for series in chart.series for point in series.points]
    # The axis covers the ends of all intervals.
    ends = [end for p in points for end in (p.y, p.low, p.high) if end is not None]
    ends += chart.y_range or ()
    if any(series.kind == "bars" for series in chart.series):
        ends.append(0.0)
    y, y_ticks = axis(min(ends), max(ends), HEIGHT - BOTTOM, TOP)
    x, x_ticks = _x_axis(chart, [point.x for point in points], LEFT, WIDTH - RIGHT)
    parts = [
        f'<path class="{"zero" if label == "0" else "grid"}" d="M{LEFT} {height}H{WIDTH - RIGHT}"/>'
        f'<text class="y" x="{LEFT - 6}" y="{height}">{label}</text>'
        for height, label in y_ticks
    ]
    parts += [
        f'<text class="x" x="{left}" y="{HEIGHT - BOTTOM + 7}">{escape(label)}</text>'
        for left, label in x_ticks
    ]
    parts.append(f'<text class="label" x="{LEFT}" y="{TOP - 10}">{escape(chart.y_label)}</text>')
    parts.append(
        f'<text class="label end" x="{WIDTH - RIGHT}" y="{HEIGHT - 5}">{escape(chart.x_label)}</text>'
    )
    # Bars take two thirds of the distance between two labels.
    half = (x(1) - x(0)) / 3 if chart.labels and len(chart.labels) > 1 else 20
    parts += [_series_svg(series, x, y, half) for series in chart.series]
    return Markup(
        f'<svg class="chart" id="{escape(chart.id)}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(chart.summary)}">{"".join(parts)}</svg>'
    )


def _series_svg(series: Series, x: Scale, y: Scale, half: float) -> str:
    coordinates = [(x(point.x), y(point.y)) for point in series.points]
    intervals = [
        (x(point.x), y(point.low), y(point.high))
        for point in series.points
        if point.low is not None and point.high is not None
    ]
    band = ""
    if series.kind == "bars":
        band = "".join(_box(left, y(0), top, half) for left, top in coordinates)
    # A band needs an interval at every point; otherwise each interval is drawn on its own.
    elif len(intervals) > 1 and len(intervals) == len(coordinates):
        # Along the upper ends, and back along the lower ones.
        edge = [(left, high) for left, _, high in intervals]
        band = _path([*edge, *((left, low) for left, low, _ in reversed(intervals))])
    else:
        band = "".join(_box(left, low, high) for left, low, high in intervals)
    line = _path(coordinates) if series.kind == "line" else ""
    dots = "".join(
        f'<circle cx="{left:g}" cy="{up:g}"><title>{escape(point.title)}</title></circle>'
        for point, (left, up) in zip(series.points, coordinates, strict=True)
    )
    paths = "".join(
        f'<path class="{c}" d="{d}"/>' for c, d in (("band", band), ("line", line)) if d
    )
    return f'<g class="series {series.tone}">{paths}{dots}</g>'


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))


def _box(x: float, low: float, high: float, half: float = 4) -> str:
    corners = ((x - half, low), (x - half, high), (x + half, high), (x + half, low))
    return _path(corners) + "Z"


def axis(
    low: float, high: float, start: float, stop: float, count: int = 5
) -> tuple[Scale, list[tuple[float, str]]]:
    """Return a linear scale from round numbers around [low, high] to [start, stop], and its ticks."""
    # Ticks are 1, 2 or 5 times a power of ten apart. The small factor allows for rounding errors.
    rough = (high - low) / count if high > low else 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first_tick, last_tick = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Equal values also need an axis with a length.
    last_tick = max(last_tick, first_tick + 1)

    def scale(value: float) -> float:
        share = (value / step - first_tick) / (last_tick - first_tick)
        return round(start + share * (stop - start), 1)

    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return scale, [
        (scale(i * step), number(i * step, digits)) for i in range(first_tick, last_tick + 1)
    ]


def _x_axis(
    chart: Chart, values: Sequence[float], start: float, stop: float
) -> tuple[Scale, list[tuple[float, str]]]:
    if chart.log:
        # A logarithmic axis begins at 1, because 0 has no logarithm.
        low, high = max(1.0, min(values)) / 1.1, max(2.0, *values) * 1.1

        def log_scale(value: float) -> float:
            share = math.log(max(1.0, value) / low) / math.log(high / low)
            return round(start + share * (stop - start), 1)

        # A wide range has marks only at powers of ten.
        steps = (1,) if high / low > 1000 else (1, 3)
        marks = [step * 10**power for power in range(math.ceil(math.log10(high))) for step in steps]
        return log_scale, [(log_scale(mark), number(mark)) for mark in marks if low <= mark <= high]
    first_value = 0 if chart.labels else math.floor(min(values))
    last_value = len(chart.labels) - 1 if chart.labels else max(math.ceil(max(values)), chart.last)
    room = (stop - start) / (last_value - first_value + 1)
    every = math.ceil((last_value - first_value + 1) / MAX_LABELS)

    def scale(value: float) -> float:
        # Points are in the middle of equal cells, so that bars at both ends fit.
        return round(start + room * (value - first_value + 0.5), 1)

    ticks = range(first_value, last_value + 1, every)
    return scale, [(scale(i), chart.labels[i] if chart.labels else str(i)) for i in ticks]
