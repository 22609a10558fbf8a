"""The tool ``code``: programs with standard input, in the sandbox."""

import asyncio

from coterie.tools.code_tool import CodeTool, CodeToolSettings
from coterie.tools.program import unfenced
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.toolbox import ToolsSettings, open_toolbox
from coterie.trajectories.calls import ToolCall


def test_a_program_of_a_block_reads_the_block_after_it_and_nothing_stays() -> None:
    tool = CodeTool(CodeToolSettings(sandbox=SandboxSettings(workers=1)))

    async def test() -> list[str]:
        async with open_toolbox([tool], ToolsSettings()) as box:
            calls = [
                ToolCall("c0", "code", '{"code": "```py\\nx = input()\\nprint(x * 2)\\n```\\n```sh\\nab\\n```"}'),
                ToolCall("c1", "code", '{"code": "print(int(input()) + 1)", "stdin": "41"}'),
                ToolCall("c2", "code", '{"code": "print(x)"}'),
            ]  # fmt: skip
            return [one.text for one in await box.run(calls, tool.tools, "")]

    doubled, added, gone = asyncio.run(test())
    assert "abab" in doubled and doubled.startswith("[EXECUTED]")
    assert "42" in added
    assert gone.startswith("[FAILED] Code exited with status 1.") and "NameError" in gone


def test_what_is_no_block_is_a_program() -> None:
    assert unfenced("print(1)") == ("print(1)", "")
    assert unfenced("```python\nprint(1)\n```") == ("print(1)\n", "")
    assert unfenced("```\na\n```\n\n```text\nb\n```") == ("a\n", "b\n")
    odd = "```py\nprint(1)\n``` and more"
    assert unfenced(odd) == (odd, "")
