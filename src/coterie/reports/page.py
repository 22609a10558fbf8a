"""Self-contained HTML page of a run, an evaluation or a sweep, without network, scripts or other files.

Model-written text is untrusted. The template escapes everything, and the page has a content security policy that allows
only its own style, by hash, so that unescaped text could not run or load anything either.
"""

import base64
import hashlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from coterie.config.resolve import flatten
from coterie.config.settings import Settings
from coterie.errors import CONTROL_CHARACTERS
from coterie.record.turn import ToolCall, ToolResult
from coterie.reports.charts import Chart, Point, Series, number, score_point, svg
from coterie.reports.examples import Example
from coterie.runs.evaluation import Evaluation
from coterie.runs.run import Run

GLOSSARY: Mapping[str, str] = {
    "advantage": "how much better than expected a rollout was; it scales the gradient of its trained tokens",
    "all rewards equal": "groups that teach nothing: all their advantages are 0",
    "coverage": "best score among the first k rollouts of a task",
    "cut off": "share of replies that ran to max_tokens",
    "failed": "rollouts that ended in an error, or that could not be graded; each counts with a score of 0",
    "fraction": "share of tests that an answer passes",
    "groups with an advantage": "groups whose rewards differ",
    "leaks": "replies of the simulated user that quote 25 characters, or half, of a secret",
    "limit reached": "share of rollouts that a limit of turns, tokens or context ended, and not the environment",
    "majority": "score of the answer that most of the first k rollouts give",
    "no page": "share of dialogues in which the agent shows no page",
    "not rendered": "share of dialogues whose last page does not render",
    "older weights": "rollouts that were sampled by older weights, and are not trained on",
    "raw": "similarity before it is rescaled",
    "repeated": "replies that repeat an earlier one of their rollout",
    "replies cut off": "rollouts that ended with a reply that ran to max_tokens",
    "rollouts": "attempts at a task, each sampled to its end",
    "shortened": "results whose middle was left out before the model saw them",
    "spoke for another": "replies that contain words of another agent",
    "tokens": "sampled tokens of a rollout, of all agents",
    "value": "mean reward of the rollouts through a turn",
    "visits": "rollouts through a turn",
    "well formed": "share of answers in the form that the prompt asks for",
}
"""Meanings of headings in tables, the same on all pages."""


@dataclass(frozen=True, slots=True)
class Section:
    """Section of a page. Empty sections (no rows, charts or examples) are omitted."""

    id: str
    """Id in the page, such as ``joint``."""
    title: str
    intro: str = ""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """Each row has one cell for each head."""
    charts: tuple[Chart, ...] = ()
    examples: tuple[Example, ...] = ()
    folded: bool = False

    def __post_init__(self) -> None:
        if any(len(row) != len(self.heads) for row in self.rows):
            raise ValueError(f"a row of {self.id} has other cells than {', '.join(self.heads)}")

    @property
    def glossary(self) -> list[tuple[str, str]]:
        return [(head, GLOSSARY[head]) for head in self.heads if head in GLOSSARY]


@dataclass(frozen=True, slots=True)
class Headline:
    """Main metric of a run, before and after training, with its chart."""

    name: str
    before: str
    after: str | None
    """``None`` before the first iteration is finished."""
    change: str
    detail: str
    chart: Chart


@dataclass(frozen=True, slots=True)
class Report:
    """Content of a page. A page can be written at any time of a run."""

    kind: str
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()
    """Commands of the run, as typed by the user."""
    headlines: tuple[Headline, ...] = ()
    sections: tuple[Section, ...] = ()


def signed(value: float, digits: int = 0) -> str:
    text = number(value, digits)
    return text if text.startswith("−") or not value > 0 else f"+{text}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("coterie.reports", "."),
        autoescape=True,
        # A missing value is an error of the template, and not an empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "svg": svg}
    return environment.get_template("page.html.j2")


