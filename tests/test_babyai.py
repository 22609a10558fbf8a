"""BabyAI in words: the package's own bot solves it through our text, games fork, and splits share no game."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from minigrid.utils.baby_ai_bot import BabyAIBot

from coterie.environments.acting import ENVIRONMENT, SOLVED, read, write_action, write_answer
from coterie.environments.babyai import (
    FAILED,
    NO_ANSWERS,
    NOTHING_CHANGED,
    PROMPT,
    BabyAI,
    BabyAISettings,
    Game,
    content_key,
    games,
    new_level,
    view_of,
)
from coterie.environments.protocol import Shared, State
from coterie.environments.settings import split_of_key
from coterie.errors import UserError
from coterie.record.tree import TURNS, Ending, Task, Tree
from coterie.rollout.branches import Branches
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import Prompt
from coterie.rollout.sessions import sessions_of
from tests.games import Script

NAMES = ("turn left", "turn right", "move forward", "pick up", "drop", "toggle", "done")
"""Actions in the package's order."""


def babyai(level: str = "GoToLocal", steps: int = 30) -> BabyAI:
    return BabyAI(BabyAISettings(level=level, steps=steps))


@dataclass
class Bot:
    """A sampler that says what the package's bot does, which plays the same game beside."""

    level: str
    _games: dict[str, tuple[Any, list[int]]] = field(default_factory=dict)
    """By task: the bot, and the moves that it has made."""

    def say(self, prompt: Prompt) -> str:
        assert prompt.task is not None
        if prompt.task.id not in self._games:
            game = new_level(self.level)
            game.reset(seed=prompt.task.public["seed"])
            self._games[prompt.task.id] = (BabyAIBot(game), [])
        bot, made = self._games[prompt.task.id]
        if made:
            bot.mission.step(made[-1])
        made.append(int(bot.replan(made[-1] if made else None)))
        return write_action(NAMES[made[-1]], thought="as the bot does")

    def moves(self, task: Task) -> int:
        return len(self._games[task.id][1])


def played(environment: BabyAI, script: Script, tasks: Sequence[Task]) -> dict[str, EpisodeResult]:
    async def play() -> dict[str, EpisodeResult]:
        driver = Driver(environment, {"agent": script}, seed=0, shared=Shared())
        episodes = [Episode(task, 0, 0, "test") for task in tasks]
        async with driver.play_all(episodes) as playing:
            return {one.episode.task.id: one async for one in playing}

    return asyncio.run(play())


def said_to(
    environment: BabyAI, task: Task, messages: Sequence[str]
) -> tuple[list[str], EpisodeResult]:
    """What the environment says, first of all and after each message, and how it ended."""
    words = iter(messages)
    script = Script(lambda _: next(words, messages[-1]))
    finished = played(environment, script, [task])[task.id]
    assert finished.tree is not None, finished.failure
    (outcome,) = finished.tree.outcomes.values()
    path = finished.tree.path(outcome.leaf)
    return [turn.text for turn in path if turn.speaker == ENVIRONMENT], finished


def end(finished: EpisodeResult) -> tuple[Ending, float | None]:
    assert finished.tree is not None, finished.failure
    (outcome,) = finished.tree.outcomes.values()
    return outcome.ending, outcome.score


@pytest.mark.parametrize(
    "level", ["GoToLocal", "PutNextLocal", "UnlockLocal", "BlockedUnlockPickup"]
)
def test_the_bot_of_the_package_solves_levels_through_the_text(level: str) -> None:
    environment, bot = babyai(level, steps=150), Bot(level)
    tasks = environment.tasks("heldout", 6, 0)
    for task_id, finished in played(environment, Script(bot.say), tasks).items():
        task = next(one for one in tasks if one.id == task_id)
        assert end(finished) == (SOLVED, 1.0)
        assert finished.metrics["moves"] == finished.metrics["messages"] == bot.moves(task)


def test_a_wrong_object_loses_where_the_level_says_so_and_steps_run_out() -> None:
    environment = babyai("PickupDistDebug", steps=4)
    for task in environment.tasks("heldout", 40, 0):
        game = Game(new_level("PickupDistDebug"))
        game.start(int(str(task.public["seed"])))
        game.move("turn left")
        if game.move("pick up").end == FAILED:
            moves = [write_action("turn left"), write_action("pick up")]
            _, finished = said_to(environment, task, moves)
            assert end(finished) == (FAILED, 0.0)
            break
    else:
        raise AssertionError("no game has a wrong object on the left")
    turning = [write_action("turn left")] * 4
    (task,) = environment.tasks("train", 1, 0)
    _, finished = said_to(environment, task, turning)
    assert (*end(finished), finished.metrics["moves"]) == (TURNS, 0.0, 4)


