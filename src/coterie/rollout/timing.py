"""What an environment does, within a time limit, and whatever it meets is its own fault."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from coterie.environments.faults import faults_of
from coterie.environments.protocol import Environment
from coterie.rollout.sessions import SessionError

T = TypeVar("T")


async def timed(
    environment: Environment,
    seconds: float,
    what: str,
    work: Callable[..., Awaitable[T]],
    *args: Any,
    **named: Any,
) -> T:
    """What the environment does, which ends in time or fails its branch."""
    with faults_of(environment):
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await work(*args, **named)
        except TimeoutError as error:
            if not limit.expired():  # the environment's own
                raise
            raise SessionError(
                f"{environment.name}: {what} did not end within {seconds:g} seconds"
            ) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise SessionError(
                f"{environment.name}: {what} waited for what was cancelled"
            ) from error
