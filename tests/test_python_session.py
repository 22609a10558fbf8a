"""Python sessions: what cells show, what lasts between them, what is lost and when, and that nothing is left behind."""

import asyncio
import re
import statistics
import time as clock
from collections.abc import Callable, Coroutine
from typing import Any

import psutil
import pytest

from coterie.tools.sandbox.cells import ANEW, LOST, NOTHING, CellResult, shortened
from coterie.tools.sandbox.inside.cell import CONTINUATION
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.session import PythonSession, SessionLost
from coterie.tools.sandbox.settings import SandboxSettings

ONE = SandboxSettings(workers=1)
QUICK = SandboxSettings(
    workers=1, wall_seconds=0.6, cpu_seconds=0.3, memory_mib=200, shown_characters=200
)


def in_sandbox(
    work: Callable[[Sandbox], Coroutine[Any, Any, Any]], settings: SandboxSettings = ONE
) -> Any:
    async def run() -> Any:
        async with Sandbox(settings) as sandbox:
            return await work(sandbox)

    return asyncio.run(asyncio.wait_for(run(), 120))


def in_session(*cells: str, settings: SandboxSettings = ONE, seed: int = 0) -> list[CellResult]:
    """What cells of one session give."""

    async def work(sandbox: Sandbox) -> list[CellResult]:
        async with sandbox.session(seed) as session:
            return [await session.run(cell) for cell in cells]

    found: list[CellResult] = in_sandbox(work, settings)
    return found


def texts(*cells: str, settings: SandboxSettings = ONE, seed: int = 0) -> list[str]:
    return [found.text for found in in_session(*cells, settings=settings, seed=seed)]


async def killed(sandbox: Sandbox) -> list[int]:
    """End the jails of all sessions; they take a moment to be gone."""
    pids = [worker.pid for worker in sandbox.sessions.crew.busy]
    for worker in sandbox.sessions.crew.busy:
        worker.kill()
    while any(map(psutil.pid_exists, pids)):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    return pids


def descendants() -> int:
    return len(psutil.Process().children(recursive=True))


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
    found = in_session(*SHOWN)
    assert {cell: one.text for cell, one in zip(SHOWN, found, strict=True)} == SHOWN
    assert not any(one.failed for one in found)


def test_a_syntax_error_is_the_result_and_nothing_runs() -> None:
    broken = ("x = 2\nprint(x) print(x)", "x = 2\nreturn x", "x = 2\n'a\0'", "x = 2\n" + "(" * 5000)
    first, *found, last = in_session("x = 1", *broken, "x")
    assert {one.failed for one in found} == {"syntax"}
    assert found[0].text.startswith('  File "<cell 2>", line 2\n    print(x) print(x)\n')
    assert found[0].text.endswith("\nSyntaxError: invalid syntax")
    assert "outside function" in found[1].text and "null bytes" in found[2].text
    assert not first.failed and last.text == "1"


def test_a_traceback_has_the_lines_of_cells_and_no_others() -> None:
    cells = (
        "import json\ndef f(text):\n    return json.loads(text)",
        "y = 3\nprint('before')\nf('{')",
    )
    _, found, after = in_session(*cells, "y")
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
    found = in_session("x = 1", *ODD, "x")
    assert found[-1].text == "1"
    assert [one.failed for one in found[1:-1]] == ["", "error", "", "error", "error", "", "error"]
    assert "ValueError: shy" in found[4].text and "KeyboardInterrupt" in found[5].text
    assert "ZeroDivisionError" in found[6].text
    assert "RecursionError" in found[7].text and len(found[7].text) < 400


def test_output_is_cut_in_its_middle() -> None:
    """Also where it is far too long to be kept, and exactly to the character."""
    some = (
        "print('a' * 90 + 'b' * 120)",
        "print('ä' * 100 + '€' * 100, end='')",
        "print('€' * 100_000)",
    )
    long, fits, longer, none = texts(*some, "1", settings=QUICK)
    note = "\n[... {} characters are left out here ...]\n"
    assert long == "a" * 90 + "b" * 10 + note.format(11) + "b" * 99
    assert fits == "ä" * 100 + "€" * 100
    assert longer == "€" * 100 + note.format("99,801") + "€" * 99 and none == "1"


