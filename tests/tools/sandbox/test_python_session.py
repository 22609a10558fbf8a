"""Python sessions: what cells show, what lasts between them, what is lost and when, and their jails."""

import asyncio
from typing import Any

import psutil
import pytest

from coterie.tools.sandbox.inside.job import JobRecord
from coterie.tools.sandbox.pool import ANEW, LOST, NOTHING, Sandbox
from coterie.tools.sandbox.worker import SPOILED, SandboxFailed, SandboxSettings, Worker, WorkerLost
from tests.helpers.run_python import ONE_WORKER, QUICK, cell_texts, run_cells, run_in_sandbox

SHOWN = {
    "x = 41": NOTHING,
    "x + 1": "42",
    "print('a'); x": "a\n41",
    "x;": "41",
    "None": NOTHING,
    "": NOTHING,
    "# a comment": NOTHING,
    "'text'": "'text'",
    "for n in range(3):\n    print(n)": "0\n1\n2",
    "import sys\nprint('out')\nprint('error', file=sys.stderr)\nprint('out again')": "out\nerror\nout again",
    "print('no end', end='')": "no end",
    "import time\nprint('one')\ntime.sleep(0.05)\nprint('two')": "one\ntwo",
    "import os\nprint('first', flush=True)\nw = os.write(1, b'second\\n')\nprint('third')": "first\nsecond\nthird",
    "def f(n):\n    return n * x\n\n\nf(2)": "82",
    "_ + 1": "83",
    "if __name__ == '__main__':\n    print('is the main module')": "is the main module",
    "class A:\n    pass\n\n\n[A(), f, (n for n in ())]": "[<__main__.A object at 0x...>, <function f at 0x...>, "
    "<generator object <genexpr> at 0x...>]",
    "print('ä', '\\ud800')": "ä \\ud800",
    "sys.stdout = None": NOTHING,
    "print('is there again')": "is there again",
    "os.close(1)": NOTHING,
    "print('is open again')": "is open again",
}  # fmt: skip


def test_a_cell_shows_what_it_prints_and_the_value_of_its_last_expression() -> None:
    """One session, so the state of each cell is that of those before it."""
    found = run_cells(*SHOWN)
    assert {cell: one.text for cell, one in zip(SHOWN, found, strict=True)} == SHOWN
    assert not any(one.failed for one in found)


def test_a_syntax_error_is_the_result_and_nothing_runs() -> None:
    broken = ("x = 2\nprint(x) print(x)", "x = 2\nreturn x", "x = 2\n'a\0'", "x = 2\n" + "(" * 5000)
    first, *found, last = run_cells("x = 1", *broken, "x")
    assert {one.failed for one in found} == {"syntax"}
    assert found[0].text.startswith('  File "<cell 2>", line 2\n    print(x) print(x)\n')
    assert found[0].text.endswith("\nSyntaxError: invalid syntax")
    assert "outside function" in found[1].text and "null bytes" in found[2].text
    assert not first.failed and last.text == "1"


def test_a_traceback_has_the_lines_of_cells_and_no_others() -> None:
    define = "import json\ndef f(text):\n    return json.loads(text)"
    _, found, after = run_cells(define, "y = 3\nprint('before')\nf('{')", "y")
    assert found.failed == "error" and after.text == "3"
    assert found.text == (
        "before\nTraceback (most recent call last):\n"
        "  File \"<cell 2>\", line 3, in <module>\n    f('{')\n"
        '  File "<cell 1>", line 3, in f\n    return json.loads(text)\n'
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )


ODD = (
    "class E(BaseException):\n    def __str__(self):\n        raise self",
    "raise E",
    "class R:\n    def __repr__(self):\n        raise ValueError('shy')",
    "R()",
    "raise KeyboardInterrupt",
    "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()",
    "def deep(n):\n    return deep(n + 1)\ndeep(0)",
)


def test_whatever_is_raised_is_told_and_the_session_goes_on() -> None:
    found = run_cells("x = 1", *ODD, "x")
    assert found[-1].text == "1"
    assert [one.failed for one in found[1:-1]] == ["", "error", "", "error", "error", "", "error"]
    assert "ValueError: shy" in found[4].text and "KeyboardInterrupt" in found[5].text
    assert "ZeroDivisionError" in found[6].text
    assert "RecursionError" in found[7].text and len(found[7].text) < 400


