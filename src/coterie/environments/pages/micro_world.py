"""The ``pages`` micro-world: an agent makes a small page with hidden colors, boxes and layout.

The request tells the heading alone. The user sees the page and names the largest difference from the page in mind. A
page is short HTML. A hash of the hidden aspects decides the split.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.web_pages import elements, page_in
from coterie.environments.collaboration import MARKER, collaboration_task
from coterie.environments.pages.frontend import Frontend, FrontendSettings
from coterie.environments.settings import MicroSplit, distinct, series, split_random, split_words
from coterie.environments.user_simulator import PERSON, TranscriptLine, UserSimulator
from coterie.record.tree import Secret, Task
from coterie.record.turn import Part

COLORS = split_words("red yellow green blue pink gray")
COUNTS = {2: "two", 3: "three", 4: "four"}
LAYOUTS = {"row": "next to each other", "column": "below each other"}
KINDS = split_words("Bakery Library Garden Hotel Museum School")
PLACES = split_words("Rose Harbor Maple Summit River Cedar Valley Stone Meadow Willow")
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
    "background": "The background should be {}.",
    "layout": "The boxes should be {}.",
    "boxes": "The boxes should be {}.",
    "count": "There should be {} boxes.",
    "bar": "The bar at the top should be {}.",
    "heading": "The heading should be {}.",
}


def scripted_reply(goal: Design, text: str) -> str:
    """Return the reply to a message: the largest difference of its page alone."""
    html = page_in(text)
    if html is None:
        return NO_PAGE
    name = largest_difference(read_design(html), goal)
    if name is None:
        return RIGHT
    return SENTENCES[name].format(in_words(getattr(goal, name)))


def in_words(value: Any) -> str:
    return COUNTS.get(value) or LAYOUTS.get(value) or str(value)


@series
def generate(split: MicroSplit, seed: int) -> Iterator[Design]:
    """Yield the designs of a split, without duplicates."""
    rng = split_random(split, f"pages/{split}/{seed}")
    return distinct(split, lambda _: draw_design(rng), lambda design: design, canonical_key)


def draw_design(rng: random.Random) -> Design:
    """Draw a design whose background, bar and boxes have three colors."""
    background, bar, boxes = rng.sample(COLORS, 3)
    layout, count = rng.choice([*LAYOUTS]), rng.choice([*COUNTS])
    heading = f"{rng.choice(PLACES)} {rng.choice(KINDS)}"
    return Design(heading, background, boxes, layout, bar, count)


def canonical_key(d: Design) -> str:
    """Return the identity of a design across splits: its hidden aspects."""
    return f"{d.background}|{d.boxes}|{d.layout}|{d.bar}|{d.count}"


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


class ScriptedUser:
    """A scripted user, who names the largest difference of a page."""

    name = "script:pages"

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        goal = Design(**json.loads(task.secrets[HIDDEN].reveal(PERSON)))
        return await asyncio.to_thread(scripted_reply, goal, transcript[-1][1])


class PagesSettings(FrontendSettings):
    """Settings of the micro-world."""

    turns: int = key(MAX_TURNS, "Maximum turns of the agent.", ge=1)


class Pages(Frontend):
    """Micro-world of web pages."""

    name = "pages"
    settings_type = PagesSettings
    settings: PagesSettings
    script: UserSimulator | None = ScriptedUser()

    def __init__(self, settings: PagesSettings | None = None) -> None:
        super().__init__(settings or PagesSettings())

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
