"""Tool that runs Python cells in a session of the sandbox. Cells share their variables."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from coterie.config.settings import Settings, key
from coterie.tools.run import Function
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool

CODE = "code"


class PythonSettings(Settings):
    """Settings of the tool."""

    name: str = key("python", "Name of the tool.")


class PythonTool:
    """Source of the tool. Each branch of a dialogue has its own session."""

    settings_type = PythonSettings
    identity = "1"
    needs: tuple[type, ...] = (Sandbox,)
    max_sessions = 64

    def __init__(self, settings: PythonSettings) -> None:
        self.name = settings.name
        schema = {"type": "object", "properties": {CODE: {"type": "string"}}, "required": [CODE]}
        description = (
            "Runs Python and shows what it prints and the value of its last line. Variables stay."
        )
        self.tools = (Tool(self.name, description, schema, alone=True),)
        self.tags: Mapping[str, Tag] = {self.name: Tag(CODE)}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        yield {}

    @asynccontextmanager
    async def open_session(self, seed: int, shared: Any) -> AsyncIterator[Mapping[str, Function]]:
        async with shared[Sandbox].session(seed) as session:

            async def run(arguments: Mapping[str, Any]) -> str:
                return str((await session.run(arguments[CODE])).text)

            yield {self.name: run}
