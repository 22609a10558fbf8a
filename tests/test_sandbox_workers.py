"""The sandbox's workers: they share the work, are replaced, and are gone when they should be."""

import asyncio
import os
import subprocess
import sys
import time as clock
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.tools.sandbox import worker as users
from coterie.tools.sandbox.inside.job import BY_ANSWER, Job
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import Graded
from coterie.tools.sandbox.worker import (
    SandboxSettings,
    Worker,
    WorkerPool,
    make_jail,
    pack,
    request,
)
from tests.python_sessions import ONE
from tests.python_sessions import in_sandbox as inside
from tests.test_sandbox import SIZED


def test_many_answers_at_a_time_keep_their_own_results() -> None:
    async def many(sandbox: Sandbox) -> list[Any]:
        runs = [sandbox.run(f"def f(): return {n}", ["f()"]) for n in range(40)]
        return [result[0].value for result in await asyncio.gather(*runs)]

    assert inside(many, SandboxSettings(workers=2)) == list(range(40))


def test_a_worker_that_is_killed_is_replaced_and_its_answer_run_again() -> None:
    async def work(sandbox: Sandbox) -> Graded:
        run = asyncio.create_task(
            sandbox.grade("import time\ndef f():\n    time.sleep(0.5)\n    return 1", ["f()"], [1])
        )
        await asyncio.sleep(0.2)
        (worker,) = sandbox.answers.busy
        worker.kill()
        return await run

    assert inside(work).success


def test_a_cancelled_run_leaves_a_sandbox_that_works() -> None:
    async def work(sandbox: Sandbox) -> Graded:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run("while True: pass", ["1"]), 0.2)
        return await sandbox.grade("", ["1 + 1"], [2])

    assert inside(work).success


def test_nothing_is_left_when_the_sandbox_is_closed() -> None:
    async def work(sandbox: Sandbox) -> None:
        task = asyncio.create_task(sandbox.run("import time; time.sleep(1000)", ["1"]))
        await asyncio.sleep(0.2)
        work.pids = [worker.pid for worker in sandbox.answers.busy]  # type: ignore[attr-defined]
        task.cancel()

    began = clock.monotonic()
    inside(work)
    assert clock.monotonic() - began < 10
    from psutil import pid_exists

    assert work.pids and not any(map(pid_exists, work.pids))  # type: ignore[attr-defined]


def test_a_worker_whose_pipe_is_full_can_be_closed() -> None:
    """Its reply is larger than a pipe and a reader's buffer, and nobody takes it."""

    async def work() -> None:
        worker = await Worker.start(make_jail(ONE))
        own = {"source": SIZED, "calls": ["f(250_000)"] * 8, "legacy": False}
        job = request(Job, ONE, worker.user, **own)
        worker._in.write(pack(job) + bytes(16))
        while len(worker._out._buffer) < 1 << 17:  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
        await asyncio.wait_for(worker.close(), 30)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_run_that_is_cancelled_while_its_worker_comes_up_leaves_nothing_waiting() -> None:
    """At each of the first steps of the start."""

    async def work(steps: int) -> None:
        workers = WorkerPool(ONE)
        run = asyncio.create_task(workers.run("", ["1"], False, ONE))
        for _ in range(steps):
            await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait([run])
        records, _ = await workers.run("", ["1"], False, ONE)
        assert records == [(BY_ANSWER, b'{"value": ["int", "1"]}')]
        await workers.close()

    async def every() -> None:
        await asyncio.gather(*(asyncio.wait_for(work(steps), 60) for steps in range(1, 7)))

    asyncio.run(every())


def test_no_two_workers_have_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where we are root: also not those of another process of the machine."""
    first = 100_000 + 4 * os.getpid()
    monkeypatch.setattr(users, "UIDS", range(first, first + 3))
    monkeypatch.setattr(users.os, "geteuid", lambda: 0)
    code = (
        "import os\nfrom coterie.tools.sandbox import worker as users\n"
        f"users.UIDS, os.geteuid = range({first}, {first + 3}), lambda: 0\n"
        "print(users.claim_user().uid)"
    )
    command = [sys.executable, "-c", code]
    claimed = [users.claim_user() for _ in range(3)]
    assert {user.uid for user in claimed} == set(users.UIDS)
    with pytest.raises(UserError, match="in use"):
        users.claim_user()
    assert "in use" in subprocess.run(command, capture_output=True, text=True).stderr
    claimed[1].release()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    again = users.claim_user()
    assert int(done.stdout) == claimed[1].uid == again.uid
    for user in (*claimed, again):
        user.release()
