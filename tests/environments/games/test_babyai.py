"""BabyAI as text: the package's own bot solves it, games fork, splits share no game, and the packaged model plays."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from minigrid.utils.baby_ai_bot import BabyAIBot

from coterie.environments.acting import ENVIRONMENT, SOLVED, read, write_action, write_answer
from coterie.environments.games.babyai import (
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
from coterie.record.tree import TURNS, Ending, Task
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import Prompt
from tests.conftest import Cli
from tests.helpers.script_games import Script

NAMES = ("turn left", "turn right", "move forward", "pick up", "drop", "toggle", "done")
"""Actions in the package's order."""


def babyai(level: str = "GoToLocal", steps: int = 30) -> BabyAI:
    return BabyAI(BabyAISettings(level=level, steps=steps))


def played(environment: BabyAI, script: Script, tasks: Sequence[Task]) -> dict[str, EpisodeResult]:
    async def play() -> dict[str, EpisodeResult]:
        driver = Driver(environment, {"agent": script}, seed=0, shared=Shared())
        episodes = [Episode(task, 0, 0, "test") for task in tasks]
        async with driver.play_all(episodes) as playing:
            return {one.episode.task.id: one async for one in playing}

    return asyncio.run(play())


def replies(
    environment: BabyAI, task: Task, messages: Sequence[str]
) -> tuple[list[str], EpisodeResult]:
    """Return what the environment says, at first and after each message, and the result."""
    left = iter(messages)
    result = played(environment, Script(lambda _: next(left, messages[-1])), [task])[task.id]
    assert result.tree is not None, result.failure
    turns = result.tree.path(next(iter(result.tree.outcomes.values())).leaf)
    return [turn.text for turn in turns if turn.speaker == ENVIRONMENT], result


def end(result: EpisodeResult) -> tuple[Ending, float | None]:
    assert result.tree is not None, result.failure
    (outcome,) = result.tree.outcomes.values()
    return outcome.ending, outcome.score


@pytest.mark.parametrize(
    "level", ["GoToLocal", "PutNextLocal", "UnlockLocal", "BlockedUnlockPickup"]
)
def test_the_bot_of_the_package_solves_levels_through_the_text(level: str) -> None:
    bots: dict[str, tuple[Any, list[int]]] = {}

    def say(prompt: Prompt) -> str:
        """Say the bot's next move; the bot plays the same game."""
        assert prompt.task is not None
        if prompt.task.id not in bots:
            game = new_level(level)
            game.reset(seed=prompt.task.public["seed"])
            bots[prompt.task.id] = (BabyAIBot(game), [])
        bot, moves = bots[prompt.task.id]
        if moves:
            bot.mission.step(moves[-1])
        moves.append(int(bot.replan(moves[-1] if moves else None)))
        return write_action(NAMES[moves[-1]], thought="as the bot does")

    environment = babyai(level, steps=150)
    tasks = environment.tasks("heldout", 6, 0)
    for id_, result in played(environment, Script(say), tasks).items():
        assert end(result) == (SOLVED, 1.0)
        assert result.metrics["moves"] == result.metrics["messages"] == len(bots[id_][1])


def test_a_wrong_object_loses_where_the_level_says_so_and_steps_run_out() -> None:
    def loses(task: Task) -> bool:
        game = Game(new_level("PickupDistDebug"))
        game.start(int(str(task.public["seed"])))
        return [game.move(move) for move in ("turn left", "pick up")][1].end == FAILED

    environment = babyai("PickupDistDebug", steps=4)
    task = next(filter(loses, environment.tasks("heldout", 40, 0)))
    _, result = replies(environment, task, [write_action("turn left"), write_action("pick up")])
    assert end(result) == (FAILED, 0.0)
    _, result = replies(environment, task, [write_action("turn left")] * 4)
    assert (*end(result), result.metrics["moves"]) == (TURNS, 0.0, 4)


