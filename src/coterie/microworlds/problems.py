"""The tiny model of the ``problems`` micro-world: its tokenizer and the rows that it learns from.

It is a planner and a grounder at once, told apart by what they are told first. The grounder learns careful plans, which
mean one thing; the planner's habit is to be brief, whether that means one thing or two.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from coterie.environments.plan_ground.prompts import actions_text, plan_text
from coterie.environments.problems.tasks import (
    FAR_PARTS,
    FIRSTS,
    OWNERS,
    PARTS,
    SECONDS,
    THINGS,
    Problem,
    Wording,
    facts,
    generate,
)
from coterie.environments.problems.wordings import (
    CAREFUL_BRIEFS,
    GROUNDER_PROMPT,
    PLANNER_PROMPT,
    actions,
    fact_text,
    problem_text,
    subgoals,
)
from coterie.microworlds.model import (
    MicroWorld,
    chat_row,
    copy_row,
    drill_rows,
    fast_tokenizer,
    train_bpe,
)
from coterie.trajectories.row import Row, Target


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum."""

    share: float
    """Its share of the tokens."""
    parts: tuple[int, ...]
    briefs: float
    """How often the planner is brief."""
    far: float
    """Share of problems in other words."""


CURRICULUM = (
    Stage(0.14, (2,), 0.5, 0.2),
    Stage(0.6, (2, 3, 3, *FAR_PARTS), 0.7, 0.3),
)
"""First the skill: whole plans of both kinds."""
HABITS = Stage(0.2, (*PARTS, *PARTS, *FAR_PARTS), 0.85, 0.25)
"""Then the habit: briefs, also where they mean two things."""


def build_tokenizer(vocabulary: int, seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on problems, in which a number, a name and a thing are each one piece.

    Raises ``ValueError`` if one is not.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train_bpe(tokenizer, vocabulary, _texts(seed))
    words = [*(f" {one}'s" for one in OWNERS), *(f" {one}" for one in THINGS)]
    words += map(str, (*FIRSTS, *SECONDS))
    split = [one for one in words if len(tokenizer.encode(one).ids) != 1]
    if split:
        raise ValueError(
            f"words that are not one piece: {split}; allow more than {vocabulary} pieces"
        )
    return fast_tokenizer(tokenizer)


def _texts(seed: int) -> Iterator[str]:
    """Problems in both wordings, plans and actions."""
    rng = random.Random(f"problems/tokenizer/{seed}")
    for wording in ("near", "far"):
        for problem in generate("corpus", 1500, seed, PARTS, wording, OFTEN):
            yield problem_text(problem)
            yield plan_text(subgoals(problem, 0.5, rng, careful=False))
            yield actions_text(actions(problem))


def planner_row(problem: Problem, tokenizer: PreTrainedTokenizerFast, plan: str) -> Row:
    """The planner's view of a problem: ids as the chat template renders them."""
    told = [("system", PLANNER_PROMPT), ("user", f"Task: {problem_text(problem)}")]
    return chat_row(tokenizer, [*told, ("assistant", plan)], "script:problems", problem.problem_id)


def grounder_row(problem: Problem, tokenizer: PreTrainedTokenizerFast, plan: str) -> Row:
    """The grounder's view of a problem and a plan."""
    told = [("system", f"{GROUNDER_PROMPT} Task: {problem_text(problem)}"), ("user", plan)]
    said = ("assistant", actions_text(actions(problem)))
    return chat_row(tokenizer, [*told, said], "script:problems", problem.problem_id)


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Random words and numbers three times over, the repeats as targets: the quickest way to copy."""
    count = rng.randint(6, 20)
    words = rng.sample([*(f"{one}'s" for one in OWNERS), *THINGS], count) + rng.sample(
        [*map(str, FIRSTS)], count // 4
    )
    return copy_row(tokenizer, " ".join(rng.sample(words, len(words))))


def fact_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Facts, then the same in another order, as targets: the quickest way to look one up."""
    wording: Wording = rng.choice(("near", "near", "far"))
    told = [fact_text(fact, wording) for fact in facts(rng)]
    first, again = (
        tokenizer.encode(f" {' '.join(rng.sample(told, len(told)))}", add_special_tokens=False)
        for _ in range(2)
    )
    return Row((*first, *again), (Target(len(first), len(first) + len(again), "script:drill"),))


PIECES = r" ?[A-Za-z']+(?: (?=\d))?|\d+| ?[^A-Za-z\d\s]+(?: (?=\d))?|\s+"
"""What pieces do not reach over: a word with the space before it and, where a number follows, the one after it. So a
number is the same piece wherever it stands, and stands few pieces after its owner."""
OFTEN = 0.4
"""How often an owner who counts has quantities that do not, so that the grounder learns to tell them apart."""
DRILLS = ((0.14, copy_drill), (0.12, fact_drill))
"""What comes first: share of the tokens, and the drill."""


def skill_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of ``tokens`` tokens in all: drills, then the stages of the curriculum."""
    rng = random.Random(f"problems/drills/{seed}")
    for share, drill in DRILLS:
        yield from drill_rows(tokenizer, drill, share * tokens, rng)
    for number, stage in enumerate(CURRICULUM):
        yield from stage_rows(tokenizer, stage, stage.share * tokens, seed + 1000 * number)


def stage_rows(
    tokenizer: PreTrainedTokenizerFast, stage: Stage, tokens: float, seed: int
) -> Iterator[Row]:
    """Rows of ``tokens`` tokens of one stage, made in blocks: of each problem one for each role."""
    rng, left, block = random.Random(f"problems/stage/{seed}"), tokens, 0
    while left > 0:
        block += 1
        for problem in _mixed(stage, seed + block, rng):
            plan = plan_text(subgoals(problem, stage.briefs, rng, careful=False))
            right = plan_text(
                subgoals(problem, rng.choice((0.0, CAREFUL_BRIEFS)), rng, careful=True)
            )
            for row in (
                planner_row(problem, tokenizer, plan),
                grounder_row(problem, tokenizer, right),
            ):
                left -= len(row.ids)
                yield row
            if left <= 0:
                break


def _mixed(stage: Stage, seed: int, rng: random.Random) -> list[Problem]:
    """Problems of a stage in both wordings, shuffled; more owners have several quantities than in tasks."""
    far = round(1000 * stage.far)
    found = generate("corpus", 1000 - far, seed, stage.parts, "near", OFTEN)
    found += generate("corpus", far, seed, stage.parts, "far", OFTEN)
    rng.shuffle(found)
    return found


def _habit_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of the planner's habit."""
    return stage_rows(tokenizer, HABITS, tokens, seed)


PROBLEMS = MicroWorld(build_tokenizer, skill_rows, _habit_rows, HABITS.share, tokens=4_400_000)
