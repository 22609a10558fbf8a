"""The ``pages`` micro-world: an agent makes a small page with hidden colors, boxes and layout.

The request tells the heading alone, whose kind of house makes some values of each aspect likely. The user sees the page
and says which aspect is not right, but not what it should be. The score is the share of the hidden aspects that the
last page has right, and each message after the first costs a little of it. A page is short HTML. A hash of the hidden
aspects decides the split.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.web_pages import elements, page_in
from coterie.environments.collaboration import MARKER, REFERENCE, collaboration_task
from coterie.environments.pages.frontend import SIMILARITY, Frontend, FrontendSettings
from coterie.environments.protocol import AGENT, WELL_FORMED, Grade, State
from coterie.environments.qa_metrics import GRADER
from coterie.environments.settings import MicroSplit, distinct, series, split_random, split_words
from coterie.environments.user_simulator import PERSON, TranscriptLine, UserSimulator
from coterie.record.tree import ANSWERED, Secret, Task
from coterie.record.turn import Part

COLORS = split_words("red yellow green blue pink gray")
COUNTS = (2, 3, 4)
LAYOUTS = ("row", "column")
VALUES: Mapping[str, tuple[Any, ...]] = {
    "background": COLORS,
    "boxes": COLORS,
    "layout": LAYOUTS,
    "bar": COLORS,
    "count": COUNTS,
}
"""Values of the hidden aspects."""
LIKELY: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    kind: dict(zip(VALUES, likely, strict=True))
    for kind, likely in {
        "Bakery": (("yellow", "pink"), ("red", "gray"), ("row",), ("blue", "green"), (2, 3)),
        "Garden": (("green", "blue"), ("yellow", "pink"), ("column",), ("red", "gray"), (3, 4)),
        "Hotel": (("gray", "red"), ("blue", "green"), ("row",), ("yellow", "pink"), (2, 4)),
        "Museum": (("blue", "gray"), ("green", "red"), ("column",), ("pink", "yellow"), (2, 3)),
    }.items()
}
"""Likely values of each aspect, by kind of house."""
LIKELY_SHARE = 0.9
"""How often an aspect has a likely value."""
KINDS = tuple(LIKELY)
PLACES = split_words(
    "Rose Harbor Maple Summit River Cedar Valley Stone Meadow Willow "
    "Lake Forest Castle Bridge Market Island Orchard Garnet Pine Heron"
)
QUALITIES = split_words(
    "Old New Little Royal Golden Silver Happy Quiet Sunny Corner "
    "Grand Lucky Modern Rural Bright Clever Gentle Noble Proud Swift"
)
TURN_COST = 0.01
"""What each message after the first takes from the score."""
MAX_TURNS = 6


@dataclass(frozen=True, slots=True)
class Design:
    """Aspects of a page, ordered by their mean effect on the similarity ``layout`` of short pages.

    ``None``: the page does not tell.
    """

    heading: str | None
    background: str | None
    boxes: str | None
    """Color of the boxes."""
    layout: str | None
    bar: str | None
    count: int | None


def write_page(d: Design) -> str:
    """Return the HTML of a whole design."""
    box, count = f"<td bgcolor={d.boxes}>", d.count or 0
    boxes = f"<tr>{box * count}" if d.layout == "row" else f"<tr>{box}" * count
    return (
        f"<html><body bgcolor={d.background}><table bgcolor={d.bar} width=100% height=150><td><h1>{d.heading}</h1>"
        f"</table><table width=100% height=500 cellspacing=60>{boxes}</table></body></html>"
    )


def read_design(html: str) -> Design:
    """Return the aspects that a page tells: colors of body, bar (the first table) and boxes (``td``)."""
    tags, heading = list[str](), None
    colors: dict[str, list[str]] = {"body": [], "table": [], "td": []}
    for element in elements(html):
        tags.append(element.tag)
        if element.tag == "h1" and heading is None:
            heading = " ".join(element.texts)
        if element.tag in colors and (color := element.attributes.get("bgcolor")):
            colors[element.tag].append(color.lower())
    layout = {0: None, 1: "row"}.get(tags.count("tr"), "column")
    background, bar, box = (next(iter(values), None) for values in colors.values())
    return Design(heading, background, box, layout, bar, len(colors["td"]))


def largest_difference(page: Design, goal: Design) -> str | None:
    """Return the name of the first aspect that differs; ``None`` if all are the same."""
    return next(
        (name for name, value in asdict(goal).items() if getattr(page, name) != value), None
    )


NO_PAGE = "I see no page."
RIGHT = "That is the page I want."
SENTENCES = {
    "background": "The background is not right.",
    "layout": "The boxes are not in the right place.",
    "boxes": "The boxes are not right.",
    "count": "The number of boxes is not right.",
    "bar": "The bar at the top is not right.",
    "heading": "The heading is not right.",
}


def scripted_reply(goal: Design, text: str) -> str:
    """Return the reply to a message: the largest difference of its page alone."""
    html = page_in(text)
    if html is None:
        return NO_PAGE
    name = largest_difference(read_design(html), goal)
    return RIGHT if name is None else SENTENCES[name]


@series
def generate(split: MicroSplit, seed: int) -> Iterator[Design]:
    """Yield the designs of a split, without duplicates."""
    rng = split_random(split, f"pages/{split}/{seed}")
    return distinct(split, lambda _: draw_design(rng), lambda design: design, canonical_key)


def draw_design(rng: random.Random) -> Design:
    """Draw a design of any kind. Its background, bar and boxes have three colors."""
    kind = rng.choice(KINDS)
    while True:
        hidden = {name: _draw_value(name, likely, rng) for name, likely in LIKELY[kind].items()}
        if len({hidden[name] for name in ("background", "bar", "boxes")}) == 3:
            return Design(draw_heading(kind, rng), **hidden)


def _draw_value(name: str, likely: Sequence[Any], rng: random.Random) -> Any:
    is_likely = rng.random() < LIKELY_SHARE
    return rng.choice([value for value in VALUES[name] if (value in likely) == is_likely])


def draw_heading(kind: str, rng: random.Random) -> str:
    return f"{rng.choice(QUALITIES)} {rng.choice(PLACES)} {kind}"


def share_right(page: Design, goal: Design) -> float:
    """Return the share of the hidden aspects that a page has right."""
    return sum(getattr(page, name) == getattr(goal, name) for name in VALUES) / len(VALUES)


def canonical_key(d: Design) -> str:
    """Return the identity of a design across splits: its heading and its hidden aspects."""
    return f"{d.heading}|{d.background}|{d.boxes}|{d.layout}|{d.bar}|{d.count}"


def request(design: Design) -> str:
    return (
        f"I need a page, from <html> to </html>, with the heading {design.heading}: a bar at the top with the heading "
        "in it, and below it some boxes on a background."
    )


EXAMPLE = Design("My Shop", "gray", "pink", "row", "green", 2)
SYSTEM_PROMPT = (
    "You make web pages for a person. Show one page in each message, such as this one with two boxes:\n"
    f"{write_page(EXAMPLE)}\nOnce it is right, write {MARKER} and the page."
)
HIDDEN = "design"
"""Name of the secret with the design, as JSON."""
SCORE = "design"
"""Metric of the score by aspects."""


class ScriptedUser:
    """A scripted user, who says which aspect is the largest difference of a page."""

    name = "script:pages"

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        goal = Design(**json.loads(task.secrets[HIDDEN].reveal(PERSON)))
        return await asyncio.to_thread(scripted_reply, goal, transcript[-1][1])


class PagesSettings(FrontendSettings):
    """Settings of the micro-world."""

    turns: int = key(MAX_TURNS, "Maximum turns of the agent.", ge=1)
    score: Literal["aspects", "similarity"] = key(
        "aspects",
        f"Score of the last page: the share of its `aspects` that are right, minus {TURN_COST} for each message after "
        "the first; or the `similarity` of the pictures, which need a browser.",
    )


class Pages(Frontend):
    """Micro-world of web pages."""

    name = "pages"
    settings_type = PagesSettings
    settings: PagesSettings
    script: UserSimulator | None = ScriptedUser()

    def __init__(self, settings: PagesSettings | None = None) -> None:
        settings = settings or PagesSettings()
        super().__init__(settings)
        if settings.score == "aspects":
            self.needs, self.reward, self.metric = (), SCORE, "aspects"

    async def grade(self, state: State, session: Any) -> Grade:
        """Score the aspects of the answer; 0 without a page."""
        if self.settings.score == SIMILARITY:
            return await super().grade(state, session)
        goal = read_design(state.task.secrets[REFERENCE].reveal(GRADER))
        share = 0.0 if state.answer is None else share_right(read_design(state.answer), goal)
        turns = sum(turn.speaker.name == AGENT for turn in state.turns)
        score = max(0.0, share - TURN_COST * (turns - 1))
        well_formed = float(state.end == ANSWERED and state.answer is not None)
        metrics = {SCORE: score, "aspects": share, "turns": turns, WELL_FORMED: well_formed}
        return Grade(score, metrics)

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        tasks = []
        for number, design in generate(split, seed).draw(split, count, previous_counts):
            name, text = f"{split}-{seed}-{number}", json.dumps(asdict(design))
            hidden = {HIDDEN: Secret(text, name=HIDDEN, readers=frozenset({PERSON}))}
            tasks.append(collaboration_task(name, request(design), write_page(design), hidden))
        return tasks

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return (Part(SYSTEM_PROMPT, source="task"),)
