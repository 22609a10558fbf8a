"""``POST /run`` of the tool server: programs in the sandbox, and what agents are shown of them."""

import asyncio
from pathlib import Path

import httpx2

from tests.tool_backends import config, serving

PROGRAMS = [
    ("print(int(input()) * 2)", "21\n", 0,
     "[EXECUTED] Code exited with status 0.\n[STDOUT:BEGIN]\n42\n[STDOUT:END]"),
    ("import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))\nexit()", "1 2 3", 0,
     "[EXECUTED] Code exited with status 0.\n[STDOUT:BEGIN]\n6\n[STDOUT:END]"),
    ("x = 1", "", 0, "[EXECUTED] Code exited with status 0. (no output)"),
    ("print('so far')\nraise SystemExit(3)", "", 3,
     "[FAILED] Code exited with status 3.\n[STDOUT:BEGIN]\nso far\n[STDOUT:END]"),
    ("def f(n):\n    return 1 // n\nprint(f(0))", "", 1,
     "[FAILED] Code exited with status 1.\n[STDERR:BEGIN]\nTraceback (most recent call last):\n"
     '  File "main.py", line 3, in <module>\n    print(f(0))\n'),
    ("while True:\n    pass", "", 137,
     "[FAILED] Code exited with status 137.\n[STDERR:BEGIN]\nit took too long\n[STDERR:END]"),
    ("import os\nos._exit(0)", "", 137, "[FAILED] Code exited with status 137.\n[STDERR:BEGIN]\n"),
]  # fmt: skip


def test_programs_run_apart_from_each_other_and_are_shown_as_agents_know_it(tmp_path: Path) -> None:
    limits = {"cpu_seconds": 0.5, "wall_seconds": 5, "workers": 2}

    async def play() -> list[httpx2.Response]:
        async with (
            serving(config(tmp_path, {"kind": "code", "sandbox": limits})) as (url, _),
            httpx2.AsyncClient(timeout=60, trust_env=False) as http,
        ):
            bodies = [{"code": code, "stdin": stdin} for code, stdin, _, _ in PROGRAMS]
            posts = (http.post(f"{url}/run", json=body) for body in bodies)
            found: list[httpx2.Response] = await asyncio.gather(*posts)
            assert (await http.post(f"{url}/run", json={"code": 3})).status_code == 400
            return found

    for reply, (_, _, status, shown) in zip(asyncio.run(play()), PROGRAMS, strict=True):
        told = reply.json()
        assert told["status"] == status
        assert told["result"].startswith(shown), told


def test_a_program_reads_nothing_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the answer")

    async def play() -> httpx2.Response:
        async with (
            serving(config(tmp_path, {"kind": "code"})) as (url, _),
            httpx2.AsyncClient(timeout=60, trust_env=False) as http,
        ):
            code = f"print(open({str(secret)!r}).read())"
            return await http.post(f"{url}/run", json={"code": code})

    told = asyncio.run(play()).json()
    assert told["status"] == 1 and "FileNotFoundError" in told["result"]
    assert "the answer" not in told["result"]


def test_of_a_long_output_the_middle_is_left_out(tmp_path: Path) -> None:
    async def play() -> httpx2.Response:
        async with (
            serving(config(tmp_path, {"kind": "code"})) as (url, _),
            httpx2.AsyncClient(timeout=60, trust_env=False) as http,
        ):
            return await http.post(f"{url}/run", json={"code": "print('a' + 'x' * 10**6 + 'b')"})

    result = asyncio.run(play()).json()["result"]
    assert len(result) < 31_000 and "characters are left out]" in result
    assert "\nax" in result and "xb\n" in result
