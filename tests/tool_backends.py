"""Tools for tests of the tool server: one that waits until it is let go, and that server on a real socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml
from fastapi import APIRouter
from pydantic import BaseModel

from coterie.config.settings import key
from coterie.errors import UserError
from coterie.tools.run import ToolUnavailable
from coterie.tools.servers.app import make_app
from coterie.tools.servers.config import read_tools
from coterie.tools.servers.kinds import BackendSettings
from tests.listening import listening

WAITING = "tests.tool_backends:Waiting"


class WaitingSettings(BackendSettings):
    """Settings of :class:`Waiting`."""

    usable: bool = key(True, "Whether it can be opened.")


class Asked(BaseModel):
    """What is asked of it."""

    say: str = ""
    wait: bool = True
    fail: str = ""


class Waiting:
    """Answers when it is let go; counts."""

    settings_type = WaitingSettings

    def __init__(self, settings: WaitingSettings) -> None:
        if not settings.usable:
            raise UserError("it has no key", "export A_KEY")
        self.go = asyncio.Event()
        self.began = self.cancelled = 0
        self.router = APIRouter()
        self.router.post("/wait")(self.wait)
        self.router.get("/look")(self.look)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Nothing."""
        yield

    async def wait(self, asked: Asked) -> dict[str, str]:
        """Wait, or fail."""
        self.began += 1
        if asked.fail == "unavailable":
            raise ToolUnavailable("what is behind it is gone")
        if asked.fail:
            raise RuntimeError("a secret of the process")
        try:
            if asked.wait:
                await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"said": asked.say}

    async def look(self) -> dict[str, int]:
        """How often it was asked."""
        return {"began": self.began}


def config(folder: Path, *tools: Any) -> Path:
    """The file of a server with these tools."""
    file = folder / "tools.yaml"
    file.write_text(yaml.safe_dump({"tools": list(tools)}))
    return file


@contextlib.asynccontextmanager
async def serving(file: Path) -> AsyncIterator[tuple[str, list[Any]]]:
    """The URL of the server of a file, and its backends, while it runs."""
    tools = read_tools(file)
    async with contextlib.AsyncExitStack() as stack:
        for one in tools:
            await stack.enter_async_context(one.backend.open())
        url = await stack.enter_async_context(listening(make_app(tools)))
        yield url, [one.backend for one in tools]


async def until(done: Any) -> None:
    """Wait until ``done()``, which must be within ten seconds."""
    end = asyncio.get_running_loop().time() + 10
    while not done():
        assert asyncio.get_running_loop().time() < end, "it did not happen"
        await asyncio.sleep(0.005)
