"""Cheats and honest answers, graded as an environment grades them: real references, several answers to a task."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.environments.code_text import MARKER
from coterie.environments.coding import AGENT, coding_task
from coterie.environments.dialogue import Grade, begin, graded, step
from coterie.environments.persona.environment import Persona
from coterie.environments.services import Services
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Part, Speaker, make_turn
from tests.hostile_cheats import CHEATS

LIMITS = {"wall_seconds": 2.0, "cpu_seconds": 1.0, "total_seconds": 6.0}
HONEST = "def {name}(x):\n    found = {body}\n    return found"


@dataclass(frozen=True)
class Try:
    """One answer to one task."""

    task: int
    cheat: str
    """Empty for an honest one."""


def body(number: int) -> str:
    """What the function of a task computes: nobody guesses it."""
    rng = random.Random(f"task/{number}")
    return f"(x * {rng.getrandbits(40)} + {rng.getrandbits(40)}) % {rng.getrandbits(39)}"


def a_task(number: int) -> Task:
    """A task whose function is called ``solve``, as that of all tasks."""
    reference = f"def solve(x):\n    return {body(number)}"
    return coding_task(f"t{number}", "solve", reference, [f"solve({x})" for x in range(10)])


def source(one: Try) -> str:
    """The answer's code."""
    if one.cheat:
        return CHEATS[one.cheat].replace("NAME", "solve")
    return HONEST.format(name="solve", body=body(one.task))


async def graded_tries(tries: Sequence[Try], workers: int, at_once: int) -> list[Grade]:
    """The grades of answers, each that of a dialogue of its own, ``at_once`` at a time."""
    world, places = Persona(), asyncio.Semaphore(at_once)
    settings = SandboxSettings(workers=workers, **LIMITS)
    async with Sandbox(settings) as sandbox:
        services = Services(None, sandbox)

        async def one(what: Try) -> Grade:
            async with places:
                state = begin(world, a_task(what.task), "root")
                said = Part(f"{MARKER}\n```python\n{source(what)}\n```")
                turn = make_turn(state.turns[-1].id, Speaker("agent", AGENT), [said])
                state = await step(world, state, turn, cut=False, services=services)
                return await graded(world, state, services)

        return await asyncio.gather(*map(one, tries))


def wrong(tries: Sequence[Try], grades: Sequence[Grade]) -> list[str]:
    """Cheats with a single test passed, and honest answers with one failed."""
    return [
        f"{one}: {grade.metrics['fraction']} {str(grade.metrics.get('results'))[:400]}"
        for one, grade in zip(tries, grades, strict=True)
        if grade.metrics["fraction"] != (0.0 if one.cheat else 1.0)
    ]
