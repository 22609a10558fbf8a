"""The tool ``code``: programs in the sandbox, and what agents are shown of them."""

import asyncio
from typing import Any

from coterie.record.turn import ToolCall
from coterie.tools.builtin import CodeTool, CodeToolSettings, split_fences
from coterie.tools.registry import ToolsSettings, open_toolbox

PROGRAMS = [
    ("print(int(input()) * 2)", "21\n", 0,
     "[EXECUTED] Code exited with status 0.\n[STDOUT:BEGIN]\n42\n[STDOUT:END]"),
    ("x = 1", "", 0, "[EXECUTED] Code exited with status 0. (no output)"),
    ("print('so far')\nraise SystemExit(3)", "", 3,
     "[FAILED] Code exited with status 3.\n[STDOUT:BEGIN]\nso far\n[STDOUT:END]"),
    ("def f(n):\n    return 1 // n\nprint(f(0))", "", 1,
     "[FAILED] Code exited with status 1.\n[STDERR:BEGIN]\nTraceback (most recent call last):\n"
     '  File "main.py", line 3, in <module>\n    print(f(0))\n'),
    ("while True:\n    pass", "", 137,
     "[FAILED] Code exited with status 137.\n[STDERR:BEGIN]\nit took too long\n[STDERR:END]"),
    ("import os\nprint('lost')\nos._exit(0)", "", 0, "[EXECUTED] Code exited with status 0. (no output)"),
    ("import numpy\nprint(numpy.arange(4) @ numpy.arange(4))", "\ud800", 0,
     "[EXECUTED] Code exited with status 0.\n[STDOUT:BEGIN]\n14\n[STDOUT:END]"),
    ("raise SystemExit(10**5000 + 5)", "", 5, "[FAILED] Code exited with status 5. (no output)"),
    ("import os\nfor file in range(3, 64):\n    try: os.write(file, b'\\0\\0\\0\\x0f{\"value\": null}')\n"
     "    except OSError: pass\nos.write(1, b'by descriptor')\nos.abort()", "", 134,
     "[FAILED] Code exited with status 134.\n[STDOUT:BEGIN]\nby descriptor\n[STDOUT:END]"),
]  # fmt: skip


def test_programs_run_apart_from_each_other_and_are_shown_as_agents_know_it() -> None:
    limits: Any = {"cpu_seconds": 0.5, "wall_seconds": 5, "workers": 2}
    tool = CodeTool(CodeToolSettings(sandbox=limits))
    calls = [
        ToolCall("c0", "code", '{"code": "```py\\nx = input()\\nprint(x * 2)\\n```\\n```sh\\nab\\n```"}'),
        ToolCall("c1", "code", '{"code": "print(x)"}'),
        ToolCall("c2", "code", '{"code": "print(\'a\' + \'x\' * 10**6 + \'b\')"}'),
    ]  # fmt: skip

    async def play() -> tuple[list[str], list[str]]:
        async with open_toolbox([tool], ToolsSettings(max_characters=10**5)) as box:
            programs = [{"code": code, "stdin": stdin} for code, stdin, _, _ in PROGRAMS]
            shown = await asyncio.gather(*map(box.functions["code"], programs))
            return shown, [one.text for one in await box.run(calls, tool.tools, "")]

    shown, (doubled, gone, long) = asyncio.run(play())
    for text, (_, _, status, beginning) in zip(shown, PROGRAMS, strict=True):
        assert f"Code exited with status {status}." in text and text.startswith(beginning), text
    assert "abab" in doubled and doubled.startswith("[EXECUTED]")
    assert gone.startswith("[FAILED] Code exited with status 1.") and "NameError" in gone
    assert len(long) < 31_000 and "bytes are left out]" in long
    assert "\nax" in long and "xb\n" in long


def test_text_without_a_block_is_a_program() -> None:
    assert split_fences("print(1)") == ("print(1)", "")
    assert split_fences("```\na\n```\n\n```text\nb\n```") == ("a\n", "b\n")
    odd = "```py\nprint(1)\n``` and more"
    assert split_fences(odd) == (odd, "")