def write_page(report: Report, path: Path) -> None:
    """Write the page. Equal reports give equal bytes."""
    style = Markup(resources.files("coterie.reports").joinpath("page.css").read_text("utf-8"))
    # The hash by which a content security policy allows an inline style.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    text = _template().render(report=report, style=style, style_hash=f"sha256-{digest}")
    # The page is renamed at the end, so that a browser never loads half of it.
    partial = path.with_name(f".{path.name}.partial")
    try:
        # A model's text may contain a lone surrogate, which cannot be encoded, and commands for terminals.
        text = text.translate(CONTROL_CHARACTERS)
        partial.write_bytes(text.encode("utf-8", errors="replace"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


# -- sections of all pages -----------------------------------------------------------------------


def headlines(evaluations: Sequence[Evaluation], metric: str, planned: int) -> tuple[Headline, ...]:
    """Return score and tokens of a run's policies on held-out tasks, before and after training."""
    if not evaluations:
        return ()
    base, latest = evaluations[0], evaluations[-1]
    trained = latest is not base
    when = f"after iteration {base.version}" if base.version else "before training"
    interval = interval_text(base)
    if trained:
        interval = f"{interval} → {interval_text(latest)}"
    change = f"{signed(100 * (latest.tokens / base.tokens - 1))}%" if base.tokens else ""
    scores = tuple(
        score_point(
            result.version, f"iteration {result.version}: {metric}", result.score, *result.interval
        )
        for result in evaluations
    )
    tokens = tuple(
        Point(
            result.version, result.tokens, f"iteration {result.version}: {result.tokens:.1f} tokens"
        )
        for result in evaluations
    )
    return (
        Headline(
            f"Score ({metric})",
            number(base.score, 3),
            number(latest.score, 3) if trained else None,
            signed(latest.score - base.score, 3) if trained else when,
            f"95% interval {interval}, {latest.n:,} held-out tasks",
            Chart("score", f"{metric} by iteration", "iteration", metric, (Series(metric, scores),),
                  y_range=(0, 1), last=planned),
        ),
        Headline(
            "Tokens per rollout",
            number(base.tokens, 1),
            number(latest.tokens, 1) if trained else None,
            change if trained else when,
            "mean number of sampled tokens, all agents, on the same tasks",
            Chart("tokens", "Tokens by iteration", "iteration", "tokens per rollout",
                  (Series("tokens", tokens),), y_range=(0, 1), last=planned),
        ),
    )  # fmt: skip


def interval_text(evaluation: Evaluation) -> str:
    return "–".join(number(end, 3) for end in evaluation.interval)


def scores(results: Sequence[Evaluation], metric: str) -> Section:
    """Scores of policies on held-out tasks, with their intervals and other measures."""
    names = list(dict.fromkeys(name for result in results for name in result.means))
    return Section(
        "scores",
        "Scores on held-out tasks",
        f"{metric}, with its 95% interval over tasks; the other columns are means over rollouts.",
        ("policy", "tasks", "score", "95% interval", "tokens", "failed", *map(_words, names)),
        tuple(
            (
                result.label,
                f"{result.n:,}",
                number(result.score, 3),
                interval_text(result),
                number(result.tokens, 1),
                f"{result.failed:,}",
                *(number(result.means[name], 3) if name in result.means else "" for name in names),
            )
            for result in results
        ),
    )


def measures(rows: Sequence[tuple[str, int, Mapping[str, float]]]) -> Section:
    """Means of what the environment measured of the rollouts of stages."""
    names = list(dict.fromkeys(name for *_, means in rows for name in means))
    return Section(
        "measures",
        "Measures of the rollouts",
        "Means over the rollouts of a stage that did not fail.",
        ("stage", "rollouts", *map(_words, names)),
        tuple(
            (label, f"{n:,}", *(number(m[name], 3) if name in m else "" for name in names))
            for label, n, m in rows
        ),
    )


def _words(name: str) -> str:
    return name.replace("_", " ")


def tools(calls: Iterable[tuple[ToolCall, ToolResult]]) -> Section:
    """Calls by tool."""
    results_of: dict[str, list[ToolResult]] = {}
    for call, result in calls:
        results_of.setdefault(call.name, []).append(result)
    rows = []
    for name, results in sorted(results_of.items()):
        seconds = sorted(result.seconds for result in results if result.seconds)
        times = ("", "")
        if seconds:
            late = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
            times = f"{statistics.median(seconds):.3f} s", f"{late:.3f} s"
        errors = sum(result.error for result in results)
        short = sum(result.left_out > 0 for result in results)
        rows.append((name, f"{len(results):,}", f"{errors:,}", f"{short:,}", *times))
    return Section(
        "tools",
        "Tools",
        "Calls of all rollouts. The model sees errors. Times are of calls that were run.",
        ("tool", "calls", "errors", "shortened", "median", "95% within"),
        tuple(rows),
    )


def failures(run: Run) -> Section:
    """Failures that are final, by reason."""
    groups: dict[tuple[str, str, int], list[str]] = {}
    for key, reason in run.store.failures():
        groups.setdefault((reason, key.stage, key.iteration), []).append(f"{key.task}/{key.sample}")
    rows = tuple(
        (reason, f"{len(items):,}", stage, f"{iteration}", items[0])
        for (reason, stage, iteration), items in groups.items()
    )
    heads = ("reason", "items", "stage", "iteration", "for example")
    return Section("failures", "Failures", "Items that failed for good.", heads, rows)


def changes(settings: Settings, preset: Mapping[str, object] | None) -> Section:
    """Return the settings that differ from a preset, or from the defaults without one."""
    base = "defaults" if preset is None else "preset"
    if preset is None:
        # Built without validation, because some settings have no default.
        defaults = type(settings).model_construct()
        preset = flatten(defaults.model_dump(mode="json", warnings="none"))
    rows = tuple(
        (name, f"{preset.get(name, '')}", f"{value}")
        for name, value in flatten(settings.model_dump(mode="json")).items()
        if name not in preset or preset[name] != value
    )
    title = f"Settings that differ from the {base}"
    return Section("changes", title, "", ("setting", base, "here"), rows)


def settings(run_settings: Settings) -> Section:
    """Return all settings."""
    values = flatten(run_settings.model_dump(mode="json"))
    rows = tuple((name, f"{value}") for name, value in values.items())
    return Section("settings", "All settings", "", ("setting", "value"), rows, folded=True)
