"""One Python program, run in the sandbox with its standard input, and how it ended as agents are shown it.

What it prints and how it ends are one text, in the form that agents of AFM and GAP were trained to read.
"""

import re

from coterie.tools.run import ToolUnavailable
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.results import CallResult
from coterie.tools.sandbox.settings import SandboxSettings

KILLED = 137
"""The status of a program that was stopped, as of one that a signal 9 ended."""
MOST = 30_000
"""Characters of what a program prints, on each of its two streams; of more the middle is left out."""
PROGRAM_LIMITS = SandboxSettings(wall_seconds=7.0, cpu_seconds=5.0)
"""AFM's, unless others are given."""
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


_FENCED = re.compile(
    r"^\s*```(?:py|python)?[ \t]*\n(.*?)```[ \t]*\n?(?:\s*```(?:sh|bash|text)?[ \t]*\n(.*?)```)?\s*$",
    re.DOTALL,
)


async def run_program(sandbox: Sandbox, code: str, stdin: str = "") -> tuple[str, int]:
    """How a program ended, as agents are shown it, and its status. Raises ``ToolUnavailable`` if it can't be run."""
    source = PROGRAM.format(code=code, stdin=stdin, most=MOST)
    (found,) = await sandbox.run(source, ["run()"])
    status, out, err = _ended(found)
    return told(status, out, err), status


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


def _ended(found: CallResult) -> tuple[int, str, str]:
    """Status, output and errors of a program; it may have told anything."""
    if found.failed in ("lost", "open"):
        raise ToolUnavailable(f"the sandbox failed: {found.reason}")
    value = found.value if found.ok else None
    match value:
        case [int(status), str(out), str(err)]:
            return status, out, err
    return KILLED, "", found.reason or "it told nothing that is a result"
