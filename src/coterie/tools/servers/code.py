"""The tool server's ``code``: one program for each request, run in the sandbox with its standard input."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter
from pydantic import BaseModel

from coterie.config.settings import key
from coterie.tools.program import PROGRAM_LIMITS, run_program
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.servers.answers import RequestBody
from coterie.tools.servers.kinds import BackendSettings


class CodeSettings(BackendSettings):
    """Programs in Python: ``POST /run``."""

    sandbox: SandboxSettings = key(PROGRAM_LIMITS, "Limits of one program.", source="AFM")


class RunRequest(RequestBody):
    """A program, and what it reads."""

    code: str
    stdin: str = ""


class RunReply(BaseModel):
    """How it ended."""

    result: str
    """What an agent is shown."""
    status: int
    """0 if it ended well; 137 if it was stopped."""


class CodeBackend:
    """Runs programs. Opening it raises ``UserError`` on a machine that can't contain processes."""

    settings_type = CodeSettings

    def __init__(self, settings: CodeSettings) -> None:
        self._settings = settings
        self._sandbox: Sandbox | None = None
        self.router = APIRouter()
        self.router.post("/run")(self.run)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the sandbox."""
        async with Sandbox(self._settings.sandbox) as sandbox:
            self._sandbox = sandbox
            yield

    async def run(self, body: RunRequest) -> RunReply:
        """Run a program to its end."""
        assert self._sandbox is not None, "the server opens its tools first"
        result, status = await run_program(self._sandbox, body.code, body.stdin)
        return RunReply(result=result, status=status)
