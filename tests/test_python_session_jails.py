"""The jails of Python sessions: what they share, how a session is brought back, and that nothing is left behind."""

import asyncio
from typing import Any

import psutil
import pytest

from coterie.tools.sandbox.inside.job import JobRecord
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SPOILED, SandboxFailed, SandboxSettings, Worker, WorkerLost
from tests.python_sessions import ONE, descendants, in_sandbox, in_session, killed


def test_a_session_is_brought_back_when_its_worker_dies() -> None:
    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(5) as session:
            said = [await session.run(one) for one in ("import random\nx = random.random()", "x")]
            for _ in range(2):
                await killed(sandbox)
                said.append(await session.run("x"))
        assert said[1] == said[2] == said[3]

    in_sandbox(work)


def test_a_session_that_its_cells_do_not_bring_back_begins_anew() -> None:
    """A cell that shows the time shows something else when it is run again: its own doing, and no failed sandbox."""

    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(0) as session:
            await session.run("import time\nx = time.time_ns()\nx")
            await killed(sandbox)
            found = await session.run("x")
            assert found.failed == "lost" and "showed something else" in found.text
            assert (await session.run("'x' in globals()")).text == "False"

    in_sandbox(work)


def test_only_a_sandbox_in_which_nothing_runs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell, or an answer, with which every worker is lost; then the same where the simplest answer doesn't run."""

    async def lost(worker: Worker, request: Any) -> list[JobRecord]:
        if getattr(request, "source", "") in ("spoil", *spoiled):
            worker.kill()
            raise WorkerLost("killed")
        return await run(worker, request)

    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(0) as session:
            for source, text in (("x = 1", ""), ("spoil", "lost"), ("'x' in globals()", "False")):
                assert text in (await session.run(source)).text
            (test,) = (await sandbox.grade("spoil", ["1"], [1])).tests
            assert not test.passed and SPOILED in test.reason
            spoiled.append("")
            for failing in (session.run("spoil"), sandbox.grade("spoil", ["1"], [1])):
                with pytest.raises(SandboxFailed):
                    await failing

    run, spoiled = Worker.run, list[str]()
    monkeypatch.setattr(Worker, "run", lost)
    in_sandbox(work)


def test_a_process_that_is_killed_from_outside_is_no_result_of_its_cell() -> None:
    """As the kernel does when the machine's memory is full: between two cells, and in the middle of one."""

    def kill_process(sandbox: Sandbox) -> None:
        (worker,) = sandbox.sessions.workers.busy
        every = psutil.Process(worker.pid).children(recursive=True)
        max(every, key=psutil.Process.create_time).kill()

    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(0) as session:
            await session.run("x = 7")
            kill_process(sandbox)
            assert (await session.run("x")).text == "7"
            cell = asyncio.create_task(session.run("import time\ntime.sleep(1)\nx"))
            await asyncio.sleep(0.4)
            kill_process(sandbox)
            assert (await cell).text == "7"

    in_sandbox(work)


WAKE = """
import ctypes, os, signal, threading, time
libc = ctypes.CDLL(None)
def wake():
    while True: os.kill(os.getpid(), signal.SIGCONT)
if THREAD: threading.Thread(target=wake, daemon=True).start()
for _ in range(3):
    if os.fork() == 0:  # a child whose end makes its parent go on, and who wakes all others
        while True:
            if libc.syscall(CLONE, int(signal.SIGCONT), 0, 0, 0, 0) == 0:
                for who in (-1, 1): os.kill(who, signal.SIGCONT)
                os._exit(0)
            try: os.waitpid(-1, 0x40000001)
            except OSError: pass
time.sleep(DELAY)
""".replace("CLONE", "56 if os.uname().machine == 'x86_64' else 220")


def test_nothing_runs_between_cells_whatever_wakes_it() -> None:
    def seen(pid: int) -> list[tuple[int, str, float, int]]:
        _, _, *rest = psutil.Process(pid).children(recursive=True)  # after the two of ours
        every = [(p.pid, p.status(), sum(p.cpu_times()), p.memory_info().rss) for p in rest]
        assert {status for _, status, _, _ in every} <= {"stopped", "zombie"}, every
        return every

    async def work(sandbox: Sandbox) -> None:
        for number in range(6):
            async with sandbox.session(0) as session:
                cell = WAKE.replace("DELAY", f"{0.01 + number / 300}")
                assert not (await session.run(cell.replace("THREAD", f"{number % 2}"))).failed
                (worker,) = sandbox.sessions.workers.busy
                before = seen(worker.pid)
                await asyncio.sleep(0.05)
                assert seen(worker.pid) == before

    in_sandbox(work)


def test_memory_that_a_cell_takes_at_its_end_counts() -> None:
    """More than the limit, of all processes together, before anybody has looked at them."""
    take = "import os, time\nfor _ in range(2):\n    os.fork()\nb = b'x' * (60 << 20)\n"
    take += "if os.getpid() != 1:\n    time.sleep(60)"
    (found,) = in_session(take, settings=ONE.model_copy(update={"memory_mib": 128}))
    assert found.failed == "memory"


def test_more_sessions_than_places_take_turns_and_keep_their_state() -> None:
    """The places of idle sessions are given to others, so nobody waits for ever."""

    async def work(sandbox: Sandbox) -> None:
        async def one(number: int) -> list[str]:
            async with sandbox.session(number) as session:
                said = [(await session.run(f"n = {number}")).text]
                for _ in range(3):
                    said.append((await session.run("n += 100\nn")).text)
                    assert len(sandbox.sessions.workers.busy) <= 2
                return said[1:]

        found = await asyncio.gather(*map(one, range(6)))
        assert found == [[str(n + 100 * k) for k in (1, 2, 3)] for n in range(6)]

    in_sandbox(work, SandboxSettings(workers=2, sessions=2))


def test_a_cell_that_is_cancelled_leaves_a_session_that_works() -> None:
    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(0) as session:
            await session.run("x = 1")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.run("x = 2\nwhile True: pass"), 0.2)
            assert (await session.run("x")).text == "1"

    in_sandbox(work)


def test_a_session_that_is_closed_in_the_middle_of_a_cell_gives_its_place_back() -> None:
    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(0) as session:
            cell = asyncio.create_task(session.run("import time\ntime.sleep(0.4)"))
            await asyncio.sleep(0.2)
        await cell
        assert not sandbox.sessions.workers.busy
        with pytest.raises(RuntimeError, match="the session is closed"):
            await session.run("1")

    in_sandbox(work)


def test_a_sandbox_that_ends_before_its_sessions_leaves_nothing() -> None:
    before = descendants()

    async def work() -> None:
        async with Sandbox(ONE) as sandbox:
            session = sandbox.session(0)
            live = await session.__aenter__()
            await live.run("x = 1")
        await session.__aexit__(None, None, None)

    asyncio.run(asyncio.wait_for(work(), 60))
    assert descendants() == before


def test_forty_sessions_are_opened_and_closed_without_a_leaked_process() -> None:
    """Every fourth leaves threads and processes."""
    leave = "import os, threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
    leave += "if os.fork() == 0:\n    os.setsid()\n    time.sleep(99)"

    async def work(sandbox: Sandbox) -> None:
        for number in range(41):
            async with sandbox.session(number) as session:
                assert (await session.run("6 * 7")).text == "42"
                if number % 4 == 0:
                    assert not (await session.run(leave)).failed
            if number == 0:
                of_one = descendants()
        assert descendants() == of_one

    before = descendants()
    in_sandbox(work)
    assert descendants() == before
