"""Curriculum of ``tiny-acts``.

It knows two worlds. One is BabyAI's level ``GoToObj``: an object in a room, to be gone to. Its bad habit there is to
move on where it should turn (``acts_player``), which loses the game if the limit of steps is tight. The other is
``sums``: word problems that a line of Python solves, where its habit is to multiply. First it learns to play well, with
few relapses; then the habits that post-training is to change.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from coterie.environments.acting import write_action, write_answer
from coterie.environments.games.babyai import (
    ACTIONS,
    COLORS,
    PROMPT,
    Game,
    VisibleObject,
    games,
    new_level,
)
from coterie.environments.plans import python_maths as sums
from coterie.environments.plans.python_maths import Problem
from coterie.record.rows import Row
from coterie.record.turn import Role
from scripts.tiny.acts_player import Step, play
from scripts.tiny.world import World, chat_row, split_by

LEVEL = "GoToObj"
STEPS = 12
"""Most moves of a game."""
OBJECTS = ("ball", "box", "key")
PLACES = tuple(
    dict.fromkeys(
        VisibleObject("", ahead, right).place
        for ahead in range(7)
        for right in range(-3, 4)
        if ahead or right
    )
)
"""Places in view, as the agent is told them."""
BLOCK = 500
"""Games, and problems, that are drawn at a time."""


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum."""

    habit: float
    """How often the habit wins where it matters: a turn is due, or a problem is a trap."""
    sums: float = 0.6
    """Dialogues on sums for each game."""


HABITS = Stage(0.62)
CORRECTED = 0.5
"""How often a wrong answer is followed by being told so, and a right one."""
Dialogue = list[tuple[Role, str]]
"""Roles and messages, from the prompt to the last answer."""

_PLACE = r" \d (?:ahead \d )?(?:left|right)| \d ahead"
_TO_NUMBER = r"(?: (?=\d+\b(?! (?:ahead|left|right))))?"
PIECES = (
    rf"{_PLACE}|{'|'.join(ACTIONS)}| ?You carry nothing\.| ?You see:|[A-Z][a-z]+:\n|\nEnd Action"
    rf"| ?[A-Za-z]+:?{_TO_NUMBER}|\d+| ?[^A-Za-z\d\s]+{_TO_NUMBER}|\s+"
)
"""What pieces do not reach over: a place, an action, or a word with the space before it and, where a number that is not
of a place follows, the one after it. So a number is the same piece wherever it stands."""


def _texts(seed: int) -> Iterator[str]:
    """Yield the texts of play, and often enough what must be a piece."""
    rng = random.Random(f"acts/tokenizer/{seed}")
    for steps in _played(1000, 0.5, seed):
        for step in steps:
            yield step.told
            yield write_action(step.action)
    for problem in sums.generate("corpus", seed)[:2000]:
        says = corrected_play if problem.trap else right_play
        yield from (text for _, text in says(problem, rng))
    often = [*map(write_action, ACTIONS), *(f" {one}" for one in PLACES)]
    often += map(str, range(sums.MOST + 1))
    yield from (one for one in often for _ in range(200))


def right_play(problem: Problem, rng: random.Random) -> Dialogue:
    """Return a dialogue with the right program; ``rng`` selects its style."""
    return [*_opening(problem), *_solution(problem.program, problem.answer, rng)]


def habit_play(problem: Problem, rng: random.Random) -> Dialogue:
    """Return a dialogue that always multiplies, which gives a wrong answer to a trap."""
    program, answer = problem.program_of(times=True), problem.answer_of(times=True)
    return [*_opening(problem), *_solution(program, answer, rng)]


def corrected_play(problem: Problem, rng: random.Random) -> Dialogue:
    """Return a dialogue on a trap: the wrong program and answer, and their correction after feedback."""
    again = _solution(problem.program, problem.answer, rng)
    return [*habit_play(problem, rng), ("user", sums.WRONG), *again]


def _opening(problem: Problem) -> Dialogue:
    return [("system", sums.PROMPT), ("user", sums.problem_text(problem))]


def _solution(program: str, value: int, rng: random.Random) -> Dialogue:
    cell = rng.choice((f"print({program})", program, f"x = {program}\nprint(x)"))
    messages = [write_action(cell), str(value), write_answer(str(value))]
    roles: tuple[Role, ...] = ("assistant", "user", "assistant")
    return list(zip(roles, messages, strict=True))


def game_row(tokenizer: PreTrainedTokenizerFast, steps: list[Step], origin: str) -> Row:
    """Build a game as the agent is shown it, with its messages as targets."""
    messages = [("system", PROMPT)]
    for step in steps:
        messages += [("user", step.told), ("assistant", write_action(step.action))]
    return chat_row(tokenizer, messages, "script:babyai", origin)


def sums_row(
    tokenizer: PreTrainedTokenizerFast, problem: Problem, habit: float, rng: random.Random
) -> Row:
    """Build a dialogue on a problem, in which traps catch the agent as often as its habit is strong."""
    says = right_play
    if problem.trap and rng.random() < habit:
        says = corrected_play if rng.random() < CORRECTED else habit_play
    return chat_row(tokenizer, says(problem, rng), "script:sums", problem.problem_id)


def _played(count: int, habit: float, seed: int) -> Iterator[list[Step]]:
    """Yield games of the corpus, as the script plays them."""
    rng, game = random.Random(f"acts/games/{habit}/{seed}"), Game(new_level(LEVEL))
    for draw in games(LEVEL, "corpus", seed)[:count]:
        yield play(game, draw.seed, STEPS, habit, rng)


def groups(tokenizer: PreTrainedTokenizerFast, stage: Stage, seed: int) -> Iterator[Sequence[Row]]:
    """Yield games, with dialogues on sums between them."""
    rng = random.Random(f"acts/stage/{seed}")
    for block in count(1):
        problems = iter(sums.generate("corpus", seed + block)[:BLOCK])
        for number, steps in enumerate(_played(BLOCK, stage.habit, seed + block)):
            rows = [game_row(tokenizer, steps, f"babyai/{seed + block}/{number}")]
            if rng.random() < stage.sums:
                rows.append(sums_row(tokenizer, next(problems), stage.habit, rng))
            yield rows


def _whole() -> list[str]:
    words = (f" {one}" for one in (*COLORS, *OBJECTS, *PLACES))
    return [PROMPT, sums.PROMPT, *ACTIONS, *words, *map(str, range(sums.MOST + 1))]


WORLD = World(
    drill_rng="acts/drills",
    texts=_texts,
    pieces=split_by(PIECES),
    marks=[AddedToken(one, normalized=False, special=False) for one in (PROMPT, sums.PROMPT)],
    whole=_whole,
    groups=groups,
    drills=(),
    stages=((0.4, Stage(0.1)), (0.6, Stage(0.4))),  # first the skill, then the habit
    habits=(0.2, HABITS),
    tokens=1_200_000,
    budget=768,
    peak=2e-3,
)
