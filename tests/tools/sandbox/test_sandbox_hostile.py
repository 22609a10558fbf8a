"""Hostile answers: none is accepted, none harms the grader, and the honest answer after each is graded right."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import coterie
from coterie.environments.coding import coding_task
from coterie.environments.collaboration import MARKER
from coterie.environments.persona import Persona
from coterie.environments.protocol import Grade, Shared
from coterie.record.tree import Task
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult, Graded
from coterie.tools.sandbox.worker import NOBODY
from tests.helpers.converse import converse
from tests.helpers.hostile_answers import HOSTILE, PROBES
from tests.helpers.hostile_cells import CELLS
from tests.helpers.hostile_cheats import CHEATS
from tests.helpers.hostile_suite import CALLS, HONEST, SETTINGS, probes, session_lane, suite

ROOT = Path(__file__).parents[3]
DOUBLE = 0
"""The task that ``HOSTILE`` attack; others are ``CHEATS``'."""
TWO = SETTINGS.model_copy(update={"workers": 2})


class Try(NamedTuple):
    """One answer to one task."""

    task: int
    attack: str = ""
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


def source(one: Try) -> str:
    """The answer's code."""
    if one.attack:
        return HOSTILE.get(one.attack) or CHEATS[one.attack].replace("NAME", "solve")
    own = f"def solve(x):\n    found = {body(one.task)}\n    return found"
    return HONEST if one.task == DOUBLE else own


async def graded_tries(tries: Sequence[Try]) -> list[Grade]:
    """The grades of answers, each that of a dialogue of its own, six at a time."""
    environment, places = Persona(), asyncio.Semaphore(6)
    async with Sandbox(TWO) as sandbox:
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


def test_no_hostile_answer_is_accepted_and_every_honest_one_is() -> None:
    """By an environment's own grading: in any order, several answers at a time, on two workers."""
    assert len(HOSTILE) + len(CHEATS) + len(PROBES) >= 80
    attacks = [Try(DOUBLE, name) for name in HOSTILE]
    attacks += [Try(task, name) for task in (1, 2) for name in CHEATS]
    every = [one for attack in attacks for one in (attack, Try(attack.task))]
    tries = random.Random("order/0").sample(every, len(every))
    assert wrong(tries, asyncio.run(graded_tries(tries))) == []
    assert asyncio.run(probes()) == {}


def test_no_hostile_session_harms_its_jail_or_the_session_after_it() -> None:
    """The answers as cells, and cells that attack what runs them."""
    assert len(CELLS) >= 45
    assert asyncio.run(suite(session_lane)) == {}


def test_no_session_finds_anything_of_the_session_before_it() -> None:
    """In one jail: a session that has a function and what it gives, then one that looks for both."""
    reference = (
        f"def solve(x):\n    return {body(1)}\n\n\nfound = [solve(x) for x in range(8)]\nfound"
    )
    look = "[solve(x) for x in range(8)]"

    async def work() -> tuple[str, dict[str, str]]:
        async with Sandbox(SETTINGS.model_copy(update={"sessions": 1})) as sandbox:
            found = {}
            for name, source in CHEATS.items():
                async with sandbox.session(0) as session:
                    right = (await session.run(reference)).text
                async with sandbox.session(0) as session:
                    await session.run(source.replace("NAME", "solve"))
                    found[name] = (await session.run(look)).text
            return right, found

    right, found = asyncio.run(work())
    values = right.strip("[]").split(", ")
    assert len(values) == 8 and len(found) == len(CHEATS)
    assert {name: text for name, text in found.items() if any(one in text for one in values)} == {}


BUSY = """
import os
def f():
    for _ in range(9):
        if os.fork() == 0:
            os.setsid()
            break
    while True: pass
"""
WORK = """
import time
def f():
    end = time.process_time() + 0.15
    while time.process_time() < end: pass
    return 1
"""


def test_an_honest_answer_is_not_late_because_others_are_busy() -> None:
    """On one processor, which it shares with ten processes: its 0.15 s take far more than the 0.5 s that it has."""
    quick = SETTINGS.model_copy(update={"wall_seconds": 0.5})
    slow = SETTINGS.model_copy(update={"wall_seconds": 5.0, "cpu_seconds": 2.0, "total_seconds": 5})
    processors = os.sched_getaffinity(0)

    async def work() -> tuple[Graded, list[CallResult]]:
        async with Sandbox(quick) as sandbox, Sandbox(slow) as other:
            busy = asyncio.create_task(other.run(BUSY, ["f()"]))
            await asyncio.sleep(0.3)
            return await sandbox.grade(WORK, ["f()"], [1]), await busy

    os.sched_setaffinity(0, {min(processors)})
    try:
        honest, (busy,) = asyncio.run(work())
    finally:
        os.sched_setaffinity(0, processors)
    assert honest.success, honest.tests[0].reason
    assert busy.failed == "timeout"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the suite above has run as an ordinary user")
def test_the_same_as_an_ordinary_user() -> None:
    for python in pythons():
        command = [python, str(ROOT / "tests/helpers/hostile_suite.py")]
        done = subprocess.run(
            command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True,
            cwd="/", env={"PYTHONPATH": os.pathsep.join(paths()), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stderr
        told = json.loads(done.stdout)
        assert told["uid"] == NOBODY and told["wrong"] == {}
        return
    pytest.skip("no Python of this version that an ordinary user may run with coterie's packages")


def paths() -> list[str]:
    """Where coterie and its packages are."""
    return [str(Path(coterie.__file__).parent.parent), str(ROOT), *sys.path[1:]]


def pythons() -> Iterator[str]:
    """Interpreters of this version that an ordinary user can use with our packages."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/local/bin/{name}", f"/usr/bin/{name}"):
        command = [python, "-c", "import coterie.config.settings, tests.helpers.hostile_answers"]
        try:
            tried = subprocess.run(
                command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, cwd="/",
                env={"PYTHONPATH": os.pathsep.join(paths())},
            )  # fmt: skip
        except OSError:
            continue
        if tried.returncode == 0:
            yield python
