"""Interpreter of an answer's calls, or of a session's cells, in a confined process.

An answer or a cell can reach everything here, so nothing here is trusted. No expected value is here: the process
reports results as plain data, and the host compares them.
"""

import ast
import builtins
import io
import json
import linecache
import os
import random
import secrets
import struct
import sys
import traceback
from contextlib import suppress
from signal import ITIMER_PROF, ITIMER_REAL, ITIMER_VIRTUAL, setitimer
from types import CodeType, ModuleType
from typing import Any, NoReturn

from coterie.tools.sandbox.inside import confine
from coterie.tools.sandbox.inside.job import NOT_OPENED, Request, read_exactly, write_all
from coterie.tools.sandbox.inside.plain import NotPlain, TooLarge, encode

NAME = "answer"
"""Name of the module that holds an answer's definitions."""
MAX_MESSAGE = 300
FIRST = struct.Struct(">I")
"""Header of a job: the index of the first call to run."""
CONFINED = b'{"confined": true}'
"""Sent before the answer's first line runs, so no answer can suppress it. Later frames may come from the answer."""
LOADED = b'{"loaded": true}'
RESULTS = 3
"""Descriptor of the pipe; all others are ``/dev/null``."""


def _place(*files: int) -> None:
    """Move descriptors to the numbers from ``RESULTS`` on, and close all others.

    It opens a private ``/dev/null``, since processes share the flags, locks and owner of an inherited file.
    """
    copies = [os.dup2(file, 100 + index) for index, file in enumerate(files)]
    for number, file in enumerate(copies, RESULTS):
        os.dup2(file, number, inheritable=False)
    os.closerange(RESULTS + len(files), 256)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in range(RESULTS):
        os.dup2(nowhere, file)
    os.close(nowhere)


def answer(job: int, results: int) -> NoReturn:
    """Read the job, confine this process, run the calls and exit. Never returns."""
    try:
        os.setsid()  # a signal to its group is for its own processes only
        content = os.pread(job, os.fstat(job).st_size, 0)
        _place(results)
        _run(Request(**json.loads(content[FIRST.size :])), *FIRST.unpack_from(content))
    finally:
        os._exit(0)


def _run(job: Request, first_call: int) -> None:
    """Write a frame when confined, when the source has run, and for each call, before which the source runs again."""
    try:
        confine.limits(job, int(job.cpu_seconds * (len(job.calls) - first_call + 1)) + 1)
        confine.give_up_rights(job.uid)
    except OSError as error:
        return _send(json.dumps({"failed": "open", "why": str(error)}).encode())
    _send(CONFINED)
    try:
        code = compile(job.source, f"<{NAME}>", "exec")
        spaces = _define(code, job.legacy)
    except BaseException as error:
        return _send(_failure(error))
    _send(LOADED)
    for index in range(first_call, len(job.calls)):
        try:
            if index > first_call:
                spaces = _define(code, job.legacy)
            value = eval(job.calls[index], *spaces)
            frame = json.dumps({"value": encode(value, job.max_record)}).encode()
            if len(frame) > job.max_record:
                raise TooLarge(f"{len(frame):,} bytes, and {job.max_record:,} are allowed")
        except BaseException as error:
            frame = _failure(error)
        _send(frame)


