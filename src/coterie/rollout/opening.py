"""What the actors of an environment are shown at the beginning of a task, before anybody has acted."""

import asyncio
from dataclasses import dataclass

from coterie.environments.faults import EnvironmentFault
from coterie.environments.protocol import Environment, Shared
from coterie.environments.traits import agents_of
from coterie.errors import UserError
from coterie.rollout.branches import Branches
from coterie.rollout.driver import SECONDS
from coterie.rollout.sessions import sessions_of
from coterie.trajectories.calls import Tool
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message


@dataclass(frozen=True, slots=True)
class Opening:
    """The first prompt of an actor."""

    messages: tuple[Message, ...]
    tree: Tree
    """Which has the turns that these messages show."""
    tools: tuple[Tool, ...] = ()
    """Those that the chat template shows."""


def first_prompts(
    environment: Environment, task: Task, variant: str | None = None
) -> dict[str, Opening]:
    """As :func:`opening`, where no event loop runs."""
    return asyncio.run(opening(environment, task, variant=variant))


async def opening(
    environment: Environment, task: Task, shared: Shared | None = None, variant: str | None = None
) -> dict[str, Opening]:
    """The first prompts of all agents, whoever begins. Raises ``UserError`` if the environment can't begin."""
    try:
        return await _opening(environment, task, shared or Shared(), variant)
    except EnvironmentFault as error:
        raise UserError(
            f"task {task.id} of {environment.name} can't begin: {error}", "correct the environment"
        ) from error


async def _opening(
    environment: Environment, task: Task, shared: Shared, variant: str | None
) -> dict[str, Opening]:
    tree = Tree(task.id, "opening", 0)
    async with sessions_of(1, SECONDS) as sessions:
        branches = Branches(
            environment, {}, task, tree,
            seed=0, shared=shared, sessions=sessions, seconds=SECONDS, variant=variant,
        )  # fmt: skip
        at = await branches.start()
        agents = agents_of(environment)
        found = {agent: branches.prompt(at, agent, seed=0, draw=0) for agent in agents}
        await branches.close()
    return {agent: Opening(one.shown, tree, one.tools) for agent, one in found.items()}
