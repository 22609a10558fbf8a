"""Run a program of an agent, or of a contest on one test, as if it were started in a new process.

The program can reach everything here, so nothing here depends on the expected output.
"""

import atexit
import builtins
import importlib
import io
import json
import linecache
import os
import sys
import threading
import traceback
import types
from contextlib import suppress
from typing import Any

RUNNER = __name__
"""Module from which a source imports ``run``."""
RECURSION = DIGITS = 50_000
"""Recursion depth and digits of an integer, as LiveCodeBench's grader allows."""
USUAL = (
    "typing", "collections", "heapq", "bisect", "math", "itertools", "functools", "operator", "string", "re",
    "random", "copy", "datetime", "statistics", "sys",
)  # fmt: skip
"""Modules that sites with function tests import before the solution, with all names, since their starter code uses
types such as ``List``."""


def run(
    program: str, stdin: str, function: str | None, max_bytes: int, errors: int
) -> list[object]:
    """Run a program and return its exit code, whether it printed more than ``max_bytes``, its output and its stderr.

    The exit code of a signal is 128 plus its number. ``errors`` bytes of stderr are kept. ``stdin`` is the standard
    input. With ``function``, it has one line of JSON for each argument, and the output is the returned value as JSON.
    """
    files = [_file(stdin.encode(errors="replace")), _file(), _file()]
    pid = os.fork()
    if pid == 0:
        try:
            _child(program, stdin, function, files)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    too_much = os.fstat(files[1]).st_size > max_bytes
    output = _read_ends(files[1], max_bytes), _read_ends(files[2], errors)
    for file in files:
        os.close(file)
    return [128 - code if code < 0 else code, too_much, *output]


def _read_ends(file: int, max_bytes: int) -> str:
    """Read a file; leave out the middle if it has more than ``max_bytes``."""
    size, half = os.fstat(file).st_size, max_bytes // 2
    if size <= max_bytes:
        return os.pread(file, max_bytes, 0).decode(errors="replace")
    ends = (os.pread(file, half, offset).decode(errors="replace") for offset in (0, size - half))
    return f"\n[{size - 2 * half} bytes are left out]\n".join(ends)


def _file(content: bytes = b"") -> int:
    file = os.open("stream", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink("stream")
    with open(file, "wb", closefd=False) as stream:
        stream.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _child(program: str, text: str, function: str | None, files: list[int]) -> None:
    """Become the program. Never returns."""
    os.setsid()
    stdin, out, stderr = files
    stdout = out if function is None else os.open(os.devnull, os.O_WRONLY)
    for descriptor, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, descriptor)
    os.closerange(3, out)
    os.closerange(out + 1 if function is not None else out, 64)
    stdin_file, stdout_file, stderr_file = (
        io.FileIO(descriptor, mode, closefd=False) for descriptor, mode in enumerate("rww")
    )
    sys.stdin = io.TextIOWrapper(io.BufferedReader(stdin_file), "utf-8", "replace")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(stdout_file), "utf-8", "replace")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(stderr_file), "utf-8", "replace", line_buffering=True, write_through=True
    )
    sys.argv = ["main.py"]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    sys.setrecursionlimit(RECURSION)
    sys.set_int_max_str_digits(DIGITS)
    atexit._clear()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = max(_status(program, main, text, function, out), _finish())
    os._exit(status)


def _status(program: str, main: types.ModuleType, text: str, function: str | None, out: int) -> int:
    """Run the program; return its exit code."""
    try:
        if function is not None:
            _import_usual(vars(main))
        lines = program.splitlines(keepends=True)
        linecache.cache["main.py"] = (len(program), None, lines, "main.py")
        exec(compile(program, "main.py", "exec"), vars(main))
        if function is not None:
            _call(vars(main), function, text, out)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        _tell(error)
        return 1
    return 0


def _finish() -> int:
    """Join threads, run exit functions and flush, as an interpreter does at exit; return the exit code."""
    try:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        if not getattr(sys.stdout, "closed", True):
            sys.stdout.flush()
    except BaseException as error:
        _tell(error)
        return 1
    return 0


def _tell(error: BaseException) -> None:
    """Print a traceback with only the program's own lines."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None
    with suppress(BaseException):
        traceback.print_exception(type(error), error, inside, file=sys.stderr)


def _import_usual(space: dict[str, Any]) -> None:
    modules = {name: importlib.import_module(name) for name in USUAL}
    for module in modules.values():
        names = getattr(module, "__all__", dir(module))
        space.update({name: getattr(module, name) for name in names if name[0] != "_"})
    space.update(modules)
    space.update({name: value for name, value in vars(builtins).items() if name[0] != "_"})


def _call(space: dict[str, Any], function: str, text: str, out: int) -> None:
    """Call the function, or the method of a ``Solution``, and write its value."""
    arguments = [json.loads(line) for line in text.split("\n") if line.strip()]
    called = getattr(space["Solution"](), function) if "Solution" in space else space[function]
    with open(out, "w", encoding="utf-8", closefd=False) as stream:
        json.dump(called(*arguments), stream, default=lambda value: value.tolist())  # of numpy
