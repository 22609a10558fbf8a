"""Scripted dialogues in an environment, and greedy completions of a packaged model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling
from coterie.environments.protocol import Environment, Grade, Shared, State
from coterie.models.loading import load
from coterie.record.tree import Task, Tree
from coterie.rollout.branches import Branches
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.positions import Position
from coterie.rollout.samplers import Prompt, utterance
from coterie.rollout.sessions import Sessions
from tests.helpers.script_games import Script

SECONDS = 60.0


class Heard(NamedTuple):
    """The prompt of an actor before a message, without its system prompt."""

    actor: str
    messages: list[tuple[str, str]]
    """Role and text."""


async def play_messages(
    environment: Environment,
    task: Task,
    lines: Sequence[str],
    *,
    truncated: bool = False,
    shared: Shared | None = None,
) -> tuple[State, list[Heard]]:
    """The state after these lines, each of which must be requested, and the prompts before each."""
    left, heard = list(lines), []

    def say(prompt: Prompt) -> str:
        shown = [utterance(message, prompt) for message in prompt.messages[1:]]
        heard.append(Heard(prompt.agent, [(one.role, one.text) for one in shown]))
        return left.pop(0)

    async with open_branches(
        environment, task, Script(say, truncated=truncated), shared
    ) as branches:
        at = await branches.start()
        while left:
            assert at.state.end is None, f"over before {left[0]!r}"
            at = await advance(branches, at)
        return at.state, heard


async def play_dialogue(
    environment: Environment,
    task: Task,
    say: Callable[[Prompt], str],
    *,
    truncated: bool = False,
    shared: Shared | None = None,
) -> tuple[State, Grade]:
    async with open_branches(
        environment, task, Script(say, truncated=truncated), shared
    ) as branches:
        at = await branches.start()
        while at.state.end is None:
            at = await advance(branches, at)
        return at.state, await branches.grade(at)


async def advance(branches: Branches, at: Position) -> Position:
    """Where the branch stands after the turns of all who act now."""
    seeds = dict.fromkeys(branches.next_actors(at), 0)
    return await branches.advance(at, await branches.respond(at, seeds, draw=0))


@asynccontextmanager
async def open_branches(
    environment: Environment, task: Task, script: Script, shared: Shared | None = None
) -> AsyncIterator[Branches]:
    """The branches of a new tree, all of whose actors are played by one script."""
    async with Sessions(1, SECONDS) as sessions:
        yield Branches(
            environment, dict.fromkeys(environment.actors, script), task, Tree(task.id, "talk", 0),
            seed=0, shared=shared or Shared(), sessions=sessions, seconds=SECONDS,
        )  # fmt: skip


async def finish_episodes(driver: Driver, *episodes: Episode) -> list[EpisodeResult]:
    async with driver.play_all(episodes) as playing:
        return [one async for one in playing]


def complete_greedily(
    model: str, prompts: Sequence[Sequence[int]], max_tokens: int, stop: tuple[str, ...] = ()
) -> list[Completion]:
    """Return the greedy completions of a packaged model."""
    engine = InProcessEngine(load(model), policy=model, version="0")
    sampling = Sampling(0.0, 1.0, max_tokens, stop, 60.0)

    async def sample() -> list[Completion]:
        drawn = await asyncio.gather(*(engine.sample(one, [0], sampling) for one in prompts))
        return [one for (one,) in drawn]

    return asyncio.run(sample())
