"""Runs a program of a contest on one test, as a process of its own would be run. It imports nothing of ours.

``tools.contest`` sends the text of this module to the sandbox. All of it is within the program's reach, and what
a right program prints is not here.
"""

import atexit
import builtins
import importlib
import io
import json
import os
import signal
import sys
import threading
import traceback
import types
from contextlib import suppress
from typing import Any

TOO_MUCH = "too much"
ERRORS = 2000
"""Bytes that are kept of what a program writes to its standard error."""
RECURSION = 50_000
"""Calls within each other, as LiveCodeBench's grader allows."""
USUAL = (
    "typing", "collections", "heapq", "bisect", "math", "itertools", "functools", "operator", "string", "re",
    "random", "copy", "datetime", "statistics", "sys",
)  # fmt: skip
"""What sites whose tests call a function have imported before the solution, with all names: its given beginning has
types such as ``List``."""


def run(program: str, given: str, function: str | None, most: int) -> list[str]:
    """How the program ended (empty: well), what it printed, and the end of what it wrote to its standard error.

    ``given`` is its standard input; or, where a ``function`` is called, a line of JSON for each argument, and in the
    place of what it printed stands the value as JSON. More than ``most`` bytes are too much.
    """
    files = [_file(given.encode(errors="replace")), _file(), _file()]
    pid = os.fork()
    if pid == 0:
        try:
            _child(program, given, function, files)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    _end_what_is_left()
    ended = _how(os.waitstatus_to_exitcode(status))
    out, err = (os.fstat(one).st_size for one in files[1:])
    printed, said = os.pread(files[1], most, 0), os.pread(files[2], ERRORS, max(0, err - ERRORS))
    for file in files:
        os.close(file)
    told = (one.decode(errors="replace") for one in (printed, said))
    return [ended if out <= most else TOO_MUCH, *told]


def _file(content: bytes = b"") -> int:
    """A file without a name."""
    file = os.open("stream", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink("stream")
    with open(file, "wb", closefd=False) as stream:
        stream.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _how(code: int) -> str:
    if code < 0:
        return f"by signal {-code}"
    return f"with status {code}" if code else ""


def _end_what_is_left() -> None:
    """End the processes that the program started, all of our own tree, of which this is the first."""
    if os.getpid() != 1:
        return
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _child(program: str, given: str, function: str | None, files: list[int]) -> None:
    """Become the program. Never returns."""
    os.setsid()
    stdin, out, stderr = files
    stdout = out if function is None else os.open(os.devnull, os.O_WRONLY)
    for place, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, place)
    os.closerange(3, out)
    os.closerange(out + 1 if function is not None else out, 64)
    read, printed, said = (
        io.FileIO(place, mode, closefd=False) for place, mode in enumerate("rww")
    )
    sys.stdin = io.TextIOWrapper(io.BufferedReader(read), "utf-8", "replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(printed), "utf-8", "replace")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(said), "utf-8", "replace", line_buffering=True, write_through=True
    )
    sys.argv = ["main.py"]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    sys.setrecursionlimit(RECURSION)
    atexit._clear()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = max(_status(program, main, given, function, out), _last())
    os._exit(status)


def _status(
    program: str, main: types.ModuleType, given: str, function: str | None, out: int
) -> int:
    """Run it; 0 if all went well."""
    try:
        if function is not None:
            _have_usual(vars(main))
        exec(compile(program, "main.py", "exec"), vars(main))
        if function is not None:
            _give(vars(main), function, given, out)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        _tell(error)
        return 1
    return 0


def _last() -> int:
    """What an interpreter does when a program has come to its end."""
    try:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException as error:
        _tell(error)
        return 1
    return 0


def _tell(error: BaseException) -> None:
    """Write a traceback, of the program's own lines."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None
    with suppress(BaseException):
        traceback.print_exception(type(error), error, inside, file=sys.stderr)


def _have_usual(space: dict[str, Any]) -> None:
    modules = {name: importlib.import_module(name) for name in USUAL}
    for module in modules.values():
        names = getattr(module, "__all__", dir(module))
        space.update({name: getattr(module, name) for name in names if name[0] != "_"})
    space.update(modules)
    space.update({name: one for name, one in vars(builtins).items() if name[0] != "_"})


def _give(space: dict[str, Any], function: str, given: str, out: int) -> None:
    """Call the function, or the method of a ``Solution``, and write its value."""
    arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
    called = getattr(space["Solution"](), function) if "Solution" in space else space[function]
    with open(out, "w", encoding="utf-8", closefd=False) as stream:
        json.dump(called(*arguments), stream)
