"""The geometry of the page's charts: numbers to coordinates. The template draws them as SVG.

Two sizes: a wide chart for what changed over iterations, and panels that share their axes. Colours
mean the same everywhere: the accent is the policy or what was selected, grey is everything sampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from coterie.reports.axes import (
    PANEL,
    WIDE,
    Frame,
    Scale,
    Tick,
    axis,
    iteration_axis,
    log_axis,
    polyline,
)
from coterie.reports.data import IterationPoint, RewardMeans, RewardSample, subsample
from coterie.reports.format import number

Tone = Literal["accent", "grey"]


@dataclass(frozen=True, slots=True)
class Dot:
    """A data point; ``hollow`` marks a poor score."""

    x: float
    y: float
    title: str
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind, with a line through them (``path``) or not, and a band around it."""

    name: str
    tone: Tone
    dots: tuple[Dot, ...]
    path: str = ""
    band: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, ready to draw."""

    id: str
    title: str
    summary: str
    """What a reader who does not see it should know."""
    frame: Frame
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    notes: tuple[tuple[Tone, str], ...] = field(default=())
    """Short texts under the title, each in its colour."""
    guide: Tick | None = None
    """A dashed vertical line; its label is put in the upper right corner."""
    zero: float | None = None
    """Where y is 0, if that is inside the plot."""


def score_chart(points: Sequence[IterationPoint], metric: str, planned: int) -> Chart:
    """Score by iteration with its interval, from 0 to 1, with room for the iterations to come."""
    frame = WIDE
    x, x_ticks = iteration_axis([*(p.iteration for p in points), planned], frame)
    y, y_ticks = axis(0.0, 1.0, frame.height - frame.bottom, frame.top)
    dots = tuple(
        Dot(
            x(p.iteration),
            y(p.score),
            f"iteration {p.iteration}: {metric} {p.score:.3f}, 95% interval {p.score_low:.3f} to "
            f"{p.score_high:.3f}, {p.n} tasks",
        )
        for p in points
    )
    if len(points) == 1:  # A band around one point has no area: its interval is drawn as a bar.
        around = [(x(p.iteration) + dx, y(end)) for p in points for dx, end in _corners(p)]
    else:
        around = [(x(p.iteration), y(p.score_high)) for p in points]
        around += [(x(p.iteration), y(p.score_low)) for p in reversed(points)]
    series = Series(metric, "accent", dots, polyline((d.x, d.y) for d in dots), polyline(around))
    summary = f"{metric} by iteration: " + "; ".join(dot.title for dot in dots)
    return Chart(
        "score",
        f"{metric} by iteration",
        summary,
        frame,
        "iteration",
        metric,
        x_ticks,
        y_ticks,
        (series,),
    )


def _corners(point: IterationPoint) -> tuple[tuple[float, float], ...]:
    low, high = point.score_low, point.score_high
    return ((-4, low), (-4, high), (4, high), (4, low))


def tokens_chart(points: Sequence[IterationPoint], planned: int) -> Chart:
    """Mean tokens of a dialogue by iteration, from 0, with room for the iterations to come."""
    frame = WIDE
    x, x_ticks = iteration_axis([*(p.iteration for p in points), planned], frame)
    y, y_ticks = axis(0.0, max(p.tokens for p in points), frame.height - frame.bottom, frame.top)
    dots = tuple(
        Dot(x(p.iteration), y(p.tokens), f"iteration {p.iteration}: {p.tokens:.1f} tokens")
        for p in points
    )
    series = Series("tokens", "accent", dots, polyline((d.x, d.y) for d in dots))
    summary = "Tokens per dialogue by iteration: " + "; ".join(dot.title for dot in dots)
    return Chart(
        "tokens",
        "Tokens per dialogue by iteration",
        summary,
        frame,
        "iteration",
        "tokens per dialogue",
        x_ticks,
        y_ticks,
        (series,),
    )


def reward_charts(rewards: Sequence[RewardMeans]) -> tuple[Chart, ...]:
    """One panel for the total and for each part of the reward, over all samples and the selected.

    The panels share one scale, so that the parts can be compared.
    """
    if not rewards:
        return ()
    names = ["total", *dict.fromkeys(part.name for means in rewards for part in means.parts)]
    values = [_mean(means, name) for means in rewards for name in names]
    known = [value for value in values if value is not None]
    x, x_ticks = iteration_axis([means.iteration for means in rewards], PANEL)
    bottom = PANEL.height - PANEL.bottom
    y, y_ticks = axis(min(0.0, *known), max(0.0, *known), bottom, PANEL.top, 6)
    charts = []
    for index, name in enumerate(names):
        grey = _reward_line([m for m in rewards if m.over == "all"], name, "grey", x, y)
        accent = _reward_line([m for m in rewards if m.over == "selected"], name, "accent", x, y)
        series = tuple(line for line in (grey, accent) if line.dots)
        notes = tuple((line.tone, line.dots[-1].title.split(": ")[-1]) for line in series)
        told = "; ".join(dot.title for line in series for dot in line.dots)
        summary = f"Mean {name} reward by iteration: {told}"
        charts.append(
            Chart(
                f"reward-{index}",
                name,
                summary,
                PANEL,
                "iteration",
                "mean reward",
                x_ticks,
                y_ticks,
                series,
                notes,
                zero=y(0.0),
            )
        )
    return tuple(charts)


def _reward_line(
    rewards: Sequence[RewardMeans], name: str, tone: Tone, x: Scale, y: Scale
) -> Series:
    dots = []
    for means in rewards:
        mean = _mean(means, name)
        if mean is not None:
            title = f"iteration {means.iteration}: {means.over} {number(mean, 2)}"
            dots.append(Dot(x(means.iteration), y(mean), title))
    return Series(name, tone, tuple(dots), polyline((dot.x, dot.y) for dot in dots))


def _mean(means: RewardMeans, name: str) -> float | None:
    if name == "total":
        return means.total
    return next((part.mean for part in means.parts if part.name == name), None)


def scatter_charts(samples: Sequence[RewardSample], seed: int) -> tuple[Chart, ...]:
    """One panel of reward against tokens for each iteration, on shared axes.

    A panel draws a :func:`subsample`; its counts and its mean are those of all samples.
    """
    if not samples:
        return ()
    rewards, tokens = [s.reward for s in samples], [s.tokens for s in samples]
    x, x_ticks = log_axis(min(tokens), max(tokens), PANEL.left, PANEL.width - PANEL.right)
    bottom = PANEL.height - PANEL.bottom
    y, y_ticks = axis(min(0.0, *rewards), max(0.0, *rewards), bottom, PANEL.top, 6)
    charts = []
    for iteration, shown in subsample(samples, seed=seed).items():
        group = [sample for sample in samples if sample.iteration == iteration]
        mean = sum(sample.tokens for sample in group) / len(group)
        chosen = f"{sum(sample.selected for sample in group):,} selected"
        drawn = "" if len(shown) == len(group) else f", {len(shown):,} of them drawn"
        summary = (
            f"Reward against tokens in iteration {iteration}: {len(group):,} samples{drawn}, "
            f"{chosen}, mean {mean:.0f} tokens"
        )
        charts.append(
            Chart(
                f"scatter-{iteration}",
                f"Iteration {iteration}",
                summary,
                PANEL,
                "tokens per dialogue (log scale)",
                "reward",
                x_ticks,
                y_ticks,
                _clouds(shown, x, y),
                (("grey", f"{len(group):,} samples"), ("accent", chosen)),
                Tick(x(mean), f"mean {mean:.0f}"),
                y(0.0),
            )
        )
    return tuple(charts)


def _clouds(group: Sequence[RewardSample], x: Scale, y: Scale) -> tuple[Series, ...]:
    dots: dict[bool, list[Dot]] = {False: [], True: []}
    for sample in group:
        title = f"reward {sample.reward:.2f}, {sample.tokens} tokens, score {sample.score:.2f}"
        dot = Dot(x(sample.tokens), y(sample.reward), title, sample.score < 0.5)
        dots[sample.selected].append(dot)
    return (
        Series("not selected", "grey", tuple(dots[False])),
        Series("selected", "accent", tuple(dots[True])),
    )
