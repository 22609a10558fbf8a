"""Runs every hostile answer, each followed by an honest one. Also by itself, as another user:

python tests/helpers/hostile_suite.py      # prints one JSON object: what went wrong, by answer
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SPOILED, SandboxFailed, SandboxSettings
from tests.helpers.hostile_answers import HOSTILE, PROBES
from tests.helpers.hostile_cells import CELLS

HONEST = "import math\ndef twice(x):\n    return math.prod([2, x])\n\n\ndef double(x):\n    return twice(x)\n"
CALLS = ("double(1)", "double(2)", "double(21)")
EXPECTED = (2, 4, 42)
SETTINGS = SandboxSettings(
    workers=1, wall_seconds=1.0, cpu_seconds=0.4, total_seconds=1.5, memory_mib=256, processes=12, file_mib=8
)  # fmt: skip
IN_TIME = 8.0
"""Seconds for an answer; its own limit is 1.5, the rest is for a busy machine."""
HONEST_CELL = """
import math, os, signal, sys, threading
[math.prod([2, 21]), os.listdir('.'), threading.active_count(), sorted(n for n in globals() if n[0] != '_'),
 signal.getsignal(signal.SIGALRM) is signal.SIG_DFL, sys.gettrace(), len(os.listdir('/proc'))]
"""
HONEST_SHOWN = "[42, [], 1, ['math', 'os', 'signal', 'sys', 'threading'], True, None, 0]"
LONGEST = 3000
"""Characters that are shown of a cell; 2,000 and what is said of the rest and of its end."""
PROBE = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result < 0: raise OSError(ctypes.get_errno(), "refused")
def probe():
    try:
        {statement}
    except Exception as error:
        return "refused"
    return "done"
"""


async def attack(sandbox: Sandbox, source: str) -> list[str]:
    """What is wrong with how an answer and the honest one after it are graded."""
    began = time.monotonic()
    graded = await sandbox.grade(source, CALLS, EXPECTED)
    took = time.monotonic() - began
    wrong = [f"accepted: {test.result}" for test in graded.tests if test.passed]
    if any(SPOILED in test.reason for test in graded.tests):
        wrong.append(f"broke the sandbox: {graded.tests}")
    if took > IN_TIME:
        wrong.append(f"took {took:.1f} s")
    honest = await sandbox.grade(HONEST, CALLS, EXPECTED)  # by the same worker
    if not honest.success:
        wrong.append(f"the honest answer after it failed: {[t.reason for t in honest.tests]}")
    return wrong


async def probe(sandbox: Sandbox, statement: str) -> list[str]:
    """Whether a statement is refused."""
    (result,) = await sandbox.run(PROBE.format(statement=statement), ["probe()"])
    return [] if result.ok and result.value == "refused" else [str(result)]


async def probes() -> dict[str, list[str]]:
    """The statements that are not refused."""
    async with Sandbox(SETTINGS) as sandbox:
        found = {name: await probe(sandbox, statement) for name, statement in PROBES.items()}
    return {name: wrong for name, wrong in found.items() if wrong}


async def attack_session(sandbox: Sandbox, cells: Sequence[str]) -> list[str]:
    """What is wrong with a session of hostile cells, and with an honest one in its jail after it."""
    wrong, jails = [], set()
    try:
        async with sandbox.session(0) as session:
            for cell in cells:
                began = time.monotonic()
                shown = await session.run(cell)
                jails |= {worker.pid for worker in sandbox.sessions.workers.busy}
                if time.monotonic() - began > IN_TIME:
                    wrong.append(f"took {time.monotonic() - began:.1f} s")
                if len(shown.text) > LONGEST:
                    wrong.append(f"shows {len(shown.text)} characters")
        async with sandbox.session(0) as session:
            shown = await session.run(HONEST_CELL)
            jails |= {worker.pid for worker in sandbox.sessions.workers.busy}
    except SandboxFailed as error:
        return [f"broke the sandbox: {error}"]
    if shown.text != HONEST_SHOWN:
        wrong.append(f"the honest session after it: {shown}")
    return wrong + (["lost its worker"] if len(jails) != 1 else [])


async def session_lane(number: int) -> dict[str, list[str]]:
    """Every second of all sessions, in one jail: cells, and hostile answers as cells."""
    async with Sandbox(SETTINGS.model_copy(update={"sessions": 1})) as sandbox:
        sessions = {name: (source, "print(double(2))") for name, source in HOSTILE.items()} | CELLS
        names = list(sessions)[number::2]
        found = {name: await attack_session(sandbox, sessions[name]) for name in names}
        async with sandbox.session(0) as session:
            for name, statement in list(PROBES.items())[number::2]:
                result = await session.run(PROBE.format(statement=statement) + "\nprobe()")
                found[name] = [] if result.text == "'refused'" else [str(result)]
        return found


async def lane(number: int) -> dict[str, list[str]]:
    """Every second of all, on one worker."""
    async with Sandbox(SETTINGS) as sandbox:
        found = {name: await attack(sandbox, HOSTILE[name]) for name in list(HOSTILE)[number::2]}
        probes = list(PROBES)[number::2]
        return found | {name: await probe(sandbox, PROBES[name]) for name in probes}


async def suite(lane: Callable[[int], Awaitable[dict[str, list[str]]]]) -> dict[str, list[str]]:
    """What went wrong in both lanes, by answer, session or statement; empty if nothing did."""
    one, other = await asyncio.gather(lane(0), lane(1))
    return {name: wrong for name, wrong in (one | other).items() if wrong}


if __name__ == "__main__":
    began = time.monotonic()
    wrong = asyncio.run(suite(lane)) | asyncio.run(suite(session_lane))
    print(json.dumps({"uid": os.getuid(), "wrong": wrong, "seconds": time.monotonic() - began}))
    sys.exit(bool(wrong))
