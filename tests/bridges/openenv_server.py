"""A server of the package ``openenv``, run by its own environment: guess a number that the seed draws."""

import os
import random
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

FORGETFUL = bool(os.environ.get("FORGETFUL"))


class Guess(Action):
    number: int = Field(..., description="A number from 1 to 10", ge=1, le=10)


class Hint(Observation):
    hint: str = ""


class GuessEnvironment(Environment):
    """Rewards 1 for the number, less for later guesses; number 7 breaks it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self._state = State(step_count=0)

    def reset(self, seed: int | None = None, most: int = 10, **_: Any) -> Hint:
        rng = random.Random(None if FORGETFUL else seed)
        self.most, self.number = most, rng.choice([n for n in range(1, 11) if n != 7])
        self._state = State(step_count=0)
        return Hint(hint=f"1 to {most}, not {rng.random()}")

    def step(self, action: Guess) -> Hint:  # type: ignore[override]
        self._state.step_count += 1
        if action.number == 7:
            raise RuntimeError("seven is broken")
        if action.number == self.number:
            return Hint(hint="right", reward=1 - 0.25 * (self._state.step_count - 1), done=True)
        return Hint(hint="more" if action.number < self.number else "less", reward=0.0)

    @property
    def state(self) -> State:
        return self._state


app = create_app(GuessEnvironment, Guess, Hint, env_name="guess", max_concurrent_envs=2)