def test_a_view_is_relative_to_the_agent() -> None:
    column = [(2, 5, 0)] + [(1, 0, 0)] * 6
    image = [list(column) for _ in range(7)]
    image[3][3], image[2][4], image[5][6], image[1][6] = (6, 0, 0), (4, 2, 1), (5, 4, 0), (2, 5, 0)
    assert view_of(image) == (
        "You see: yellow key 2 right; closed blue door 2 ahead 1 left; red ball 3 ahead; "
        "wall 6 ahead; wall 2 left. You carry nothing."
    )
    image[3][6] = (7, 5, 0)
    carrying = view_of(image)
    assert carrying.startswith("You see: yellow key 2 right; closed blue door 2 ahead 1 left; red")
    assert carrying.endswith("wall 2 left. You carry a grey box.")
    unseen = [[(0, 0, 0)] * 7 for _ in range(7)]
    assert view_of(unseen) == "You see: nothing. You carry nothing."


def test_moves_are_made_and_what_is_not_a_move_costs_a_step_alone() -> None:
    environment = babyai(steps=7)
    task = environment.tasks("train", 3, 0)[1]
    actions = ["jump", "drop", "Turn  Left", "turn right", "turn left\nmove forward"]
    messages = [write_answer("done"), "I wait.", *map(write_action, actions)]
    texts, result = replies(environment, task, messages)
    first, answer, nothing, jump, drop, left, right, two = texts
    mission = str(task.public["mission"])
    assert first.startswith(f"{mission[0].upper()}{mission[1:]}. You see: ")
    assert first == Game(new_level("GoToLocal")).start(int(str(task.public["seed"])))
    view = first.partition(". ")[2]
    known = "Actions: turn left, turn right, move forward, pick up, drop, toggle."
    assert answer == NO_ANSWERS and nothing == read("I wait.").note
    assert jump == f"There is no action `jump`. {known}"
    assert drop == f"{NOTHING_CHANGED} {view}"
    assert left != view and right == view, "what was not a move has not moved the agent"
    assert two == f"There is no action `turn left move forward`. {known}"
    assert end(result) == (TURNS, 0.0)
    assert result.metrics == {"moves": 3, "messages": 7, "cut_off": 0}
    assert environment.observe(State(task, 0), "agent")[0].parts[0].text == PROMPT


def test_a_fork_continues_where_the_game_is_and_does_not_change_it() -> None:
    game, moves = Game(new_level("PutNextLocal")), ("move forward", "pick up", "turn left", "drop")
    game.start(3)
    for action in 5 * moves:
        with game.fork() as fork, game.fork() as other:  # type: ignore[attr-defined]
            views = [fork.move(action), *map(fork.move, moves)]
            assert views == [other.move(action), *map(other.move, moves)]
        assert game.move(action) == views[0]


def test_splits_share_no_game_and_none_comes_twice(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def key_of(level: str, seed: int) -> str:
        game = new_level(level)
        game.reset(seed=seed)
        return content_key(game)

    monkeypatch.setattr("coterie.environments.games.babyai.PATIENCE", 300)
    level, keys = "GoToObjS4", {}
    for split, count in (("train", 40), ("heldout", 400), ("corpus", 40)):
        draws = games(level, split, 3)[:count]  # type: ignore[arg-type]
        keys[split] = {key_of(level, one.seed) for one in draws}
        assert {split_of_key(key) for key in keys[split]} == {split}
        assert len(keys[split]) == len(draws), "none comes twice"
        assert 40 <= len(draws) < 400, "the level is small: it has no more"
    assert not keys["train"] & keys["heldout"]
    assert not keys["corpus"] & (keys["train"] | keys["heldout"])
    assert len(games("BossLevel", "train", 5)[:12]) == 12
    assert capfd.readouterr().out == "", "the package prints the layouts that it rejects"
    with pytest.raises(UserError, match="GoToLokal") as error:
        babyai("GoToLokal")
    assert "did you mean 'GoToLocal'?" in error.value.todo and "BossLevel" in error.value.todo


def test_the_packaged_model_often_loses_and_can_win(cli: Cli) -> None:
    overrides = ["environment.level=GoToObj", "environment.steps=9", "tasks=60", "max_tokens=32"]
    result = cli("evaluate", "babyai", "policy=tiny-acts", *overrides, "engine.device=cpu")
    (row,) = json.loads(result.out.splitlines()[-1])["rows"]
    assert 0.15 < row["score"] < 0.75
