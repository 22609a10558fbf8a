"""Simulated users and shared resources of an environment, open during a stage."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.engines.chat_model import open_chat
from coterie.environments.protocol import Environment, Openers, Shared, openers_of, persons_of
from coterie.environments.user_simulator import (
    SCRIPT,
    ModelUserSimulator,
    UserSimulator,
    UserSimulatorSettings,
    check_script,
)
from coterie.rollout.episodes import Driver
from coterie.rollout.samplers import Sampler, UserSampler


@dataclass(frozen=True, slots=True)
class Actors:
    """Simulated users and resources of an environment."""

    environment: Environment
    persons: Mapping[str, Sampler]
    shared: Shared

    def driver(self, samplers: Mapping[str, Sampler], seed: int) -> Driver:
        """Return a driver of the environment with a sampler for each agent."""
        all_samplers = {**samplers, **self.persons}
        return Driver(self.environment, all_samplers, seed=seed, shared=self.shared)


@asynccontextmanager
async def open_actors(
    environment: Environment,
    logs: Path,
    user_simulator: UserSimulatorSettings | None = None,
    openers: Openers | None = None,
) -> AsyncIterator[Actors]:
    """Open the simulated users and resources that an environment needs.

    ``user_simulator`` defaults to the environment's script. ``openers`` are added to the environment's own. Servers
    write to ``logs``. Raises ``UserError`` for a missing script or model.
    """
    async with AsyncExitStack() as stack:
        persons: dict[str, Sampler] = {}
        for name in persons_of(environment):
            simulator = await _simulator(environment, user_simulator, logs, stack)
            persons[name] = UserSampler(simulator)
        known = {**openers_of(environment, logs), **(openers or {})}
        opened = [
            await stack.enter_async_context(known[need]())
            for need in environment.needs
            if need in known
        ]
        yield Actors(environment, persons, Shared(*opened))


async def _simulator(
    environment: Environment,
    settings: UserSimulatorSettings | None,
    logs: Path,
    stack: AsyncExitStack,
) -> UserSimulator:
    if settings is None or (settings.url is None and settings.model == SCRIPT):
        return check_script(getattr(environment, "script", None))
    return ModelUserSimulator(await stack.enter_async_context(open_chat(settings, logs)), settings)
