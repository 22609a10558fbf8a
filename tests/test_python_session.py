"""Python sessions: what cells show, what lasts between them, and what is lost and when."""

import asyncio

from coterie.tools.sandbox.pool import ANEW, LOST, NOTHING, Sandbox
from tests.python_sessions import QUICK, in_sandbox, in_session, texts

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
    define = "import json\ndef f(text):\n    return json.loads(text)"
    _, found, after = in_session(define, "y = 3\nprint('before')\nf('{')", "y")
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
    some = "print('a' * 90 + 'b' * 120)", "print('ä' * 100 + '€' * 100, end='')"
    long, fits, longer, none = texts(*some, "print('€' * 100_000)", "1", settings=QUICK)
    note = "\n[... {} characters are left out here ...]\n"
    assert long == "a" * 90 + "b" * 10 + note.format(11) + "b" * 99
    assert fits == "ä" * 100 + "€" * 100
    assert longer == "€" * 100 + note.format("99,801") + "€" * 99 and none == "1"


ENDING = "exit()", "quit(0)", "import sys\nsys.exit('gone')", "raise SystemExit"
REFUSED = (*ENDING, "n = int(input('how many?'))")


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
    "import os, time\nfor _ in range(3):\n    os.fork()\nb = bytearray(30 * 2**20)\nfor i in range(0, len(b), 4096):\n"
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

    in_sandbox(work)