def _define(code: Any, legacy: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return globals and locals for calls; ``legacy``: two, so that functions see neither each other nor imports."""
    module = ModuleType(NAME)
    sys.modules[NAME] = module
    spaces = (vars(module), {} if legacy else vars(module))
    exec(code, *spaces)
    return spaces


def _failure(error: BaseException) -> bytes:
    try:
        text = str(error)[:MAX_MESSAGE]
    except BaseException:
        text = ""
    failure = _KINDS.get(type(error), "error")
    message = text if failure == "output" else f"{type(error).__name__}: {text}"
    return json.dumps({"failed": failure, "why": message[:MAX_MESSAGE]}).encode()


_KINDS: dict[type, str] = {NotPlain: "not plain", TooLarge: "output"}


def _send(frame: bytes) -> None:
    """Write one frame: 4 bytes length, JSON."""
    write_all(RESULTS, struct.pack(">I", len(frame)) + frame)


STATUS, CELLS, OUTPUT = 3, 4, 5
"""Descriptors: status bytes, cells to run, and output of cells."""
SIZE = struct.Struct(">I")
MODULE = "__main__"
EXIT = "exit() is refused, and the session goes on. The rest of the cell was not run.\n"
INPUT = "input() is refused: nobody is there to type. Write the value into the cell.\n"
NOT_SHOWN = "an exception that can't be shown\n"


class Refused(Exception):
    """Operation that a session refuses."""


def serve(cells: int, statuses: int, output: int) -> NoReturn:
    """Confine this process, then run cells until it is ended. Never returns."""
    try:
        os.setsid()  # a signal to its group is for its own processes only
        _place(statuses, cells, output)
        for number in (1, 2):
            os.dup2(OUTPUT, number)
        opening = Request(**json.loads(_next()))
        try:
            confine.limits(opening)
            confine.give_up_rights(opening.uid)
        except OSError as error:
            _say(str(error))
            os.write(STATUS, NOT_OPENED)
            os._exit(0)
        interpreter = Interpreter(opening.seed)
        os.write(STATUS, b"k")
        while True:
            os.write(STATUS, interpreter.run(_next()))
    finally:
        os._exit(0)


class Interpreter:
    """Namespace in which all cells run."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self._pid = os.getpid()
        self._stream = _stream()
        module = ModuleType(MODULE)
        sys.modules[MODULE] = module
        sys.argv = [""]
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
        self._space = vars(module)
        self._space["__builtins__"] = builtins
        vars(builtins).update(exit=_exit, quit=_exit, input=_input)
        random.seed(seed)
        vars(secrets)["randbits"] = random.Random(seed).getrandbits  # numpy draws its seeds there

    def run(self, source: bytes) -> bytes:
        self._begin()
        name = f"<cell {self.count + 1}>"
        try:
            text = source.decode()
            body, last_expression = _compile(text, name)
        except Exception as error:  # SyntaxError, or the compiler gave up
            self._flush()
            _say("".join(traceback.format_exception_only(error)))
            return b"s"
        self.count += 1
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        try:
            return self._execute(body, last_expression)
        finally:
            self._flush()
            for timer in (ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF):
                setitimer(timer, 0)
            if os.getpid() != self._pid:  # forked by the cell
                os._exit(0)

    def _execute(self, body: CodeType, last_expression: CodeType | None) -> bytes:
        try:
            try:
                exec(body, self._space)
                value = self._value(last_expression)
            finally:
                sys.settrace(None)
                sys.setprofile(None)
            self._flush()
            _say(value)
        except SystemExit:
            return self._refuse(EXIT)
        except Refused as error:
            return self._refuse(str(error))
        except BaseException as error:
            self._flush()
            _say(_traceback(error))
            return b"e"
        return b"k"

    def _value(self, last_expression: CodeType | None) -> str:
        value = None if last_expression is None else eval(last_expression, self._space)
        if value is None:
            return ""
        vars(builtins)["_"] = value
        return f"{value!r}\n"

    def _refuse(self, reason: str) -> bytes:
        self._flush()
        _say(reason)
        return b"r"

    def _begin(self) -> None:
        """Restore the streams and descriptors, which a cell may have changed."""
        for file in (1, 2):
            os.dup2(OUTPUT, file)
        if self._stream.closed:
            self._stream = _stream()
        sys.stdout = sys.stderr = self._stream

    def _flush(self) -> None:
        for stream in (self._stream, sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()


def _compile(text: str, name: str) -> tuple[CodeType, CodeType | None]:
    """Compile a cell, with its last expression apart if it ends with one."""
    tree: Any = compile(text, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last_expression = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = ast.Expression(tree.body.pop().value)
        last_expression = compile(expression, name, "eval", dont_inherit=True)
    return compile(tree, name, "exec", dont_inherit=True), last_expression


def _traceback(error: BaseException) -> str:
    """Format a traceback with only the lines of cells."""
    try:
        lines = [
            traceback.FrameSummary(
                frame.f_code.co_filename,
                number,
                frame.f_code.co_name,
                line=linecache.getline(frame.f_code.co_filename, number).strip(),
            )
            for frame, number in traceback.walk_tb(sys.exc_info()[2])
            if frame.f_code.co_filename.startswith("<cell ")
        ]
        head = ["Traceback (most recent call last):\n"] if lines else []
        stack = traceback.StackSummary.from_list(lines).format()
        return "".join([*head, *stack, *traceback.format_exception_only(error)])
    except BaseException:
        return NOT_SHOWN


def _exit(code: Any = None) -> None:
    raise SystemExit(code)


def _input(prompt: object = "") -> str:
    raise Refused(INPUT)


def _stream() -> io.TextIOWrapper:
    """Return one stream for stdout and stderr, so that their lines stay in order."""
    file = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)


def _next() -> bytes:
    (size,) = SIZE.unpack(read_exactly(CELLS, SIZE.size))
    return read_exactly(CELLS, size)


def _say(text: str) -> None:
    """Write to the descriptor, since a cell may have replaced the streams."""
    write_all(OUTPUT, text.encode("utf-8", "backslashreplace"))
