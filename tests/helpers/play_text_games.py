"""Play of text games by scripts, for tests of environments whose games child processes play."""

import asyncio
from collections.abc import Callable, Sequence

import psutil

from coterie.environments.acting import ENVIRONMENT
from coterie.environments.games.text_games import TextGames
from coterie.environments.protocol import Shared
from coterie.record.tree import Outcome, Task, Tree
from coterie.rollout.branches import Branches
from coterie.rollout.dense_search import DenseSearch, DenseSearchSettings
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import Prompt
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Judgment
from coterie.selection import DensePairSettings, count_pairs
from coterie.tools.line_process import LineProcess
from tests.helpers.script_games import Script
from tests.rollout.test_dense_search import Digits

Say = Callable[[Prompt], str]


def play_games(environment: TextGames, say: Say, tasks: Sequence[Task]) -> dict[str, EpisodeResult]:
    async def play() -> dict[str, EpisodeResult]:
        driver = Driver(environment, {"agent": Script(say)}, seed=0, shared=Shared())
        async with driver.play_all([Episode(task, 0, 0, "test") for task in tasks]) as playing:
            return {one.episode.task.id: one async for one in playing}

    return asyncio.run(play())


def game_replies(
    environment: TextGames, task: Task, messages: Sequence[str]
) -> tuple[list[str], Outcome, EpisodeResult]:
    """Return what the environment says, at first and after each message, and the end."""
    left = iter(messages)
    result = play_games(environment, lambda _: next(left), [task])[task.id]
    assert result.tree is not None, result.failure
    (outcome,) = result.tree.outcomes.values()
    turns = result.tree.path(outcome.leaf)
    return [turn.text for turn in turns if turn.speaker == ENVIRONMENT], outcome, result


async def grow_tree(environment: TextGames, task: Task, say: Say) -> tuple[Tree, Branches, int]:
    """Grow a small dense tree, and return the number of its pairs too."""

    async def judge(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
        return [Judgment(one.score or 0.0) for one in outcomes]

    tree, speakers = Tree(task.id, "rollout", 0), [Digits(say) for _ in range(3)]
    settings = DenseSearchSettings(
        max_children=3, rollouts_per_search=3, pairs=1000, rollouts_per_task=12
    )
    async with Sessions(8, 60.0) as sessions:
        actors = {"agent": speakers[0]}
        branches = Branches(environment, actors, task, tree, sessions, 0, Shared(), 60.0)
        pairs = DensePairSettings(margin=0.3, max_visits=1)
        search = DenseSearch(
            *(branches, judge, "agent", speakers, settings),
            *(lambda values: count_pairs(values, pairs), environment.limits["turns"]),
            rollouts=[],
            seed=0,
        )
        await search.grow(lambda *_: None)
    return tree, branches, sum(search.pairs.values())


def kill_worker(worker: LineProcess) -> None:
    process = worker._process
    assert process is not None
    process.kill()
    process.wait()


def check_death(environment: TextGames, tasks: Sequence[Task], worker: LineProcess) -> None:
    """Kill a process in the middle of a game: only the branch that waits for it fails."""
    lines = {task.id: environment.expert(task) for task in tasks}
    deaths = []

    def speak(prompt: Prompt) -> str:
        assert prompt.task is not None
        said = sum(turn.speaker.name == "agent" for turn in prompt.tree.path(prompt.parent))
        if said == 2 and not deaths:
            deaths.append(kill_worker(worker))
        return lines[prompt.task.id][said]

    results = play_games(environment, speak, tasks).values()
    (failure,) = [one.failure for one in results if one.failure is not None]
    assert "the process of a game ended" in failure
    outcomes = [end for one in results if one.tree for end in one.tree.outcomes.values()]
    assert [one.score for one in outcomes] == [1] * (len(tasks) - 1)


def children(program: str) -> list[int]:
    """Return the child processes that run a program."""
    every = psutil.Process().children()
    return [one.pid for one in every if program in " ".join(one.cmdline())]
