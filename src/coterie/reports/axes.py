"""Scales of charts: from numbers to SVG units, with round ticks.

Two sizes of chart: a wide one, and panels that share their axes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from coterie.reports.format import number

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Frame:
    """Size of a chart and of the margins around its plot, in SVG units."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


WIDE = Frame(440, 224, 44, 14, 26, 36)
PANEL = Frame(260, 206, 42, 10, 28, 44)


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    label: str


def axis(
    low: float, high: float, start: float, stop: float, count: int = 5
) -> tuple[Scale, tuple[Tick, ...]]:
    """A linear scale from round numbers around [low, high] to [start, stop], and its ticks."""
    step = _round_step((high - low) / count if high > low else 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)

    def scale(value: float) -> float:
        share = (value / step - first) / (last - first)
        return round(start + share * (stop - start), 1)

    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = (Tick(scale(i * step), number(i * step, digits)) for i in range(first, last + 1))
    return scale, tuple(ticks)


def log_axis(low: float, high: float, start: float, stop: float) -> tuple[Scale, tuple[Tick, ...]]:
    """A logarithmic scale of positive numbers; anything below 1 is put at 1."""
    low, high = max(1.0, low) / 1.1, max(2.0, high) * 1.1

    def scale(value: float) -> float:
        share = math.log(max(1.0, value) / low) / math.log(high / low)
        return round(start + share * (stop - start), 1)

    powers = [10**power for power in range(math.floor(math.log10(high)) + 1)]
    steps = (1,) if high / low > 1000 else (1, 3)
    labels = [step * power for power in powers for step in steps]
    return scale, tuple(Tick(scale(i), number(i)) for i in labels if low <= i <= high)


def doubling_axis(
    values: Sequence[int], start: float, stop: float
) -> tuple[Scale, tuple[Tick, ...]]:
    """A scale on which each doubling takes the same room, with a tick at each of ``values``, which are 1
    or more, in order; a last one too near the one before it pushes that one's label out."""
    doublings = max(math.log2(values[-1] / values[0]), 1.0)
    room = 0.05 * (stop - start)

    def scale(value: float) -> float:
        share = math.log2(value / values[0]) / doublings
        return round(start + room + share * (stop - start - 2 * room), 1)

    shown = [v for v in values if v == values[-1] or math.log2(values[-1] / v) > 0.5]
    return scale, tuple(Tick(scale(value), number(value)) for value in shown)


def _round_step(step: float) -> float:
    """The least of 1, 2 or 5 times a power of ten that is not below ``step``."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def iteration_axis(iterations: Sequence[int], frame: Frame) -> tuple[Scale, tuple[Tick, ...]]:
    """Whole iterations with room at both ends; at most about ten labels."""
    first, last = min(iterations), max(iterations)
    left, right = frame.left, frame.width - frame.right
    room = (right - left) / (last - first + 1)
    every = math.ceil((last - first + 1) / 10)

    def scale(iteration: float) -> float:
        return round(left + room * (iteration - first + 0.5), 1)

    return scale, tuple(Tick(scale(i), str(i)) for i in range(first, last + 1, every))


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """A polyline through points, as SVG path data."""
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))


def bar(x: float, low: float, high: float, half: float = 4) -> str:
    """A closed bar from ``low`` to ``high`` around ``x``, as SVG path data."""
    left, right = x - half, x + half
    return polyline([(left, low), (left, high), (right, high), (right, low)]) + "Z"
