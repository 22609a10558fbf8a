"""Curriculum of ``tiny-textworld``.

It plays games of TextWorld with two rooms and a quest of three commands, each by the game's own solution. Its bad habit
is to examine a thing before it handles it, which costs a message and loses the game if the limit is tight. Now and then
it does something else that is possible. First it learns to play well, then the habit that post-training is to change.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from coterie.environments.acting import write_action
from coterie.environments.games.textworld import TextWorld, TextWorldSettings
from coterie.environments.games.textworld_worker import DIRECTIONS, Play, start
from coterie.environments.settings import game_seeds
from coterie.record.rows import Row
from coterie.record.tree import Task
from scripts.tiny.world import World, chat_row, split_by

GAMES = TextWorld(TextWorldSettings(rooms=2, objects=3, quest_length=3))
PROMPT = GAMES.system_prompt(Task("", {}))
MESSAGES = 7
"""Maximum messages of a game; the quest needs 3."""
WORDS_GAMES = 500
"""Games whose texts the tokenizer is trained on."""
VERBS = ("open", "close", "unlock", "lock", "take", "drop", "put", "insert", "eat", "examine", "go")
PHRASES = (
    *("You are in the", " You see:", " Exits:", " You carry:", " nothing.", " nothing)"),
    *(" (open, in it:", " (on it:", " (closed)", " (locked)"),
    *("Action:\n", "\nEnd Action", "You can't"),
)
PIECES = rf"{'|'.join(map(re.escape, PHRASES))}| ?[A-Za-z']+| ?[^A-Za-z'\s]|\s"
"""What pieces do not reach over: a phrase, a word or a mark with the space before it."""
_THING = re.compile(r"\w+ (?P<thing>.+?)(?: (?:from|with|on|into) .+)?")


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum."""

    habit: float
    """How often a thing is examined before it is handled."""
    slip: float
    """How often something else is done than the solution says."""


SKILL, HABITS = Stage(0.1, 0.03), Stage(0.62, 0.05)


@dataclass(frozen=True)
class Step:
    """What the player was told, and its action."""

    told: str
    action: str


def play(game: Play, stage: Stage, rng: random.Random) -> list[Step]:
    """Play a game up to its end or the maximum of messages."""
    reply, examined, steps = game.beginning(), set[str](), list[Step]()
    while not reply["end"] and len(steps) < MESSAGES:
        action = next_of_solution(game)
        thing = thing_of(action)
        if thing and thing not in examined and rng.random() < stage.habit:
            action = f"examine {thing}"
        elif rng.random() < stage.slip:
            action = rng.choice(sorted(reply["commands"]))
        if action.startswith("examine "):
            examined.add(action.removeprefix("examine "))
        steps.append(Step(reply["text"], action))
        reply = game.do(action)
    return steps


def next_of_solution(game: Play) -> str:
    """Return the next command of the solution from here."""
    commands = zip(game.state["_valid_actions"], game.state["_valid_commands"], strict=True)
    return next(str(text) for one, text in commands if one == game.state["_winning_policy"][0])


def thing_of(action: str) -> str:
    """Return the thing that an action handles; nothing for an action without one."""
    match = _THING.fullmatch(action)
    return match["thing"] if match and not action.startswith("go ") else ""


def _played(number: int, stage: Stage, seed: int) -> Iterator[list[Step]]:
    """Yield games of the corpus, as the script plays them."""
    rng = random.Random(f"textworld/games/{stage}/{seed}")
    for one in game_seeds("textworld", "corpus", 0)[:number]:
        game = start(**GAMES.game(Task("", {"seed": one})).game)
        yield play(game, stage, rng)


def groups(tokenizer: PreTrainedTokenizerFast, stage: Stage, seed: int) -> Iterator[Sequence[Row]]:
    """Yield the row of each game, 4,000 games again and again."""
    for block in count():
        for number, steps in enumerate(_played(4000, stage, seed + block)):
            messages = [("system", PROMPT)]
            for step in steps:
                messages += [("user", step.told), ("assistant", write_action(step.action))]
            yield [chat_row(tokenizer, messages, "script:textworld", f"textworld/{number}")]


def _texts(seed: int) -> Iterator[str]:
    for steps in _played(WORDS_GAMES, HABITS, seed):
        for step in steps:
            yield step.told
            yield write_action(step.action)
    yield from (one for one in _whole() for _ in range(200))


def _whole() -> list[str]:
    return [*PHRASES, *VERBS, *(f" {one}" for one in DIRECTIONS)]


WORLD = World(
    drill_rng="textworld/drills",
    texts=_texts,
    pieces=split_by(PIECES),
    marks=[AddedToken(PROMPT, normalized=False, special=False)],
    whole=lambda: [PROMPT, *_whole()],
    groups=groups,
    drills=(),
    stages=((1.0, SKILL),),
    habits=(0.25, HABITS),
    tokens=1_500_000,
    budget=1536,
    peak=2e-3,
)
