"""Child process that answers each input line with one line.

It is for libraries that may take unbounded time or memory on text of a model. A process that exceeds its time is
killed, and the next line starts a new one.
"""

import atexit
import contextlib
import select
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import IO

START = 120.0
"""Timeout for starting the process, which may have large imports."""


class LineProcess:
    """Python program that prints ``ready`` and then one line for each input line.

    It starts on first use, and ends with this process. Thread-safe.
    """

    def __init__(self, program: Path, needs: str) -> None:
        self.program = program
        self.needs = needs
        """Library that it needs, for the error message."""
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()
        atexit.register(self.close)

    def ask(self, line: str, seconds: float) -> str | None:
        """Return the answer, or ``None`` after ``seconds``. Raises ``RuntimeError`` if the process does not start."""
        with self._lock:
            try:
                process = self._process or self._start()
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(line + "\n")
                process.stdin.flush()
                return _line(process.stdout, seconds)
            except (OSError, EOFError):  # TimeoutError too
                self._end()
                return None
            except BaseException:  # Ctrl-C: a late answer would be taken for the next one
                self._end()
                raise

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", str(self.program)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
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
    """Read the next line, stripped. Raises ``TimeoutError`` or ``EOFError``."""
    if not select.select([pipe], [], [], seconds)[0]:
        raise TimeoutError
    line = pipe.readline()
    if not line:
        raise EOFError
    return line.strip()
