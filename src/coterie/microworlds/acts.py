"""The tiny model that acts: its tokenizer and the rows that it learns from.

It knows two worlds. One is BabyAI's level ``GoToObj``: an object in a room, to be gone to. Its bad habit there is to
move on where it should turn (``acts_player``), which loses the game if the limit of steps is tight. The other is
``sums``: word problems that a line of Python solves, where its habit is to multiply. First it learns to play well, with
few relapses; then the habits that post-training is to change.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from coterie.environments.acting import sums
from coterie.environments.acting.babyai import ACTIONS, TOLD, Game
from coterie.environments.acting.babyai_games import games, new_level
from coterie.environments.acting.babyai_view import COLOURS, Seen
from coterie.environments.acting.syntax import written_action
from coterie.microworlds.acts_player import Step, play
from coterie.microworlds.model import (
    MicroWorld,
    chat_row,
    fast_tokenizer,
    train_bpe,
    with_visible_marks,
)
from coterie.trajectories.row import Row

LEVEL = "GoToObj"
STEPS = 12
"""Most moves of a game."""
OBJECTS = ("ball", "box", "key")
PLACES = tuple(
    dict.fromkeys(
        Seen("", ahead, right).place
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

    share: float
    """Its share of the tokens."""
    habit: float
    """How often the habit wins where it matters: a turn is due, or a problem is a trap."""
    sums: float = 0.6
    """Dialogues on sums for each game."""


CURRICULUM = (Stage(0.4, 0.1), Stage(0.6, 0.4))
"""First the skill."""
HABITS = Stage(0.2, 0.62)
"""Then the habit."""
CORRECTED = 0.5
"""How often a wrong answer is followed by being told so, and a right one."""

# -- pieces ----------------------------------------------------------------------------------------

_PLACE = r" \d (?:ahead \d )?(?:left|right)| \d ahead"
_TO_NUMBER = r"(?: (?=\d+\b(?! (?:ahead|left|right))))?"
PIECES = (
    rf"{_PLACE}|{'|'.join(ACTIONS)}| ?You carry nothing\.| ?You see:|[A-Z][a-z]+:\n|\nEnd Action"
    rf"| ?[A-Za-z]+:?{_TO_NUMBER}|\d+| ?[^A-Za-z\d\s]+{_TO_NUMBER}|\s+"
)
"""What pieces do not reach over: a place, an action, or a word with the space before it and, where a number that is not
of a place follows, the one after it. So a number is the same piece wherever it stands."""


def build_tokenizer(vocabulary: int, seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on play, in which a place, an action, a number and a whole prompt are one piece each.

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
    prompts = (TOLD, sums.PROMPT)
    marks = [AddedToken(one, normalized=False, special=False) for one in prompts]
    train_bpe(tokenizer, vocabulary, _texts(seed), marks)
    tokenizer = with_visible_marks(tokenizer, prompts)
    whole = [*prompts, *ACTIONS, *(f" {one}" for one in (*COLOURS, *OBJECTS, *PLACES))]
    whole += map(str, range(sums.MOST + 1))
    split = [one for one in whole if len(tokenizer.encode(one).ids) != 1]
    if split:
        raise ValueError(
            f"texts that are not one piece: {split}; allow more than {vocabulary} pieces"
        )
    return fast_tokenizer(tokenizer)


def _texts(seed: int) -> Iterator[str]:
    """What is said in play, and what must be a piece often enough."""
    rng = random.Random(f"acts/tokenizer/{seed}")
    for steps in _played(1000, 0.5, seed):
        for step in steps:
            yield step.told
            yield written_action(step.action)
    for problem in sums.generate("corpus", 2000, seed):
        says = sums.corrected_play if problem.trap else sums.right_play
        yield from (text for _, text in says(problem, rng))
    often = [*map(written_action, ACTIONS), *(f" {one}" for one in PLACES)]
    often += map(str, range(sums.MOST + 1))
    yield from (one for one in often for _ in range(200))


# -- rows ------------------------------------------------------------------------------------------


def game_row(tokenizer: PreTrainedTokenizerFast, steps: list[Step], origin: str) -> Row:
    """A game as the agent is shown it: ids as the chat template renders them, its messages as targets."""
    messages = [("system", TOLD)]
    for step in steps:
        messages += [("user", step.told), ("assistant", written_action(step.action))]
    return chat_row(tokenizer, messages, "script:babyai", origin)


def sums_row(
    tokenizer: PreTrainedTokenizerFast, problem: sums.Problem, habit: float, rng: random.Random
) -> Row:
    """A dialogue on a problem, in which traps catch the agent as often as its habit is strong."""
    says = sums.right_play
    if problem.trap and rng.random() < habit:
        says = sums.corrected_play if rng.random() < CORRECTED else sums.habit_play
    return chat_row(tokenizer, says(problem, rng), "script:sums", problem.problem_id)


def stage_rows(
    tokenizer: PreTrainedTokenizerFast, stage: Stage, tokens: float, seed: int
) -> Iterator[Row]:
    """Rows of ``tokens`` tokens of one stage, made in blocks: games, and dialogues on sums between them."""
    rng, left, block = random.Random(f"acts/stage/{seed}"), tokens, 0
    while left > 0:
        block += 1
        problems = iter(sums.generate("corpus", BLOCK, seed + block))
        for number, steps in enumerate(_played(BLOCK, stage.habit, seed + block)):
            rows = [game_row(tokenizer, steps, f"babyai/{seed + block}/{number}")]
            if rng.random() < stage.sums:
                rows.append(sums_row(tokenizer, next(problems), stage.habit, rng))
            for row in rows:
                left -= len(row.ids)
                yield row
            if left <= 0:
                break


def _played(count: int, habit: float, seed: int) -> Iterator[list[Step]]:
    """Games of the corpus, as the script plays them."""
    rng, game = random.Random(f"acts/games/{habit}/{seed}"), Game(new_level(LEVEL))
    for draw in games(LEVEL, "corpus", seed, 0, count):
        yield play(game, draw.seed, STEPS, habit, rng)


def skill_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of ``tokens`` tokens in all, stage after stage."""
    for number, stage in enumerate(CURRICULUM):
        yield from stage_rows(tokenizer, stage, stage.share * tokens, seed + 1000 * number)


def _habit_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of play with the habits."""
    return stage_rows(tokenizer, HABITS, tokens, seed)


ACTS = MicroWorld(
    *(build_tokenizer, skill_rows, _habit_rows, HABITS.share),
    tokens=1_200_000,
    budget=768,
    peak=2e-3,
)
