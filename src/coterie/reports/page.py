"""Write a run's report as one HTML file that needs nothing else: no network, no other file.

Model-written text is hostile. The template escapes everything, and the page carries a content
security policy that allows only its own script and style, by hash, so that even text that slipped
through could not run or load anything.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from coterie.reports import charts
from coterie.reports.data import IterationPoint, RunReport, StageTime
from coterie.reports.format import duration, number, signed
from coterie.reports.sections import section_chart


@dataclass(frozen=True, slots=True)
class Headline:
    """A number that a run is about, before and after training, and its chart."""

    name: str
    before: str
    after: str | None
    """``None`` as long as no iteration of training is finished."""
    change: str
    """From the one to the other; of one number alone when it was measured."""
    detail: str
    chart: charts.Chart


@dataclass(frozen=True, slots=True)
class TimingTable:
    """Seconds by stage (rows) and iteration (columns)."""

    iterations: tuple[int, ...]
    rows: tuple[tuple[str, tuple[float | None, ...], float], ...]
    """Stage, seconds by iteration, seconds in all."""
    totals: tuple[float, ...]
    """Seconds by iteration, over all stages."""
    total: float


def write_page(report: RunReport, path: Path) -> None:
    """Write the page. Equal reports give equal bytes."""
    write_template("page.html.j2", _context(report), path)


def write_template(name: str, context: Mapping[str, object], path: Path) -> None:
    """Write a page from one of this package's templates, which gets the style besides ``context``."""
    style = _asset("page.css")
    head = {"style": style, "style_hash": _hash(style)}
    text = _environment().get_template(name).render(head | dict(context))
    partial = path.with_name(f".{path.name}.partial")
    try:
        # Half a surrogate pair can't be encoded; a model's text may hold one.
        partial.write_bytes(text.encode("utf-8", errors="replace"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("coterie.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "signed": signed,
        "duration": duration,
    }
    return environment


def _context(report: RunReport) -> dict[str, object]:
    points = sorted(report.iterations, key=lambda point: point.iteration)
    rewards = sorted(report.rewards, key=lambda means: means.iteration)
    script = _asset("page.js")
    return {
        "report": report,
        "points": points,
        "finished": max((point.iteration for point in points), default=0),
        "headlines": _headlines(points, report.metric, report.planned),
        "rewards": rewards,
        "reward_charts": charts.reward_charts(rewards),
        "scatter_charts": charts.scatter_charts(report.samples, report.seed),
        "timing": _timing(report.timings),
        "sections": [(one, section_chart(one) if one.levels else None) for one in report.sections],
        "script": script,
        "script_hash": _hash(script),
    }


def _headlines(points: list[IterationPoint], metric: str, planned: int) -> tuple[Headline, ...]:
    if not points:
        return ()
    first, last = points[0], points[-1]
    trained = last is not first
    when = f"after iteration {first.iteration}" if first.iteration else "before training"
    score_change, tokens_change, interval = when, when, _interval(first)
    if trained:
        score_change = signed(last.score - first.score, 3)
        interval = f"{interval} → {_interval(last)}"
        change = last.tokens / first.tokens - 1 if first.tokens else None
        tokens_change = "" if change is None else f"{signed(100 * change)}%"
    return (
        Headline(
            f"Score ({metric})",
            number(first.score, 3),
            number(last.score, 3) if trained else None,
            score_change,
            f"95% interval {interval}, {last.n:,} held-out tasks",
            charts.score_chart(points, metric, planned),
        ),
        Headline(
            "Tokens per dialogue",
            number(first.tokens, 1),
            number(last.tokens, 1) if trained else None,
            tokens_change,
            "mean number of sampled tokens, all agents, on the same tasks",
            charts.tokens_chart(points, planned),
        ),
    )


def _interval(point: IterationPoint) -> str:
    return f"{number(point.score_low, 3)}–{number(point.score_high, 3)}"


def _timing(times: tuple[StageTime, ...]) -> TimingTable | None:
    if not times:
        return None
    seconds: dict[tuple[str, int], float] = {}
    for time in times:
        key = (time.stage, time.iteration)
        seconds[key] = seconds.get(key, 0.0) + time.seconds
    iterations = tuple(sorted({time.iteration for time in times}))
    rows = []
    for stage in dict.fromkeys(time.stage for time in times):
        cells = tuple(seconds.get((stage, iteration)) for iteration in iterations)
        rows.append((stage, cells, sum(cell or 0.0 for cell in cells)))
    totals = tuple(
        sum(time.seconds for time in times if time.iteration == iteration)
        for iteration in iterations
    )
    return TimingTable(iterations, tuple(rows), totals, sum(totals))


def _asset(name: str) -> Markup:
    return Markup(resources.files("coterie.reports").joinpath(name).read_text("utf-8"))


def _hash(text: str) -> str:
    """The hash by which a content security policy allows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