def test_what_is_in_view_is_told_from_where_the_agent_looks() -> None:
    column = [(2, 5, 0)] + [(1, 0, 0)] * 6
    image = [list(column) for _ in range(7)]
    image[3][3], image[2][4], image[5][6], image[1][6] = (6, 0, 0), (4, 2, 1), (5, 4, 0), (2, 5, 0)
    assert str(view_of(image)) == (
        "You see: yellow key 2 right; closed blue door 2 ahead 1 left; red ball 3 ahead; "
        "wall 6 ahead; wall 2 left. You carry nothing."
    )
    image[3][6] = (7, 5, 0)
    carrying = str(view_of(image))
    assert carrying.startswith("You see: yellow key 2 right; closed blue door 2 ahead 1 left; red")
    assert carrying.endswith("wall 2 left. You carry a grey box.")
    unseen = [[(0, 0, 0)] * 7 for _ in range(7)]
    assert str(view_of(unseen)) == "You see: nothing. You carry nothing."


def test_moves_are_made_and_what_is_not_a_move_costs_a_step_alone() -> None:
    environment = babyai(steps=7)
    task = environment.tasks("train", 3, 0)[1]
    messages = [
        write_action("jump"),
        write_answer("done"),
        "I wait.",
        write_action("drop"),
        write_action("Turn  Left"),
        write_action("turn right"),
        write_action("turn left\nmove forward"),
    ]
    texts, finished = said_to(environment, task, messages)
    first, jump, answer, nothing, drop, left, right, two = texts
    mission = str(task.public["mission"])
    assert first.startswith(f"{mission[0].upper()}{mission[1:]}. You see: ")
    assert first == Game(new_level("GoToLocal")).start(int(str(task.public["seed"])))
    view = first.partition(". ")[2]
    listed = "Actions: turn left, turn right, move forward, pick up, drop, toggle."
    assert jump == f"There is no action `jump`. {listed}"
    assert answer == NO_ANSWERS and nothing == read("I wait.").note
    assert drop == f"{NOTHING_CHANGED} {view}"
    assert left != view and right == view, "what was not a move has not moved the agent"
    assert two == f"There is no action `turn left move forward`. {listed}"
    assert end(finished) == (TURNS, 0.0)
    assert finished.metrics == {"moves": 3, "messages": 7, "cut_off": 0}
    assert environment.see(State(task, 0), "agent")[0].parts[0].text == PROMPT


def test_a_tree_grows_the_same_with_forks_and_with_replay() -> None:
    task = babyai().tasks("train", 1, 0)[0]

    async def grow(most: int) -> tuple[Tree, int, int]:
        environment, script = (
            babyai(steps=6),
            Script(lambda prompt: write_action(NAMES[prompt.draw])),
        )
        tree = Tree(task.id, "test", 0)
        async with sessions_of(most, 5.0) as kept:
            grown = Branches(
                environment, {"agent": script}, task, tree,
                seed=0, shared=Shared(), sessions=kept, seconds=5.0,
            )  # fmt: skip
            row = [await grown.start()]
            for _ in range(3):
                after = []
                for at in row:
                    for draw in (0, 1, 2):
                        responses = await grown.respond(at, {"agent": 0}, draw)
                        after.append(await grown.advance(at, responses, others_follow=True))
                row = [one for one in after if one.state.end is None]
            return tree, kept.forked, grown.replays

    forked, forks, _ = asyncio.run(grow(100))
    replayed, none, replays = asyncio.run(grow(1))
    assert forked == replayed and len(forked.turns) > 60
    assert forks and replays and not none


def test_splits_share_no_game_and_none_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.environments.babyai.PATIENCE", 300)
    level, keys = "GoToObjS4", {}
    for split, count in (("train", 40), ("heldout", 400), ("corpus", 40)):
        found = games(level, split, 3, 0, count)  # type: ignore[arg-type]
        keys[split] = {key_of(level, one.seed) for one in found}
        assert {split_of_key(key) for key in keys[split]} == {split}
        assert len(keys[split]) == len(found), "none comes twice"
        assert 40 <= len(found) < 400, "the level is small: it has no more"
    assert not keys["train"] & keys["heldout"]
    assert not keys["corpus"] & (keys["train"] | keys["heldout"])
    for name in ("train", "heldout"):
        tasks = babyai(level).tasks(name, 40, 3)  # type: ignore[arg-type]
        assert len({task.id for task in tasks}) == 40
        assert {key_of(level, int(str(task.public["seed"]))) for task in tasks} <= keys[name]


def key_of(level: str, seed: int) -> str:
    """A game's content, as a new session has it."""
    made = new_level(level)
    made.reset(seed=seed)
    return content_key(made)


def test_a_level_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match="GoToLokal") as refused:
        babyai("GoToLokal")
    assert "did you mean 'GoToLocal'?" in refused.value.todo and "BossLevel" in refused.value.todo


def test_the_package_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(games("BossLevel", "train", 5, 0, 12)) == 12
    assert capfd.readouterr().out == ""
