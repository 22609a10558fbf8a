"""The tool ``code``: runs one Python program, with standard input, in the sandbox. Nothing stays from call to call.

What it prints and how it ends are one text, in the form that agents of AFM and GAP were trained to read.
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
"""The status of a program that was stopped, as of one that a signal 9 ended."""
MOST = 30_000
"""Bytes of what a program prints, on each of its two streams; of more the middle is left out."""
PROGRAM_LIMITS = SandboxSettings(wall_seconds=7.0, cpu_seconds=5.0)
"""AFM's, unless others are given."""
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
    """The tool's name, and the limits of a program."""

    name: str = key("code", "What agents call it.")
    sandbox: SandboxSettings = key(PROGRAM_LIMITS, "Limits of one program.", source="AFM")


class CodeTool:
    """Runs programs. Opening it raises ``UserError`` on a machine that can't contain processes."""

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

            async def run(given: Mapping[str, Any]) -> str:
                code, stdin = unfenced(given["code"])
                return await run_program(sandbox, code, given.get("stdin", stdin))

            yield {self._settings.name: run}


async def run_program(sandbox: Sandbox, code: str, stdin: str = "") -> str:
    """Return how a program ended, as agents are shown it. Raises ``ToolUnavailable`` if it can't be run."""
    call = f"run({code!r}, {stdin!r}, None, {MOST}, {MOST})"
    try:
        (found,) = await sandbox.run(f"from {RUNNER} import run", [call])
    except SandboxFailed as error:
        raise ToolUnavailable(str(error)) from error
    match found.wire:
        case ["list", [["int", code], _, ["str", out], ["str", err]]]:
            return told(int(code, 16) & 0xFF, out, err)
    return told(KILLED, "", found.reason or "it told nothing that is a result")


def unfenced(text: str) -> tuple[str, str]:
    """A program and what it reads: of a block of Python in backticks, and one of text after it; else all is program."""
    found = _FENCED.match(text)
    return (text, "") if found is None else (found[1], found[2] or "")


def told(status: int, out: str, err: str) -> str:
    """How a program ended, as agents are shown it."""
    if status == 0:
        return f"[EXECUTED] Code exited with status 0.{_block('STDOUT', out) or ' (no output)'}"
    blocks = _block("STDERR", err) + _block("STDOUT", out)
    return f"[FAILED] Code exited with status {status}.{blocks or ' (no output)'}"


def _block(name: str, text: str) -> str:
    return f"\n[{name}:BEGIN]\n{text.rstrip()}\n[{name}:END]" if text.strip() else ""
