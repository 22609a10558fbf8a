"""A prompt that has outgrown the context is shown shorter, where the environment knows how."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from coterie.environments.faults import faults_of
from coterie.environments.protocol import Environment, State
from coterie.environments.traits import Shortens
from coterie.rollout.samplers import OutOfContext, Prompt

Said = TypeVar("Said")


async def asked(
    environment: Environment, state: State, prompt: Prompt, ask: Callable[[Prompt], Awaitable[Said]]
) -> Said:
    """What ``ask`` gives for the prompt, or for the longest shorter one that fits. Raises :class:`OutOfContext`."""
    try:
        return await ask(prompt)
    except OutOfContext:
        if not isinstance(environment, Shortens):
            raise
        with faults_of(environment):
            views = list(environment.shorter(state, prompt.agent))
        for number, shown in enumerate(views, 1):
            try:
                return await ask(replace(prompt, shown=tuple(shown)))
            except OutOfContext:
                if number == len(views):
                    raise
        raise