def test_output_is_cut_in_its_middle() -> None:
    """Also where it is far too long to be kept, and exactly to the character."""
    some = "print('a' * 90 + 'b' * 120)", "print('ä' * 100 + '€' * 100, end='')"
    long, fits, longer, none = cell_texts(*some, "print('€' * 100_000)", "1", settings=QUICK)
    note = "\n[... {} characters are left out here ...]\n"
    assert long == "a" * 90 + "b" * 10 + note.format(11) + "b" * 99
    assert fits == "ä" * 100 + "€" * 100
    assert longer == "€" * 100 + note.format("99,801") + "€" * 99 and none == "1"


ENDING = "exit()", "quit(0)", "import sys\nsys.exit('gone')", "raise SystemExit"
REFUSED = (*ENDING, "n = int(input('how many?'))")


def test_ending_the_session_and_asking_are_refused_and_lose_nothing() -> None:
    cells = [f"print('before')\n{one}\nx = 2" for one in REFUSED]
    _, *found, last = run_cells("x = 1", *cells, "x")
    assert {one.failed for one in found} == {"refused"} and last.text == "1"
    assert all("before\nexit() is refused" in one.text for one in found[:-1])
    assert "input() is refused" in found[-1].text


LOSING = {
    "while True:\n    print('busy')": "timeout",
    "import time\ntime.sleep(60)": "timeout",
    "import os\nprint('printed', flush=True)\nos._exit(3)": "ended",
    "import ctypes\nctypes.string_at(0)": "ended",
    "import os\nos.execv('/nothing', ['n']) if 0 else os.abort()": "ended",
    "import os, time\nfor _ in range(3):\n    os.fork()\nb = bytearray(30 * 2**20)\nfor i in range(0, len(b), 4096):\n"
    "    b[i] = 1\ntime.sleep(60)": "memory",
    "import os\nos.write(3, b'kkk')": "garbled",
}


def test_a_cell_that_is_stopped_or_ends_its_process_loses_the_state() -> None:
    """What follows begins anew: in the same jail, with the same seed."""
    fresh = "import random\n'x' in globals(), random.random()"
    cells = [cell for one in LOSING for cell in ("x = 1", one, fresh)]
    found = run_cells(fresh, *cells, settings=QUICK)
    lost = found[2::3]
    assert [one.failed for one in lost] == list(LOSING.values())
    assert all(LOST[one.failed] in one.text and one.text.endswith(ANEW) for one in lost)
    assert all(one.lost for one in lost) and "busy" not in lost[0].text
    assert lost[2].text.startswith("printed\n") and "status 3" in lost[2].text
    assert "signal 11" in lost[3].text
    assert {one.text for one in found[3::3]} == {found[0].text}


def test_what_a_session_says_follows_from_its_seed_and_its_cells() -> None:
    cells = (
        "import random\n[random.random(), random.sample(range(99), 5)]",
        "{'a', 'b', None, 2.5}, hash('x'), object(), hex(99_999_999)",
        "random.shuffle(order := list(range(20)))\norder",
    )
    first, again, other = cell_texts(*cells), cell_texts(*cells), cell_texts(*cells, seed=1)
    assert first == again and first[1] == other[1] and "0x5f5e0ff" in first[1]
    assert first[0] != other[0] and first[2] != other[2]


def test_nothing_of_a_session_runs_between_its_cells() -> None:
    """Threads, children, and what would wake them; they go on with the next cell."""
    cells = (
        "import os, signal, threading, time\ncount = 0\ndef up():\n    global count\n    while True:\n"
        "        count += 1\n        time.sleep(0.001)\nthreading.Thread(target=up, daemon=True).start()",
        "if os.fork() == 0:\n    while True:\n        time.sleep(0.001)\n        open('beats', 'ab').write(b'.')",
        "time.sleep(0.2)\nsignal.signal(signal.SIGALRM, lambda *a: print('alarm'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)",
    )

    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(0) as session:
            for cell in cells:
                assert not (await session.run(cell)).failed
            look = "print(count, os.stat('beats').st_size)"
            before = list(map(int, (await session.run(look)).text.split()))
            await asyncio.sleep(0.5)
            after = list(map(int, (await session.run(look)).text.split()))
            assert all(0 <= b - a < 100 for a, b in zip(before, after, strict=True))
            later = await session.run(f"time.sleep(0.5)\n{look}")
            counts = list(map(int, later.text.split()))
            assert all(b - a > 100 for a, b in zip(after, counts, strict=True))

    run_in_sandbox(work)


