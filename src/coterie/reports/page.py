"""Self-contained HTML page of a run, an evaluation or a sweep, without network, scripts or other files.

Model-written text is untrusted. The template escapes everything, and the page has a content security policy that allows
only its own style, by hash, so that unescaped text could not run or load anything either.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from coterie.reports.charts import Chart, number, svg
from coterie.reports.examples import Example

GLOSSARY: Mapping[str, str] = {
    "advantage": "how much better than expected a rollout was; it scales the gradient of its trained tokens",
    "all rewards equal": "groups that teach nothing: all their advantages are 0",
    "coverage": "best score among the first k rollouts of a task",
    "cut off": "share of replies that ran to max_tokens",
    "failed": "rollouts that ended in an error, or that could not be graded; each counts with a score of 0",
    "fraction": "share of tests that an answer passes",
    "groups with an advantage": "groups whose rewards differ",
    "leaks": "replies of the simulated user that quote 30 characters or more of the reference",
    "limit reached": "share of rollouts that a limit of turns, tokens or context ended, and not the environment",
    "majority": "score of the answer that most of the first k rollouts give",
    "older weights": "rollouts that were sampled by older weights, and are not trained on",
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
    partial = path.with_name(f".{path.name}.partial")
    try:
        # A model's text may contain a lone surrogate, which cannot be encoded.
        partial.write_bytes(text.encode("utf-8", errors="replace"))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
