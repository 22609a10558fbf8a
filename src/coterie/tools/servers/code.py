"""The tool server's ``code``: one program for each request, run in the sandbox with its standard input.

What it prints and how it ends come back as one text, in the form that agents of AFM and GAP were trained to read.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter
from pydantic import BaseModel

from coterie.config.settings import key
from coterie.engines.serving.requests import RequestBody
from coterie.tools.run import ToolUnavailable
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.tools.servers.kinds import BackendSettings

KILLED = 137
"""The status of a program that was stopped, as of one that a signal 9 ended."""
MOST = 30_000
"""Characters of what a program prints, on each of its two streams; of more the middle is left out."""
PROGRAM = """\
import builtins, io, linecache, sys, traceback

def run():
    code, stdin, most = {code!r}, {stdin!r}, {most}
    linecache.cache["main.py"] = (len(code), None, code.splitlines(True), "main.py")
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", "replace", write_through=True) for _ in range(2)]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
    sys.stdout, sys.stderr = streams
    builtins.exit = builtins.quit = sys.exit
    status = 0
    try:
        exec(compile(code, "main.py", "exec"), {{"__name__": "__main__", "__builtins__": __builtins__}})
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=streams[1])
    except BaseException as error:
        status = 1
        inside = error.__traceback__.tb_next
        traceback.print_exception(type(error), error, inside, file=streams[1])
    return [status, *(shown(one.buffer.getvalue().decode("utf-8", "replace"), most) for one in streams)]

def shown(text, most):
    half = most // 2
    left_out = len(text) - 2 * half
    return text if len(text) <= most else f"{{text[:half]}}\\n[{{left_out}} characters are left out]\\n{{text[-half:]}}"
"""
"""What runs in the sandbox; its braces are of ``str.format``."""


class CodeSettings(BackendSettings):
    """Programs in Python: ``POST /run``."""

    sandbox: SandboxSettings = key(
        SandboxSettings(wall_seconds=7.0, cpu_seconds=5.0),
        "Limits of one program.",
        source="AFM",
    )


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
        source = PROGRAM.format(code=body.code, stdin=body.stdin, most=MOST)
        (found,) = await self._sandbox.run(source, ["run()"])
        status, out, err = _ended(found)
        return RunReply(result=told(status, out, err), status=status)


def told(status: int, out: str, err: str) -> str:
    """How a program ended, as agents are shown it."""
    if status == 0:
        return f"[EXECUTED] Code exited with status 0.{_block('STDOUT', out) or ' (no output)'}"
    blocks = _block("STDERR", err) + _block("STDOUT", out)
    return f"[FAILED] Code exited with status {status}.{blocks or ' (no output)'}"


def _block(name: str, text: str) -> str:
    return f"\n[{name}:BEGIN]\n{text.rstrip()}\n[{name}:END]" if text.strip() else ""


def _ended(found: CallResult) -> tuple[int, str, str]:
    """Status, output and errors of a program; it may have told anything."""
    if found.failed in ("lost", "open"):
        raise ToolUnavailable(f"the sandbox failed: {found.reason}")
    value = found.value if found.ok else None
    match value:
        case [int(status), str(out), str(err)]:
            return status, out, err
    return KILLED, "", found.reason or "it told nothing that is a result"
