"""Live things that an environment's steps use: a person, a sandbox. Owned by whoever plays, not by states."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from coterie.engines.chat_model import open_chat
from coterie.environments.user_simulator import (
    SCRIPT,
    ModelUserSimulator,
    UserSimulator,
    UserSimulatorSettings,
)
from coterie.errors import UserError
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings


@dataclass(frozen=True, slots=True)
class Services:
    """What is there; an environment that needs nothing is played with none."""

    user_simulator: UserSimulator | None = None
    sandbox: Sandbox | None = None


NO_SERVICES = Services()


@runtime_checkable
class NeedsServices(Protocol):
    """An environment with a person."""

    script: UserSimulator | None
    """Who plays the person if nobody else is named; ``None`` if there is no such script."""


@asynccontextmanager
async def services_of(
    environment: object, user_simulator: UserSimulatorSettings, sandbox: SandboxSettings, logs: Path
) -> AsyncIterator[Services]:
    """What an environment needs: for one with a person, the person that the settings name, and a sandbox.

    ``logs`` is where servers leave theirs. Raises ``UserError`` for what is not there.
    """
    if not isinstance(environment, NeedsServices):
        yield NO_SERVICES
        return
    async with AsyncExitStack() as stack:
        speaker = await _user_simulator(environment.script, user_simulator, logs, stack)
        yield Services(speaker, await stack.enter_async_context(Sandbox(sandbox)))


async def _user_simulator(
    script: UserSimulator | None, settings: UserSimulatorSettings, logs: Path, stack: AsyncExitStack
) -> UserSimulator:
    if settings.url is None and settings.model == SCRIPT:
        return check_user_simulator(script)
    return ModelUserSimulator(await stack.enter_async_context(open_chat(settings, logs)), settings)


def check_user_simulator(script: UserSimulator | None) -> UserSimulator:
    """The script of an environment; raises ``UserError`` if it has none, for then somebody must play the person."""
    if script is None:
        raise UserError(
            "nobody plays the person: this environment has no script",
            "give user_simulator=MODEL (coterie serves it), or user_simulator.url=URL user_simulator.model=NAME",
        )
    return script