def test_cutting_leaves_no_broken_character() -> None:
    data = ("a" + "€" * 1000).encode()
    for kept in range(800, 810):
        left_out = len(data[kept:-kept].translate(None, CONTINUATION))
        text = shortened(data[:kept], data[-kept:], left_out, 200)
        assert "�" not in text and text.startswith("a€") and text.endswith("€")
        assert re.findall(r"\d+", text) == ["801"]


REFUSED = (
    "exit()",
    "quit(0)",
    "import sys\nsys.exit('gone')",
    "raise SystemExit",
    "n = int(input('how many?'))",
)


def test_ending_the_session_and_asking_are_refused_and_lose_nothing() -> None:
    cells = [f"print('before')\n{one}\nx = 2" for one in REFUSED]
    _, *found, last = in_session("x = 1", *cells, "x")
    assert {one.failed for one in found} == {"refused"} and last.text == "1"
    assert all("before\nexit() is refused" in one.text for one in found[:-1])
    assert "input() is refused" in found[-1].text


LOSING = {
    "while True:\n    print('busy')": "timeout",
    "import time\ntime.sleep(60)": "timeout",
    "import os\nprint('printed', flush=True)\nos._exit(3)": "ended",
    "import ctypes\nctypes.string_at(0)": "ended",
    "import os\nos.execv('/nothing', ['n']) if 0 else os.abort()": "ended",
    "import os, time\nfor _ in range(3):\n    os.fork()\nb = bytearray(60 * 2**20)\nfor i in range(0, len(b), 4096):\n"
    "    b[i] = 1\ntime.sleep(60)": "memory",
    "import os\nos.write(3, b'kkk')": "garbled",
}


def test_a_cell_that_is_stopped_or_ends_its_process_loses_the_state() -> None:
    """What follows begins anew: in the same jail, with the same seed."""
    fresh = "import random\n'x' in globals(), random.random()"
    cells = [cell for one in LOSING for cell in ("x = 1", one, fresh)]
    found = in_session(fresh, *cells, settings=QUICK)
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
    first, again, other = texts(*cells), texts(*cells), texts(*cells, seed=1)
    assert first == again and first[1] == other[1] and "0x5f5e0ff" in first[1]
    assert first[0] != other[0] and first[2] != other[2]


