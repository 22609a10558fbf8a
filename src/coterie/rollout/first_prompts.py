"""First prompts of an environment's agents, before any actor has acted."""

import asyncio
from dataclasses import dataclass

from coterie.environments.checks import EnvironmentFault
from coterie.environments.protocol import Environment, Shared, agents_of
from coterie.errors import UserError
from coterie.record.tree import Task, Tree
from coterie.record.turn import Message, Tool
from coterie.rollout.branches import Branches
from coterie.rollout.driver import SECONDS
from coterie.rollout.sessions import sessions_of


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """First prompt of an agent."""

    messages: tuple[Message, ...]
    tree: Tree
    """Tree of the turns that the messages refer to."""
    tools: tuple[Tool, ...] = ()
    """Tools that the chat template renders."""


def first_prompts(
    environment: Environment, task: Task, variant: str | None = None
) -> dict[str, FirstPrompt]:
    """Run :func:`first_prompts_async` in a new event loop."""
    return asyncio.run(first_prompts_async(environment, task, variant=variant))


async def first_prompts_async(
    environment: Environment, task: Task, shared: Shared | None = None, variant: str | None = None
) -> dict[str, FirstPrompt]:
    """Return the first prompts of all agents, no matter who acts first.

    Raises:
        UserError: The environment can't begin the task.
    """
    try:
        return await _first_prompts(environment, task, shared or Shared(), variant)
    except EnvironmentFault as error:
        raise UserError(
            f"task {task.id} of {environment.name} can't begin: {error}", "correct the environment"
        ) from error


async def _first_prompts(
    environment: Environment, task: Task, shared: Shared, variant: str | None
) -> dict[str, FirstPrompt]:
    tree = Tree(task.id, "opening", 0)
    async with sessions_of(1, SECONDS) as sessions:
        branches = Branches(
            environment, {}, task, tree,
            seed=0, shared=shared, sessions=sessions, seconds=SECONDS, variant=variant,
        )  # fmt: skip
        at = await branches.start()
        agents = agents_of(environment)
        prompts = {agent: branches.prompt(at, agent, seed=0, draw=0) for agent in agents}
        await branches.close()
    return {agent: FirstPrompt(one.messages, tree, one.tools) for agent, one in prompts.items()}
