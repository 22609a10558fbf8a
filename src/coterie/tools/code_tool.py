"""Tool ``code``: runs one Python program with standard input in the sandbox. Calls share no state.

The result has the format on which agents of AFM and GAP were trained.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from coterie.config.settings import Settings, key
from coterie.tools.run import Function, ToolUnavailable
from coterie.tools.sandbox.crew import SandboxFailed
from coterie.tools.sandbox.inside.program import RUNNER
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import digest

KILLED = 137
"""Exit status of a stopped program, as after SIGKILL."""
MOST = 30_000
"""Bytes of each output stream; a longer one loses its middle."""
PROGRAM_LIMITS = SandboxSettings(wall_seconds=7.0, cpu_seconds=5.0)
"""Default limits, from AFM."""
_FENCED = re.compile(
    r"^\s*```(?:py|python)?[ \t]*\n(.*?)```[ \t]*\n?(?:\s*```(?:sh|bash|text)?[ \t]*\n(.*?)```)?\s*$",
    re.DOTALL,
)
PARAMETERS = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "description": "The program, all of it."},
        "stdin": {"type": "string", "description": "What it reads from standard input."},
    },
    "required": ["code"],
    "additionalProperties": False,
}


class CodeToolSettings(Settings):
    """Settings of the tool."""

    name: str = key("code", "Name of the tool.")
    sandbox: SandboxSettings = key(PROGRAM_LIMITS, "Limits of one program.", source="AFM")


class CodeTool:
    """Source of the tool. Opening it raises ``UserError`` if the machine does not support the sandbox."""

    settings_type = CodeToolSettings

    def __init__(self, settings: CodeToolSettings) -> None:
        self._settings = settings
        description = (
            "Runs a Python program and shows what it prints. Nothing stays from call to call."
        )
        self.tools = (Tool(settings.name, description, PARAMETERS),)
        self.tags: Mapping[str, Tag] = {settings.name: Tag("code")}
        self.identity = digest("code", settings.model_dump_json())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        async with Sandbox(self._settings.sandbox) as sandbox:

            async def run(arguments: Mapping[str, Any]) -> str:
                code, stdin = split_fences(arguments["code"])
                return await run_program(sandbox, code, arguments.get("stdin", stdin))

            yield {self._settings.name: run}


async def run_program(sandbox: Sandbox, code: str, stdin: str = "") -> str:
    """Run a program; return its result as text for agents. Raises ``ToolUnavailable`` if it can't run."""
    call = f"run({code!r}, {stdin!r}, None, {MOST}, {MOST})"
    try:
        (result,) = await sandbox.run(f"from {RUNNER} import run", [call])
    except SandboxFailed as error:
        raise ToolUnavailable(str(error)) from error
    match result.wire:
        case ["list", [["int", code], _, ["str", out], ["str", err]]]:
            return format_result(int(code, 16) & 0xFF, out, err)
    return format_result(KILLED, "", result.reason or "it told nothing that is a result")


def split_fences(text: str) -> tuple[str, str]:
    """Return the program and its input from fenced blocks of Python and text; without fences all is program."""
    match = _FENCED.match(text)
    return (text, "") if match is None else (match[1], match[2] or "")


def format_result(status: int, out: str, err: str) -> str:
    """Format the exit status and output of a program for agents."""
    if status == 0:
        return f"[EXECUTED] Code exited with status 0.{_block('STDOUT', out) or ' (no output)'}"
    blocks = _block("STDERR", err) + _block("STDOUT", out)
    return f"[FAILED] Code exited with status {status}.{blocks or ' (no output)'}"


def _block(name: str, text: str) -> str:
    return f"\n[{name}:BEGIN]\n{text.rstrip()}\n[{name}:END]" if text.strip() else ""