# -- jails ---------------------------------------------------------------------------------------


def descendants() -> int:
    return len(psutil.Process().children(recursive=True))


async def kill_jails(sandbox: Sandbox) -> None:
    """End the jails of all sessions; they take a moment to end."""
    workers = list(sandbox.sessions.workers.busy)
    for worker in workers:
        worker.kill()
    while any(psutil.pid_exists(worker.pid) for worker in workers):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


def test_a_session_is_brought_back_when_its_worker_dies_or_begins_anew() -> None:
    """A cell that shows the time shows something else when it is run again: its own doing, and no failed sandbox."""

    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(5) as session:
            shown = [await session.run(one) for one in ("import random\nx = random.random()", "x")]
            for _ in range(2):
                await kill_jails(sandbox)
                shown.append(await session.run("x"))
            assert shown[1] == shown[2] == shown[3]
            await session.run("import time\nx = time.time_ns()\nx")
            await kill_jails(sandbox)
            lost = await session.run("x")
            assert lost.failed == "lost" and "showed something else" in lost.text
            assert (await session.run("'x' in globals()")).text == "False"

    run_in_sandbox(work)


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
    run_in_sandbox(work)


def test_a_process_that_is_killed_from_outside_is_no_result_of_its_cell() -> None:
    """As the kernel does when the machine's memory is full: between two cells, and in the middle of one."""

    def kill_process(sandbox: Sandbox) -> None:
        (worker,) = sandbox.sessions.workers.busy
        every = psutil.Process(worker.pid).children(recursive=True)
        max(every, key=lambda one: (one.create_time(), one.pid)).kill()

    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(0) as session:
            await session.run("x = 7")
            kill_process(sandbox)
            assert (await session.run("x")).text == "7"
            cell = asyncio.create_task(session.run("import time\ntime.sleep(1)\nx"))
            await asyncio.sleep(0.4)
            kill_process(sandbox)
            assert (await cell).text == "7"

    run_in_sandbox(work)


WAKE = """
import ctypes, os, signal, threading, time
libc = ctypes.CDLL(None)
def wake():
    while True: os.kill(os.getpid(), signal.SIGCONT)
def fork():
    while True:
        try: return os.fork()
        except BlockingIOError: pass  # as many processes as allowed, for a moment
if THREAD: threading.Thread(target=wake, daemon=True).start()
for _ in range(3):
    if fork() == 0:  # a child whose end makes its parent go on, and who wakes all others
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

    run_in_sandbox(work)


VFORK = """
import ctypes, os, threading, time
system_call = 56 if os.uname().machine == "x86_64" else 220
def wait():
    if ctypes.CDLL(None).syscall(system_call, 0x4011, 0, 0, 0, 0) == 0: time.sleep(60)  # CLONE_VFORK
threading.Thread(target=wait).start()
time.sleep(0.1)
"""


def test_a_thread_that_waits_in_the_kernel_for_a_stopped_child_does_not_end_the_session() -> None:
    assert cell_texts(VFORK, "6 * 7")[1] == "42"


def test_memory_that_a_cell_takes_at_its_end_counts() -> None:
    """More than the limit, of all processes together, before anybody has looked at them."""
    take = "import os, time\nfor _ in range(2):\n    os.fork()\nb = b'x' * (60 << 20)\n"
    take += "if os.getpid() != 1:\n    time.sleep(60)"
    (found,) = run_cells(take, settings=ONE_WORKER.model_copy(update={"memory_mib": 128}))
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

    run_in_sandbox(work, SandboxSettings(workers=2, sessions=2))


def test_cells_that_are_cancelled_and_sessions_that_are_closed_in_a_cell_leave_nothing() -> None:
    before = descendants()

    async def work() -> None:
        async with Sandbox(ONE_WORKER) as sandbox:
            async with sandbox.session(0) as session:
                await session.run("x = 1")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(session.run("x = 2\nwhile True: pass"), 0.2)
                assert (await session.run("x")).text == "1"
                cell = asyncio.create_task(session.run("import time\ntime.sleep(0.4)"))
                await asyncio.sleep(0.2)
            await cell
            assert not sandbox.sessions.workers.busy
            with pytest.raises(RuntimeError, match="the session is closed"):
                await session.run("1")
            opening = sandbox.session(0)
            await (await opening.__aenter__()).run("x = 1")
        await opening.__aexit__(None, None, None)  # after its sandbox

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
    run_in_sandbox(work)
    assert descendants() == before