def test_nothing_of_a_session_runs_between_its_cells() -> None:
    """Threads, children, and what would wake them; they go on with the next cell."""
    cells = (
        "import os, signal, threading, time\ncount = 0\ndef up():\n    global count\n    while True:\n"
        "        count += 1\n        time.sleep(0.001)\nthreading.Thread(target=up, daemon=True).start()",
        "if os.fork() == 0:\n    while True:\n        time.sleep(0.001)\n        open('beats', 'ab').write(b'.')",
        "signal.signal(signal.SIGALRM, lambda *a: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)",
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

    in_sandbox(work)


SECRET = "zq_" + "needle"
LOOK = f"""
import gc, os
def found():
    what = ['{SECRET[:3]}' + '{SECRET[3:]}']
    return [os.listdir('.'), sorted(n for n in globals() if n.startswith('kept')),
            sum(isinstance(o, str) and what[0] in o and o is not what[0] for o in gc.get_objects())]
found()
"""


def test_the_next_session_of_a_jail_finds_nothing_of_the_one_before() -> None:
    async def work(sandbox: Sandbox) -> None:
        pids = set()
        for _ in range(3):
            async with sandbox.session(0) as session:
                assert (await session.run(LOOK)).text == "[[], [], 0]"
                leave = f"kept = '{SECRET}'\nopen('left', 'w').write(kept)\nimport os\nif os.fork() == 0:\n"
                leave += "    import time\n    time.sleep(60)"
                assert (await session.run(leave)).text == NOTHING
                pids |= {worker.pid for worker in sandbox.sessions.crew.busy}
        assert len(pids) == 1

    in_sandbox(work, ONE.model_copy(update={"sessions": 1}))


def test_a_session_is_brought_back_when_its_worker_dies() -> None:
    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(5) as session:
            said = [await session.run(one) for one in ("import random\nx = random.random()", "x")]
            for _ in range(2):
                await killed(sandbox)
                said.append(await session.run("x"))
        assert said[1] == said[2] == said[3]

    in_sandbox(work)


def test_a_session_that_cannot_be_brought_back_fails_and_shows_nothing() -> None:
    """A cell that shows the time shows something else when it is run again."""

    async def work(sandbox: Sandbox) -> None:
        async with sandbox.session(0) as session:
            await session.run("import time\ntime.time_ns()")
            await killed(sandbox)
            with pytest.raises(SessionLost, match="showed something else"):
                await session.run("1")
        async with sandbox.session(0) as session:
            assert (await session.run("1")).text == "1"

    in_sandbox(work)


def test_a_process_that_is_killed_from_outside_is_no_result_of_its_cell() -> None:
    """As the kernel does when the machine's memory is full: between two cells, and in the middle of one."""

    def kill_process(sandbox: Sandbox) -> None:
        (worker,) = sandbox.sessions.crew.busy
        every = psutil.Process(worker.pid).children(recursive=True)
        max(every, key=lambda one: one.create_time()).kill()

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


def test_more_sessions_than_places_take_turns_and_keep_their_state() -> None:
    """The places of idle sessions are given to others, so nobody waits for ever."""

    async def work(sandbox: Sandbox) -> None:
        async def one(number: int) -> list[str]:
            async with sandbox.session(number) as session:
                said = [(await session.run(f"n = {number}")).text]
                for _ in range(3):
                    said.append((await session.run("n += 100\nn")).text)
                    assert len(sandbox.sessions.crew.busy) <= 2
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
        assert not sandbox.sessions.crew.busy
        with pytest.raises(RuntimeError, match="outside of its block"):
            await session.run("1")

    in_sandbox(work)


def test_a_branch_of_a_session_is_replayed() -> None:
    async def work(sandbox: Sandbox) -> PythonSession:
        async with sandbox.session(0) as session:
            return session

    assert in_sandbox(work).fork() is None  # type: ignore[func-returns-value]


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


async def opened_and_closed(sandbox: Sandbox, count: int) -> list[float]:
    """Seconds until the first cell of each of many sessions is done; each leaves threads and processes."""
    leave = "import os, threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
    leave += "if os.fork() == 0:\n    os.setsid()\n    time.sleep(99)"
    took = []
    for number in range(count):
        async with sandbox.session(number) as session:
            began = clock.monotonic()
            assert (await session.run("6 * 7")).text == "42"
            took.append(clock.monotonic() - began)
            if number % 4 == 0:
                assert not (await session.run(leave)).failed
    return took


def leak(sessions: int) -> tuple[int, list[float]]:
    """Processes that are left when so many sessions were opened and closed, beyond those of one; and their seconds."""

    async def work(sandbox: Sandbox) -> tuple[int, list[float]]:
        await opened_and_closed(sandbox, 1)
        before = descendants()
        took = await opened_and_closed(sandbox, sessions)
        return descendants() - before, took

    left: tuple[int, list[float]] = in_sandbox(work)
    return left


def test_forty_sessions_are_opened_and_closed_without_a_leaked_process() -> None:
    before = descendants()
    left, took = leak(40)
    assert left == 0 and descendants() == before
    assert statistics.median(took) < 0.1


async def live_at_once(sandbox: Sandbox, count: int) -> tuple[int, int]:
    """Sessions that keep their state while all are live: how many have, and the bytes of their processes."""

    async def one(number: int, all_up: asyncio.Barrier) -> bool:
        async with sandbox.session(number) as session:
            await session.run(f"kept = list(range({number}))")
            await all_up.wait()
            kept = (await session.run("len(kept)")).text == str(number)
            await all_up.wait()
            return kept

    barrier = asyncio.Barrier(count + 1)
    running = [asyncio.create_task(one(number, barrier)) for number in range(count)]
    await barrier.wait()
    every = psutil.Process().children(recursive=True)
    size = sum(process.memory_info().rss for process in every)
    await barrier.wait()
    return sum(await asyncio.gather(*running)), size


def test_twelve_sessions_are_live_at_once() -> None:
    kept, _ = in_sandbox(lambda sandbox: live_at_once(sandbox, 12))
    assert kept == 12


@pytest.mark.slow
def test_sixty_four_sessions_are_live_at_once_and_a_thousand_leave_no_process() -> None:
    before = descendants()
    kept, size = in_sandbox(lambda sandbox: live_at_once(sandbox, 64))
    assert kept == 64 and size < 24 * 2**30
    left, took = leak(1000)
    assert left == 0 and descendants() == before
    print(
        f"64 sessions: {size / 2**20:.0f} MiB; first cell: {statistics.median(took) * 1000:.1f} ms"
    )
