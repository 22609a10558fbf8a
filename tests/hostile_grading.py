"""Hostile and honest answers, graded as an environment grades them: real references, several answers to a task."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.environments.coding import MARKER, coding_task
from coterie.environments.persona import Persona
from coterie.environments.protocol import Grade, Shared
from coterie.record.tree import Task
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from tests.hostile_answers import HOSTILE
from tests.hostile_cheats import CHEATS
from tests.hostile_suite import CALLS, HONEST, SETTINGS
from tests.playing import converse

DOUBLE = 0
"""The task that ``HOSTILE`` attack; others are ``CHEATS``'."""
TWO = SETTINGS.model_copy(update={"workers": 2})


@dataclass(frozen=True)
class Try:
    """One answer to one task."""

    task: int
    attack: str
    """Empty for an honest one."""


def body(number: int) -> str:
    """What the function of a task computes: nobody guesses it."""
    rng = random.Random(f"task/{number}")
    return f"(x * {rng.getrandbits(40)} + {rng.getrandbits(40)}) % {rng.getrandbits(39)}"


def a_task(number: int) -> Task:
    """A task; the function is called ``solve`` in all but one."""
    if number == DOUBLE:
        return coding_task("double", "double", "def double(x):\n    return 2 * x", CALLS)
    reference = f"def solve(x):\n    return {body(number)}"
    return coding_task(f"t{number}", "solve", reference, [f"solve({x})" for x in range(4)])


def in_any_order(tries: Sequence[Try], seed: int) -> list[Try]:
    """Tries and as many honest ones at the same tasks, in an order drawn by the seed."""
    every = [one for attack in tries for one in (attack, Try(attack.task, ""))]
    return random.Random(f"order/{seed}").sample(every, len(every))


def source(one: Try) -> str:
    """The answer's code."""
    if one.attack:
        return HOSTILE.get(one.attack) or CHEATS[one.attack].replace("NAME", "solve")
    own = f"def solve(x):\n    found = {body(one.task)}\n    return found"
    return HONEST if one.task == DOUBLE else own


async def graded_tries(
    tries: Sequence[Try], at_once: int, settings: SandboxSettings = TWO
) -> list[Grade]:
    """The grades of answers, each that of a dialogue of its own, ``at_once`` at a time."""
    environment, places = Persona(), asyncio.Semaphore(at_once)
    async with Sandbox(settings) as sandbox:
        shared = Shared(sandbox)

        async def one(what: Try) -> Grade:
            async with places:
                said = f"{MARKER}\n{source(what)}"
                _, grade = await converse(environment, a_task(what.task), [said], shared)
                assert grade is not None, "one answer ends it"
                return grade

        return await asyncio.gather(*map(one, tries))


def wrong(tries: Sequence[Try], grades: Sequence[Grade]) -> list[str]:
    """Attacks of which a single test passed, and honest answers of which one failed."""
    found = []
    for one, grade in zip(tries, grades, strict=True):
        tests = json.loads(str(grade.metrics["results"]))
        if grade.metrics["fraction"] != (0.0 if one.attack else 1.0):
            found.append(f"{one}: {tests}")
    return found
