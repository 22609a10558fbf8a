"""The tiny model that acts: its tokenizer and the rows that it learns from.

It plays BabyAI's level ``PickupDistDebug``: five objects in a room, one of which is to be picked up; to pick up a wrong
one loses the game. It learns from scripted play (``acts_player``): first mostly good play, then with the habit that
post-training is to change, which is to go for the nearest object.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from coterie.environments.acting.babyai import ACTIONS, TOLD, Game
from coterie.environments.acting.babyai_games import games, new_level
from coterie.environments.acting.babyai_view import COLOURS, Seen
from coterie.environments.acting.syntax import written_action
from coterie.microworlds.acts_player import Step, play
from coterie.microworlds.model import (
    MicroWorld,
    chat_row,
    drill_rows,
    fast_tokenizer,
    train_bpe,
    with_visible_marks,
)
from coterie.trajectories.row import Row, Target

LEVEL = "PickupDistDebug"
OBJECTS = ("ball", "box", "key")
STEPS = 14
"""Most moves of a game."""
BLOCK = 500
"""Games that are drawn at a time."""


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum."""

    share: float
    """Its share of the tokens."""
    habit: float
    """How often the player goes for the nearest object where that is a wrong one."""


CURRICULUM = (Stage(0.35, 0.0), Stage(0.4, 0.4))
"""First the skill."""
MATCH_SHARE = 0.25
HABITS = Stage(0.2, 0.62)
"""Then the habit."""
WHERE = tuple(
    dict.fromkeys(
        Seen("", ahead, right).place
        for ahead in range(7)
        for right in range(-3, 4)
        if ahead or right
    )
)
"""Places in view."""
PLACES = r" \d (?:ahead \d )?(?:left|right)| \d ahead"
PIECES = (
    rf"{PLACES}|{'|'.join(ACTIONS)}| ?You carry nothing\.| ?You see:|[A-Z][a-z]+:\n|\nEnd Action"
    r"|\n| ?[A-Za-z]+:?| ?\d+| ?[^A-Za-z\d\s]+"
)
"""What pieces do not reach over: a place, an action, a word with the space before it."""


def build_tokenizer(vocabulary: int, seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on games, in which a place and an action are one piece each, and so is the prompt.

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
    marks = [AddedToken(TOLD, normalized=False, special=False)]
    train_bpe(tokenizer, vocabulary, _texts(seed), marks)
    tokenizer = with_visible_marks(tokenizer, (TOLD,))
    words = [TOLD, *ACTIONS, *(f" {one}" for one in COLOURS), " 2 ahead", " 6 ahead 3 left"]
    split = [one for one in words if len(tokenizer.encode(one).ids) != 1]
    if split:
        raise ValueError(
            f"texts that are not one piece: {split}; allow more than {vocabulary} pieces"
        )
    return fast_tokenizer(tokenizer)


def _texts(seed: int) -> Iterator[str]:
    """What is said in games, and each action often enough to be a piece."""
    for steps in _played(Stage(1.0, 0.5), 3000, seed):
        for step in steps:
            yield step.told
            yield written_action(step.action)
    yield from (written_action(action) for action in ACTIONS for _ in range(500))
    yield from (f" {place}" for place in WHERE for _ in range(100))


def match_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """A mission and many objects in view, after each of which it is said whether it is what the mission is about."""
    colour, kind = rng.choice(COLOURS), rng.choice(OBJECTS)
    by = rng.choice(("colour", "kind", "both"))
    mission = f"{colour if by != 'kind' else ''} {kind if by != 'colour' else 'object'}".strip()
    ids = tokenizer.encode(f"Pick up {rng.choice(('a', 'the'))} {mission}. You see:")
    targets = []
    for _ in range(rng.randint(8, 16)):
        one = (rng.choice((colour, *COLOURS)), rng.choice((kind, *OBJECTS)))
        right = (by == "kind" or one[0] == colour) and (by == "colour" or one[1] == kind)
        ids += tokenizer.encode(f" {' '.join(one)} {rng.choice(WHERE)}")
        targets.append(Target(len(ids), len(ids) + 1, "script:drill"))
        ids += tokenizer.encode(" up" if right else ";")
    return Row(tuple(ids), tuple(targets))


def game_row(tokenizer: PreTrainedTokenizerFast, steps: list[Step], origin: str) -> Row:
    """A game as the agent is shown it: ids as the chat template renders them, its messages as targets."""
    messages = [("system", TOLD)]
    for step in steps:
        messages += [("user", step.told), ("assistant", written_action(step.action))]
    return chat_row(tokenizer, messages, "script:babyai", origin)


def stage_rows(
    tokenizer: PreTrainedTokenizerFast, stage: Stage, tokens: float, seed: int
) -> Iterator[Row]:
    """Rows of ``tokens`` tokens of one stage."""
    left, block = tokens, 0
    while left > 0:
        block += 1
        for number, steps in enumerate(_played(stage, BLOCK, seed + block)):
            row = game_row(tokenizer, steps, f"babyai/{seed + block}/{number}")
            left -= len(row.ids)
            yield row
            if left <= 0:
                break


def _played(stage: Stage, count: int, seed: int) -> Iterator[list[Step]]:
    """Games of the corpus, as the script plays them."""
    rng, game = random.Random(f"acts/{stage}/{seed}"), Game(new_level(LEVEL))
    for draw in games(LEVEL, "corpus", seed, 0, count):
        yield play(game, draw.seed, STEPS, stage.habit, rng)


def skill_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of ``tokens`` tokens in all, stage after stage."""
    rng = random.Random(f"acts/drills/{seed}")
    yield from drill_rows(tokenizer, match_drill, MATCH_SHARE * tokens, rng)
    for number, stage in enumerate(CURRICULUM):
        yield from stage_rows(tokenizer, stage, stage.share * tokens, seed + 1000 * number)


def _habit_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of play with the habit."""
    return stage_rows(tokenizer, HABITS, tokens, seed)


ACTS = MicroWorld(build_tokenizer, skill_rows, _habit_rows, HABITS.share, tokens=4_000_000)
