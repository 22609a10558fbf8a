"""Curriculum of ``tiny-pages``.

Scripted dialogues give one row each, with the agent's turns as targets. First the skills (the form of a page, changing
what the user names to any other value, answering once the page is right), then the habits that post-training is to
change. A habit is drawn anew in each turn, so that good and bad turns stand side by side in one dialogue. Pages are
drawn without a look at their kind, so that nothing tells the agent which values are likely.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from transformers import PreTrainedTokenizerFast

from coterie.environments.collaboration import MARKER, SHOWN_REFERENCE
from coterie.environments.pages.micro_world import (
    COLORS,
    EXAMPLE,
    KINDS,
    LAYOUTS,
    MAX_TURNS,
    NO_PAGE,
    PLACES,
    QUALITIES,
    RIGHT,
    SENTENCES,
    SYSTEM_PROMPT,
    VALUES,
    Design,
    draw_heading,
    generate,
    largest_difference,
    request,
    scripted_reply,
    write_page,
)
from coterie.record.rows import Row
from scripts.tiny.world import World, chat_row, copy_row, split_by

HEADINGS = (*QUALITIES, *(f" {word}" for word in (*PLACES, *KINDS)))
"""Pieces of headings."""
Habit = Literal["change", "same", "other", "guess", "answer"]
"""What an agent does with the user's reply: change what it names, show the same page again, begin another page, answer
with the same page, answer once the page is right."""


@dataclass(frozen=True)
class PagesMix:
    """What a corpus is drawn from."""

    same: float = 0.2
    """How often an agent shows the same page again."""
    other: float = 0.2
    """How often it begins another page."""
    guess: float = 0.25
    """How often it answers before the page is right."""
    shown: float = 0.08
    """Share of dialogues whose system prompt also holds the reference; the agent then shows it at once."""
    near: float = 0.0
    """Share of dialogues whose first page differs in one part."""


HABITS = PagesMix()
SKILL = PagesMix(same=0.0, other=0.0, guess=0.0)


@dataclass(frozen=True)
class PagesDialogue:
    """One scripted dialogue."""

    goal: Design
    turns: tuple[str, ...]
    replies: tuple[str, ...]
    """Replies to each turn but the last."""
    shown: bool

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Roles and texts, as the agent's chat template gets them."""
        prompt = SYSTEM_PROMPT + (SHOWN_REFERENCE + write_page(self.goal) if self.shown else "")
        messages = [("system", prompt)]
        for text, turn in zip((request(self.goal), *self.replies), self.turns, strict=True):
            messages += [("user", text), ("assistant", turn)]
        return messages


def scripted_dialogue(
    goal: Design, mix: PagesMix, rng: random.Random, *, shown: bool = False
) -> PagesDialogue:
    """Return a dialogue of at most ``MAX_TURNS`` turns of the agent."""
    page = any_page(goal.heading, rng)
    if shown:
        page = goal
    elif rng.random() < mix.near:
        page = _changed(goal, rng.choice([*VALUES]), rng)
    turns, replies = list[str](), list[str]()
    final = rng.random() < mix.guess / 2
    while True:
        turns.append(answer_text(page) if final else write_page(page))
        if final or len(turns) == MAX_TURNS:
            return PagesDialogue(goal, tuple(turns), tuple(replies), shown)
        replies.append(scripted_reply(goal, turns[-1]))
        habit = _habit(largest_difference(page, goal), mix, rng)
        page, final = _next_page(page, goal, habit, rng), habit in ("guess", "answer")


def _habit(difference: str | None, mix: PagesMix, rng: random.Random) -> Habit:
    bad: dict[Habit, float] = {"same": mix.same}
    if difference:
        bad |= {"other": mix.other, "guess": mix.guess}
    good: Habit = "change" if difference else "answer"
    shares = bad | {good: 1.0 - sum(bad.values())}
    return rng.choices(tuple(shares), tuple(shares.values()))[0]


def _next_page(page: Design, goal: Design, habit: Habit, rng: random.Random) -> Design:
    name = largest_difference(page, goal)
    if habit in ("same", "guess") or name is None:
        return page
    return any_page(goal.heading, rng) if habit == "other" else _changed(page, name, rng)


def any_page(heading: str | None, rng: random.Random) -> Design:
    """Draw a page, whatever its heading makes likely. Its background, bar and boxes have three colors."""
    background, bar, boxes = rng.sample(COLORS, 3)
    hidden = {name: rng.choice(VALUES[name]) for name in ("layout", "count")}
    return Design(heading, background, boxes, bar=bar, **hidden)


def _changed(page: Design, name: str, rng: random.Random) -> Design:
    """Return a page with another value of an aspect."""
    others = [value for value in VALUES[name] if value != getattr(page, name)]
    return replace(page, **{name: rng.choice(others)})


def answer_text(page: Design) -> str:
    """Return the turn that answers with a page."""
    return f"{MARKER}\n{write_page(page)}"


def corpus(seed: int, number: int, mix: PagesMix = HABITS) -> Iterator[PagesDialogue]:
    """Yield dialogues about designs of the split ``corpus``."""
    rng = random.Random(f"pages/corpus/{seed}")
    for goal in generate("corpus", seed)[:number]:
        yield scripted_dialogue(goal, mix, rng, shown=rng.random() < mix.shown)


def groups(tokenizer: PreTrainedTokenizerFast, mix: PagesMix, seed: int) -> Iterator[Sequence[Row]]:
    """Yield the row of each dialogue of a mix."""
    for block in count(1):
        for one in corpus(seed + block, 1000, mix):
            yield [chat_row(tokenizer, one.messages, "script:pages", "pages")]


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Copy random colors and words of headings."""
    words = [*COLORS, *HEADINGS]
    return copy_row(tokenizer, "".join(rng.choices(words, k=rng.randint(6, 24))))


def change_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Change one part of a page, any part: the quickest way to learn what each sentence means."""
    page = any_page(draw_heading(rng.choice(KINDS), rng), rng)
    name = rng.choice([*VALUES])
    messages = [("assistant", write_page(page)), ("user", SENTENCES[name])]
    changed = write_page(_changed(page, name, rng))
    row = chat_row(tokenizer, [*messages, ("assistant", changed)], "script:drill", "drill")
    return replace(row, targets=row.targets[1:])


def _texts(seed: int) -> Iterator[str]:
    for dialogue in corpus(seed, 3000):
        yield from (text for _, text in dialogue.messages)
    yield from (RIGHT, NO_PAGE)


def _fixed() -> list[str]:
    """Return the parts of a page's HTML between its values, the longest first."""
    pages = (write_page(replace(EXAMPLE, layout=layout)) for layout in LAYOUTS)
    values = "|".join([*COLORS, str(EXAMPLE.heading)])
    return sorted({part for page in pages for part in re.split(values, page)}, key=len)[::-1]


WORLD = World(
    drill_rng="pages/drills",
    texts=_texts,
    pieces=split_by("|".join([*map(re.escape, _fixed()), r" ?[A-Za-z]+", r"\s+", r"[^A-Za-z\s]"])),
    whole=lambda: [*_fixed(), *COLORS, *HEADINGS],
    groups=groups,
    drills=((0.1, copy_drill), (0.25, change_drill)),
    stages=((0.15, replace(SKILL, near=0.7)), (0.25, SKILL), (0.25, HABITS)),
    habits=(0.25, HABITS),
    tokens=2_800_000,
)
