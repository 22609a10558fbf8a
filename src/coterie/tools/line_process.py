"""Child process that answers each line of JSON on its input with a line of JSON.

It is for libraries that may take unbounded time or memory on text of a model. A process that exceeds its time is
killed, and the next question starts a new one.
"""

import atexit
import contextlib
import json
import os
import resource
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import IO, Any

START = 120.0
"""Timeout for starting the process, which may have large imports."""


def serve(answer: Callable[[Any], object], memory: int) -> None:
    """Answer the questions on standard input (in the child process), with ``memory`` bytes of address space at most."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


class LineProcess:
    """Program that calls :func:`serve`, started on first use, ended with this process. Thread-safe."""

    def __init__(self, program: Path, needs: str) -> None:
        self.program = program
        self.needs = needs
        """Library that it needs, for the error message."""
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()
        atexit.register(self.close)

    def ask(self, question: object, seconds: float) -> Any:
        """Return the answer, or ``None`` after ``seconds``. Raises ``RuntimeError`` if the process does not start."""
        with self._lock:
            try:
                process = self._process or self._start()
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
                return json.loads(_line(process.stdout, seconds))
            # OSError includes the timeout, and ValueError is raised for a line that is not JSON.
            except (OSError, EOFError, ValueError):
                self._end()
                return None
            except BaseException:  # Ctrl-C: a late answer would be taken for the next one
                self._end()
                raise

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        # With -P, the modules beside the program can't shadow a library.
        command = [sys.executable, "-P", str(self.program)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, "PYTHONHASHSEED": "0"},  # a new process repeats the order of sets
        )
        assert self._process.stdout is not None
        try:
            _line(self._process.stdout, START)
        except (TimeoutError, EOFError) as error:
            raise RuntimeError(
                f"`{' '.join(command)}` does not start; run it by hand to see why (is {self.needs} "
                "installed?)"
            ) from error
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # it does not read the buffer
                        pipe.close()


def _line(pipe: IO[str], seconds: float) -> str:
    """Read the next line. Raises ``TimeoutError`` or ``EOFError``."""
    # `select` does not see what `readline` has buffered, which is nothing: each question has one
    # line as its answer. The program writes an answer when it is complete, so only its beginning
    # has a time limit.
    if not select.select([pipe], [], [], seconds)[0]:
        raise TimeoutError
    line = pipe.readline()
    if not line.endswith("\n"):
        raise EOFError
    return line
