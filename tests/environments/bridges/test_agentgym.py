"""AgentGym's worlds on stand-ins of their servers: bodies, replies, scores, errors, branches, and sessions that end."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coterie.engines.protocol import EngineGone
from coterie.environments.acting import ENVIRONMENT, NO_ANSWERS, SOLVED, write_action, write_answer
from coterie.environments.bridges.agentgym import (
    DONE,
    FAILED,
    AgentGym,
    AgentGymSettings,
    check_server,
)
from coterie.environments.bridges.server_client import EnvironmentServerError
from coterie.environments.games.babyai import Game, new_level
from coterie.environments.protocol import Shared
from coterie.errors import UserError
from coterie.record.tree import TURNS, Outcome, Task, Tree
from coterie.rollout.branches import Branches, ReplayMismatch
from coterie.rollout.dense_search import DenseSearch, DenseSearchSettings
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import Prompt
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Judgment
from coterie.selection import DensePairSettings, count_pairs
from tests.conftest import Cli
from tests.helpers.agentgym_server import CLOSING, PRESS, TOOLS, WORLDS, Gym, serve_gym
from tests.helpers.read_page import read_page
from tests.helpers.script_games import Script
from tests.rollout.test_branches import say
from tests.rollout.test_dense_search import Digits

SWITCHES = [world for world in WORLDS if world not in ("maze", "wordle")]
SHOWN = {
    "webarena": "click [{}]",
    **dict.fromkeys(TOOLS, 'press with Action Input: {{"switch": "{}"}}'),
}
"""Actions as an agent writes them, where the client completes them."""
OWN = {"train": (0, 8), "heldout": (10, 18)}


def world_of(gym: Gym, **settings: object) -> AgentGym:
    values = {"world": gym.world, "url": gym.url, **settings}
    return AgentGym(AgentGymSettings.model_validate(values))


def press(world: str, switch: int | str) -> str:
    return write_action(SHOWN.get(world, PRESS[world]).format(switch))


def right(prompt: Prompt) -> str:
    """Press the switch that the first observation names."""
    first = prompt.tree.path(prompt.parent)[0].text
    match = re.search(r"press (\d)", first)
    assert prompt.task is not None and match is not None
    return press(prompt.task.id.partition("-")[0], match[1])


def played(
    environment: AgentGym, speak: Callable[[Prompt], str], tasks: Sequence[Task]
) -> dict[str, EpisodeResult]:
    async def play() -> dict[str, EpisodeResult]:
        driver = Driver(environment, {"agent": Script(speak)}, seed=0, shared=Shared())
        async with driver.play_all([Episode(task, 0, 0, "test") for task in tasks]) as playing:
            return {one.episode.task.id: one async for one in playing}

    return asyncio.run(play())


def replies(
    environment: AgentGym, task: Task, actions: Sequence[str]
) -> tuple[list[str], Outcome, EpisodeResult]:
    """Return what the environment says, at first and after each action, and the end."""
    left = iter(actions)
    result = played(environment, lambda _: write_action(next(left)), [task])[task.id]
    assert result.tree is not None, result.failure
    (outcome,) = result.tree.outcomes.values()
    turns = result.tree.path(outcome.leaf)
    return [turn.text for turn in turns if turn.speaker == ENVIRONMENT], outcome, result


@pytest.mark.parametrize("world", SWITCHES)
def test_tasks_are_solved_with_the_bodies_and_replies_of_each_server(world: str) -> None:
    with serve_gym(Gym(world, busy=True)) as gym:
        environment = world_of(gym, **OWN)
        tasks = environment.tasks("train", 4, 0) + environment.tasks("heldout", 4, 0)
        assert len({task.id for task in tasks}) == 8
        results = played(environment, right, tasks)
        for task in tasks:
            result = results[task.id]
            assert result.tree is not None, result.failure
            (outcome,) = result.tree.outcomes.values()
            presses = 1 + int(str(task.public["index"])) % 2
            ending, success = (DONE, None) if world == "weather" else (SOLVED, 1)
            assert (outcome.ending, outcome.score) == (ending, 0.9 if world == "babyai" else 1)
            assert (result.metrics.get("success"), result.metrics["actions"]) == (success, presses)
        needed = [1 + int(str(task.public["index"])) % 2 for task in tasks]
        assert len(gym.steps) == sum(needed), "a request that a busy server rejected counts once"
        assert len(gym.games) <= (0 if world in CLOSING else 10), "two more from the checks"


@pytest.mark.parametrize(
    ("world", "score", "success"),
    [
        ("babyai", 0.45, 0),
        ("sciworld", 0.25, 0),
        ("webshop", 0.5, 0),
        ("webarena", 0, 0),
        ("weather", 1, None),
    ],
)
def test_a_part_of_a_task_has_the_score_of_its_world(
    world: str, score: float, success: int | None
) -> None:
    with serve_gym(Gym(world)) as gym:
        environment = world_of(gym, steps=1, **OWN)
        task = next(one for one in environment.tasks("heldout", 2, 0) if one.id.endswith("1"))
        _, outcome, result = replies(environment, task, [right_action(world, 11)])
    assert (outcome.ending, outcome.score) == (TURNS, score)
    assert result.metrics.get("success") == success


def test_an_agent_gains_nothing_by_unknown_actions_after_a_late_goal() -> None:
    with serve_gym(Gym("babyai")) as gym:
        environment = world_of(gym, steps=4, train=(0, 1), heldout=(11, 12))
        (task,) = environment.tasks("heldout", 1, 0)
        actions = [right_action("babyai", 11), *["dance"] * 3]
        _, outcome, result = replies(environment, task, actions)
    assert (outcome.ending, outcome.score, result.metrics["success"]) == (TURNS, 0.45, 0)


def right_action(world: str, index: int) -> str:
    return press(world, index % 3).splitlines()[1]


def test_observations_list_actions_and_an_answer_is_none() -> None:
    with serve_gym(Gym("alfworld")) as gym:
        environment = world_of(gym, steps=3, **OWN)
        (task,) = environment.tasks("heldout", 1, 0)
        left = iter([write_answer("done"), "I wait.", write_action("dance")])
        result = played(environment, lambda _: next(left), [task])[task.id]
        assert result.tree is not None
        (outcome,) = result.tree.outcomes.values()
        texts = [t.text for t in result.tree.path(outcome.leaf) if t.speaker == ENVIRONMENT]
    first, answer, _, dance = texts
    possible = "\nPossible actions: press 0, press 1, press 2, look"
    assert first == f"Goal: press 1 1 times. The lamp is off.{possible}"
    assert answer == NO_ANSWERS and dance == f"Nothing happens.{possible}"
    assert result.metrics["actions"] == 1 and gym.steps == ["dance"]


@pytest.mark.parametrize(
    ("world", "action", "sent"),
    [
        ("webarena", "```click [3]```", "```click [3]```"),
        ("sqlgym", "SELECT * FROM `t`", "SELECT * FROM `t`"),
        ("todo", 'f with Action Input: {"a": 1}', 'Action: f with Action Input: {"a": 1}'),
    ],
)
def test_actions_are_sent_in_the_form_of_the_server(world: str, action: str, sent: str) -> None:
    with serve_gym(Gym(world)) as gym:
        environment = world_of(gym, steps=1, **OWN)
        (task,) = environment.tasks("heldout", 1, 0)
        replies(environment, task, [action])
        assert gym.steps == [sent]


def test_a_maze_is_won_by_its_moves_and_lost_after_fifty() -> None:
    with serve_gym(Gym("maze")) as gym:
        environment = world_of(gym, steps=60, train=(0, 1), heldout=(1, 2))
        (task,) = environment.tasks("train", 1, 0)
        way = (
            "up right right down down right right up up right right right right down down left left"
        )
        moves = [f"move {one}" for one in way.split()]
        texts, outcome, result = replies(environment, task, moves)
        assert texts[0] == "Goal: 2, 6. You: 0, 0. Walls: left, above." and texts[1] == texts[0]
        assert (outcome.ending, outcome.score) == (SOLVED, 1)
        assert result.metrics["actions"] == len(moves)
        _, outcome, _ = replies(environment, task, ["move up"] * 51)
        assert (outcome.ending, outcome.score) == (FAILED, 0)


def test_wordle_shows_its_words_and_marks_letters() -> None:
    with serve_gym(Gym("wordle")) as gym:
        environment = world_of(gym, train=(0, 1), heldout=(3, 4))
        (task,) = environment.tasks("heldout", 1, 0)
        guesses = ["l e m o n", "house", "melon"]
        texts, outcome, _ = replies(environment, task, guesses)
        assert texts == [
            "Let's start!\nWords: crane, stone, eerie, melon, lemon, amber",
            "y g y g g",
            "invalid word",
        ]
        assert (outcome.ending, outcome.score) == (SOLVED, 1)
        _, outcome, _ = replies(environment, task, ["crane"] * 6)
        assert (outcome.ending, outcome.score) == (FAILED, 0)
        with pytest.raises(UserError, match="no train tasks of wordle"):
            world_of(gym).tasks("train", 1, 0)  # its seeds are not distinct tasks


def test_splits_share_no_task_and_draws_go_on() -> None:
    with serve_gym(Gym("textcraft")) as gym:
        environment = world_of(gym)
        train, heldout = environment.indices("train"), environment.indices("heldout")
        assert (len(train), len(heldout)) == (374, 100) and not {*train} & {*heldout}
        assert {*train} | {*heldout} == {*range(474)} and max(train) > 450, "the server sorts them"
        tasks = environment.tasks("train", 6, 0)
        assert environment.tasks("train", 2, 0, previous_counts=[3, 1]) == tasks[4:]
        every = environment.tasks("train", 374, 0)
        assert len({task.id for task in every}) == 374
    for world in WORLDS:
        environment = AgentGym(AgentGymSettings(world=world))
        assert not {*environment.indices("train")} & {*environment.indices("heldout")}
        assert len(environment.indices("heldout")) >= 12
        other = AgentGymSettings(world=world, url="http://127.0.0.1:9")
        assert other.identity() == environment.settings.identity(), "the address changes no result"


async def grow(gym: Gym, scenario: Callable[[Branches], object]) -> None:
    """Grow a tree with two sessions, so that most branches are replayed."""
    environment = world_of(gym, **OWN)
    task = next(one for one in environment.tasks("train", 8, 0) if one.id.endswith("1"))
    async with Sessions(2, 60.0) as sessions:
        script = {"agent": Script(lambda _: "")}
        tree = Tree(task.id, "rollout", 0)
        grown = Branches(environment, script, task, tree, sessions, 0, Shared(), 60.0)
        await scenario(grown)  # type: ignore[misc]


def test_branches_are_replayed_in_new_sessions() -> None:
    async def scenario(grown: Branches) -> None:
        first = await say(grown, await grown.start(), press("textcraft", 1))
        ends = [await say(grown, first, press("textcraft", switch)) for switch in (1, 0, 2)]
        assert [end.state.end for end in ends] == [SOLVED, None, None]
        assert grown.replays == 2 and (await grown.grade(ends[0])).score == 1

    with serve_gym(Gym("textcraft")) as gym:
        asyncio.run(grow(gym, scenario))
        assert len(gym.games) == 0


@pytest.mark.parametrize("world", ["textcraft", "webshop"])
def test_a_session_that_the_server_loses_fails_its_branch_alone(world: str) -> None:
    async def scenario(grown: Branches) -> None:
        start = await grown.start()
        first = await say(grown, start, press(world, 1))
        lost, *_ = gym.games
        gym.games.clear()
        with pytest.raises(EnvironmentServerError, match=r"not valid|status 500"):
            await say(grown, first, press(world, 0))
        assert world not in CLOSING or gym.closes[-1] == lost
        other = await say(grown, first, press(world, 1))
        assert other.state.end == SOLVED and grown.replays == 1

    with serve_gym(Gym(world)) as gym:
        asyncio.run(grow(gym, scenario))


def test_a_server_that_is_gone_ends_the_command() -> None:
    """Other errors fail one branch, so all that is left would be failed for good."""

    async def begin() -> None:
        async with environment.open(task, 0, Shared()) as session:
            await environment.begin(task, session)

    with serve_gym(Gym("textcraft")) as gym:
        environment = world_of(gym, **OWN)
        (task,) = environment.tasks("train", 1, 0)
    with pytest.raises(EngineGone, match="no environment server answers"):
        asyncio.run(begin())


def test_a_replay_that_differs_fails_its_branch_alone() -> None:
    async def scenario(grown: Branches) -> None:
        first = await say(grown, await grown.start(), press("babyai", 1))
        kept = await say(grown, first, press("babyai", 0))
        gym.drift = gym.resets
        with pytest.raises(ReplayMismatch, match="It rains"):
            await say(grown, first, press("babyai", 1))
        assert (await say(grown, kept, press("babyai", 1))).state.end == SOLVED

    with serve_gym(Gym("babyai")) as gym:
        asyncio.run(grow(gym, scenario))


@pytest.mark.parametrize("world", ["babyai", "alfworld", "sqlgym"])
def test_a_hundred_sessions_leave_none_or_are_used_again(world: str) -> None:
    with serve_gym(Gym(world)) as gym:
        environment = world_of(gym, train=(0, 100), heldout=(100, 200))
        tasks = environment.tasks("heldout", 100, 0)
        created = gym.created
        results = played(environment, right, tasks)
        assert [one.failure for one in results.values()] == [None] * 100
        if world == "babyai":
            assert (gym.created - created, len(gym.games)) == (100, 0)
        else:
            assert gym.created - created <= environment.max_sessions
        assert len(played(environment, right, tasks)) == 100
        assert world == "babyai" or gym.created - created <= environment.max_sessions


@pytest.mark.parametrize(("world", "serial"), [("textcraft", True), ("babyai", False)])
def test_sessions_begin_one_at_a_time_where_they_share_random_numbers(
    world: str, serial: bool
) -> None:
    with serve_gym(Gym(world)) as gym:
        environment = world_of(gym, train=(0, 20), heldout=(20, 40))
        results = played(environment, right, environment.tasks("train", 20, 0))
        assert [one.failure for one in results.values()] == [None] * 20
        assert (gym.most_beginning == 1) == serial


def test_a_session_whose_id_a_new_server_gave_again_is_lost() -> None:
    async def test() -> None:
        environment = world_of(gym, **OWN)
        (task,) = environment.tasks("train", 1, 0)
        async with environment.open(task, 0, Shared()) as one:
            await environment.begin(task, one)
            number = one.id
            gym.restart(number)
            async with environment.open(task, 0, Shared()) as other:
                assert other.id == number != one.id
                await environment.begin(task, other)
                with pytest.raises(EnvironmentServerError, match="id -1 is not valid"):
                    await one.step("press 1")
                await other.step("press 1")
        assert gym.steps == ["press 1"]

    with serve_gym(Gym("alfworld")) as gym:
        asyncio.run(test())


def test_a_dense_tree_has_successes_failures_and_pairs() -> None:
    def speak(prompt: Prompt) -> str:
        return press("textcraft", prompt.seed % 2)

    async def judge(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
        return [Judgment(one.score or 0.0) for one in outcomes]

    async def scenario() -> None:
        environment = world_of(gym, steps=3, **OWN)
        task = next(one for one in environment.tasks("train", 8, 0) if one.id.endswith("1"))
        tree, speakers = Tree(task.id, "rollout", 0), [Digits(speak) for _ in range(3)]
        settings = DenseSearchSettings(
            max_children=3, rollouts_per_search=3, pairs=1000, rollouts_per_task=12
        )
        async with Sessions(8, 60.0) as sessions:
            actors = {"agent": speakers[0]}
            grown = Branches(environment, actors, task, tree, sessions, 0, Shared(), 60.0)
            pairs = DensePairSettings(margin=0.3, max_visits=1)
            search = DenseSearch(
                *(grown, judge, "agent", speakers, settings),
                *(lambda values: count_pairs(values, pairs), 4),
                rollouts=[],
                seed=0,
            )
            await search.grow(lambda *_: None)
        scores = {one.score for one in tree.outcomes.values()}
        assert 1.0 in scores and len(scores) > 1 and grown.replays
        assert sum(search.pairs.values()) > 0

    with serve_gym(Gym("textcraft")) as gym:
        asyncio.run(scenario())
        assert len(gym.games) == 0


class GoToObj:
    """Games that the packaged model knows."""

    def start(self, index: int) -> str:
        self.game = Game(new_level("GoToObj"))
        return self.game.start(index)

    def step(self, action: str) -> tuple[str, float, bool]:
        if action not in ("turn left", "turn right", "move forward"):
            return "There is no such action.", 0.0, False
        result = self.game.move(action)
        return result.seen, float(result.end == SOLVED), result.end is not None


def test_a_run_grows_trees_trains_and_evaluates_on_a_server(cli: Cli, tmp_path: Path) -> None:
    overrides = [
        "model=tiny-acts",
        "rollout.tasks=4",
        "rollout.max_tokens=24",
        "environment.steps=12",
    ]
    overrides += [
        "search.max_children=6",
        "search.rollouts_per_search=8",
        "search.rollouts_per_task=60",
        "pairs.max_visits=1",
    ]
    overrides += ["pairs.margin=0.3", "budget.tasks=none", "budget.pairs=none", "evaluate.tasks=4"]
    overrides += ["train.max_length=1024", "engine.device=cpu", "--folder", "run"]
    with serve_gym(Gym("textcraft", make=lambda _: GoToObj())) as gym:
        own = ["environment.world=textcraft", f"environment.url={gym.url}"]
        result = cli("run", "dense_tree/agentgym", *own, *overrides)
        assert result.code == 0, result.err
        assert len(gym.games) == 0 and gym.steps
    page = tmp_path / "run" / "report.html"
    held_out = [task for task in read_page(page)["task"] if task["stage"] == "evaluate"]
    assert {task["iteration"] for task in held_out} == {0, 1}, "before and after training"
    check_server.cache_clear()
    result = cli("report", "run")
    assert result.code == 0, result.err + "a report needs no server"
