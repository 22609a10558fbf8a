"""Shorter prompts from the environment when a prompt does not fit the model's context."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from coterie.environments.checks import faults_of
from coterie.environments.protocol import Environment, Shortens, State
from coterie.rollout.samplers import OutOfContext, Prompt

T = TypeVar("T")


async def sample_in_context(
    environment: Environment, state: State, prompt: Prompt, sample: Callable[[Prompt], Awaitable[T]]
) -> T:
    """Call ``sample`` with the prompt, or with the longest shorter prompt that fits.

    Raises:
        OutOfContext: None fits, or the environment can't shorten prompts.
    """
    try:
        return await sample(prompt)
    except OutOfContext:
        if not isinstance(environment, Shortens):
            raise
        with faults_of(environment):
            views = list(environment.shorter(state, prompt.agent))
        for number, messages in enumerate(views, 1):
            try:
                return await sample(replace(prompt, messages=tuple(messages)))
            except OutOfContext:
                if number == len(views):
                    raise
        raise
