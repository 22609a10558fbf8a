"""Live things that an environment's steps use: a person, a sandbox. Owned by whoever plays, not by states."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from coterie.engines.chat_model import open_chat
from coterie.environments.person import SCRIPT, ModelPerson, Person, PersonSettings
from coterie.errors import UserError
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings


@dataclass(frozen=True, slots=True)
class Services:
    """What is there; a world that needs nothing is played with none."""

    person: Person | None = None
    sandbox: Sandbox | None = None


NO_SERVICES = Services()


@runtime_checkable
class NeedsServices(Protocol):
    """A world with a person."""

    script: Person | None
    """Who plays the person if nobody else is named; ``None`` if there is no such script."""


@asynccontextmanager
async def services_of(
    world: object, person: PersonSettings, sandbox: SandboxSettings, logs: Path
) -> AsyncIterator[Services]:
    """What a world needs: for one with a person, the person that the settings name, and a sandbox.

    ``logs`` is where servers leave theirs. Raises ``UserError`` for what is not there.
    """
    if not isinstance(world, NeedsServices):
        yield NO_SERVICES
        return
    async with AsyncExitStack() as stack:
        speaker = await _person(world.script, person, logs, stack)
        yield Services(speaker, await stack.enter_async_context(Sandbox(sandbox)))


async def _person(
    script: Person | None, settings: PersonSettings, logs: Path, stack: AsyncExitStack
) -> Person:
    if settings.url is None and settings.model == SCRIPT:
        return check_person(script)
    return ModelPerson(await stack.enter_async_context(open_chat(settings, logs)), settings)


def check_person(script: Person | None) -> Person:
    """The script of a world; raises ``UserError`` if it has none, for then somebody must play the person."""
    if script is None:
        raise UserError(
            "nobody plays the person: this world has no script",
            "give person=MODEL (coterie serves it), or person.url=URL person.model=NAME",
        )
    return script
