"""Runs a session's cells in one process, one after the other, and writes what they print to a pipe.

As in ``harness`` everything here is within a cell's reach, and nothing here is relied upon. It makes the session useful
to who writes honest cells: a syntax check before anything runs, the value of a last expression, short tracebacks.
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
from coterie.tools.sandbox.inside.cell import NOT_OPENED, Opening
from coterie.tools.sandbox.inside.harness import OURS, open_nothing
from coterie.tools.sandbox.inside.job import read_exactly, write_all

TOLD, CELLS, OUTPUT = 3, 4, 5
"""Descriptors: where a byte is written of each cell, where cells come from, and what is printed goes to."""
SIZE = struct.Struct(">I")
"""What stands before a cell: its length."""
MODULE = "__main__"
EXIT = "exit() is refused, and the session goes on. The rest of the cell was not run.\n"
INPUT = "input() is refused: nobody is there to type. Write the value into the cell.\n"
NOT_SHOWN = "an exception that can't be shown\n"


class Refused(Exception):
    """What a session does not do."""


def serve(cells: int, told: int, output: int) -> NoReturn:
    """What the forked process does: confine, then run cells until it is ended. Never returns."""
    try:
        os.setsid()  # a signal to its group is for its own processes only
        _place(told, cells, output)
        opening = Opening(**json.loads(_next()))
        try:
            confine.limits(
                memory_mib=opening.memory_mib,
                file_mib=opening.file_mib,
                processes=opening.processes + OURS * (os.getuid() == opening.uid),
            )
            confine.give_up_rights(opening.uid, opening.gid)
        except OSError as error:
            _say(str(error))
            os.write(TOLD, NOT_OPENED)
            os._exit(0)
        interpreter = Interpreter(opening.seed)
        os.write(TOLD, b"k")
        while True:
            os.write(TOLD, interpreter.run(_next()))
    finally:
        os._exit(0)


class Interpreter:
    """One namespace, in which all cells run."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        """Cells that were run."""
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
        """Run a cell; the byte that says how it went."""
        self._begin()
        name = f"<cell {self.count + 1}>"
        try:
            text = source.decode()
            body, last = _compiled(text, name)
        except Exception as error:  # a SyntaxError, or what the compiler takes no more of
            self._flush()
            _say("".join(traceback.format_exception_only(error)))
            return b"s"
        self.count += 1
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        try:
            return self._carried_out(body, last)
        finally:
            self._flush()
            for timer in (ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF):
                setitimer(timer, 0)
            if os.getpid() != self._pid:  # a child of the cell's own
                os._exit(0)

    def _carried_out(self, body: CodeType, last: CodeType | None) -> bytes:
        try:
            try:
                exec(body, self._space)
                shown = self._value(last)
            finally:
                sys.settrace(None)
                sys.setprofile(None)
            self._flush()
            _say(shown)
        except SystemExit:
            return self._refused(EXIT)
        except Refused as error:
            return self._refused(str(error))
        except BaseException as error:
            self._flush()
            _say(_failure(error))
            return b"e"
        return b"k"

    def _value(self, last: CodeType | None) -> str:
        """The value of the last expression as it is shown."""
        value = None if last is None else eval(last, self._space)
        if value is None:
            return ""
        vars(builtins)["_"] = value
        return f"{value!r}\n"

    def _refused(self, why: str) -> bytes:
        self._flush()
        _say(why)
        return b"r"

    def _begin(self) -> None:
        """Streams and descriptors as they were at first, whatever was done to them."""
        for file in (1, 2):
            os.dup2(OUTPUT, file)
        if self._stream.closed:
            self._stream = _stream()
        sys.stdout = sys.stderr = self._stream

    def _flush(self) -> None:
        """Of our stream, and of what a cell has put in its place."""
        for stream in (self._stream, sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()


def _compiled(text: str, name: str) -> tuple[CodeType, CodeType | None]:
    """A cell, and its last expression if it ends with one."""
    tree: Any = compile(text, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = ast.Expression(tree.body.pop().value)
        last = compile(expression, name, "eval", dont_inherit=True)
    return compile(tree, name, "exec", dont_inherit=True), last


def _failure(error: BaseException) -> str:
    """A traceback of the cells' own lines."""
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
        told = traceback.StackSummary.from_list(lines).format()
        return "".join([*head, *told, *traceback.format_exception_only(error)])
    except BaseException:
        return NOT_SHOWN


def _exit(code: Any = None) -> None:
    raise SystemExit(code)


def _input(prompt: object = "") -> str:
    raise Refused(INPUT)


def _stream() -> io.TextIOWrapper:
    """Where both standard streams go, so that their lines are in order."""
    file = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)


def _place(*files: int) -> None:
    """Give descriptors the numbers ``TOLD``, ``CELLS`` and ``OUTPUT``, and close all others."""
    away = [os.dup2(file, 100 + place) for place, file in enumerate(files)]
    for number, file in zip((TOLD, CELLS, OUTPUT), away, strict=True):
        os.dup2(file, number, inheritable=False)
    os.closerange(OUTPUT + 1, 256)
    open_nothing()
    for number in (1, 2):
        os.dup2(OUTPUT, number)


def _next() -> bytes:
    """What comes from the supervisor."""
    (size,) = SIZE.unpack(read_exactly(CELLS, SIZE.size))
    return read_exactly(CELLS, size)


def _say(text: str) -> None:
    """Write behind a cell's back: its own streams may be anything by now."""
    write_all(OUTPUT, text.encode("utf-8", "backslashreplace"))
