"""The tool ``code``: runs one Python program, with standard input, in the sandbox. Nothing stays from call to call."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from coterie.config.settings import Settings, key
from coterie.tools.program import PROGRAM_LIMITS, run_program, unfenced
from coterie.tools.run import Function
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import digest

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
        """A sandbox for all calls."""
        async with Sandbox(self._settings.sandbox) as sandbox:

            async def run(given: Mapping[str, Any]) -> str:
                code, stdin = unfenced(given["code"])
                told, _ = await run_program(sandbox, code, given.get("stdin", stdin))
                return told

            yield {self._settings.name: run}
