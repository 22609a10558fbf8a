"""Curriculum of ``tiny-problems``.

It is a planner and a grounder at once, told apart by what they are told first. The grounder learns careful plans, which
mean one thing; the planner's habit is to be brief, whether that means one thing or two. The grounder's habit is to
misread quantities in words in half of the rows.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from transformers import PreTrainedTokenizerFast

from coterie.environments.plans.plan_ground import actions_text, plan_text
from coterie.environments.plans.problems import (
    CAREFUL_BRIEFS,
    FAR_PARTS,
    FIRSTS,
    GROUNDER_PROMPT,
    MISREADINGS,
    OWNERS,
    PARTS,
    PLANNER_PROMPT,
    SECOND,
    THINGS,
    Fact,
    Problem,
    Wording,
    actions,
    draw_facts,
    fact_text,
    generate,
    problem_text,
    subgoals,
)
from coterie.record.rows import Row
from scripts.tiny.world import World, answer_row, chat_row, copy_row, split_by


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum."""

    parts: tuple[int, ...]
    briefs: float
    """How often the planner is brief."""
    far: float
    """Share of problems in other words."""
    misread: float = 0.0
    """Share of rows in which the grounder misreads all quantities in words."""


def facts(rng: random.Random) -> list[Fact]:
    owners = rng.sample(OWNERS, rng.randint(3, 6))
    return draw_facts([(owner, rng.choice(THINGS)) for owner in owners], rng)


def _texts(seed: int) -> Iterator[str]:
    """Yield problems in both wordings, plans and actions."""
    rng = random.Random(f"problems/tokenizer/{seed}")
    for wording in ("near", "far"):
        for problem in generate("corpus", seed, PARTS, wording, OFTEN)[:1500]:
            yield problem_text(problem)
            yield plan_text(subgoals(problem, 0.5, rng, careful=False))
            text = actions_text(actions(problem))
            yield text
            yield misread_text(text)


def planner_row(problem: Problem, tokenizer: PreTrainedTokenizerFast, plan: str) -> Row:
    """Build the planner's view of a problem."""
    told = [("system", PLANNER_PROMPT), ("user", f"Task: {problem_text(problem)}")]
    return chat_row(tokenizer, [*told, ("assistant", plan)], "script:problems", problem.problem_id)


def grounder_row(
    problem: Problem, tokenizer: PreTrainedTokenizerFast, plan: str, *, misread: bool = False
) -> Row:
    """Build the grounder's view of a problem and a plan."""
    told = [("system", f"{GROUNDER_PROMPT} Task: {problem_text(problem)}"), ("user", plan)]
    text = actions_text(actions(problem))
    said = ("assistant", misread_text(text) if misread else text)
    return chat_row(tokenizer, [*told, said], "script:problems", problem.problem_id)


def misread_text(text: str) -> str:
    """Replace the ends of all calculations that come from words by their misreadings."""
    for right, wrong in MISREADINGS.items():
        text = text.replace(f" {right})", f" {wrong})")
    return text


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Copy random words and numbers."""
    count = rng.randint(6, 20)
    words = rng.sample([*(f"{one}'s" for one in OWNERS), *THINGS], count) + rng.sample(
        [*map(str, FIRSTS)], count // 4
    )
    return copy_row(tokenizer, " ".join(rng.sample(words, len(words))))


def fact_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Repeat facts in another order: the quickest way to learn to look one up."""
    wording: Wording = rng.choice(("near", "near", "far"))
    told = [fact_text(fact, wording) for fact in facts(rng)]
    first, again = (f" {' '.join(rng.sample(told, len(told)))}" for _ in range(2))
    return answer_row(tokenizer, first, again)


PIECES = r" ?[A-Za-z']+(?: (?=\d))?|\d+| ?[^A-Za-z\d\s]+(?: (?=\d))?|\s+"
"""What pieces do not reach over: a word with the space before it and, where a number follows, the one after it. So a
number is the same piece wherever it stands, and stands few pieces after its owner."""
OFTEN = 0.4
"""How often an owner who counts has quantities that do not, so that the grounder learns to tell them apart."""


def _mixed(stage: Stage, seed: int, rng: random.Random) -> list[Problem]:
    """Draw problems in both wordings, shuffled; more owners have several quantities than in tasks."""
    far = round(1000 * stage.far)
    problems = generate("corpus", seed, stage.parts, "near", OFTEN)[: 1000 - far]
    problems += generate("corpus", seed, stage.parts, "far", OFTEN)[:far]
    rng.shuffle(problems)
    return problems


def groups(tokenizer: PreTrainedTokenizerFast, stage: Stage, seed: int) -> Iterator[Sequence[Row]]:
    """Yield two rows of each problem, one for each role."""
    rng = random.Random(f"problems/stage/{seed}")
    for block in count(1):
        for problem in _mixed(stage, seed + block, rng):
            plan = plan_text(subgoals(problem, stage.briefs, rng, careful=False))
            briefs = rng.choice((0.0, CAREFUL_BRIEFS))
            right = plan_text(subgoals(problem, briefs, rng, careful=True))
            misread = rng.random() < stage.misread
            yield [
                planner_row(problem, tokenizer, plan),
                grounder_row(problem, tokenizer, right, misread=misread),
            ]


def _whole() -> list[str]:
    numbers = map(str, (*FIRSTS, 2, SECOND, 10))
    words = (*THINGS, "dozen", "half")
    return [*(f" {one}'s" for one in OWNERS), *(f" {one}" for one in words), *numbers]


WORLD = World(
    drill_rng="problems/drills",
    texts=_texts,
    pieces=split_by(PIECES),
    whole=_whole,
    groups=groups,
    drills=((0.14, copy_drill), (0.12, fact_drill)),
    # First the skill: whole plans of both kinds. Then the habits: misreadings, and briefs that mean two things.
    stages=(
        (0.14, Stage((2,), 0.5, 0.2)),
        (0.6, Stage((2, 3, 3, *FAR_PARTS), 0.7, 0.3)),
    ),
    habits=(0.1, Stage((*PARTS, *PARTS, *FAR_PARTS), 0.85, 0.25, misread=0.5)),
    tokens=3_600_000,
)
