"""A process of ours that answers lines: one line in, one line out.

For libraries that may take for ever, or all memory, on what a model wrote: the process is ended when it is late, and a
new one is started for the next line.
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
"""Seconds for the process to come up; it may read in much."""


class LineProcess:
    """A program of Python that prints ``ready`` and then a line for each that it reads, one at a time.

    It is started when it is first asked, and ends with this process. May be used by several threads.
    """

    def __init__(self, program: Path, needs: str) -> None:
        self.program = program
        self.needs = needs
        """The library that it needs, for the message when it doesn't start."""
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()
        atexit.register(self.close)

    def ask(self, line: str, seconds: float) -> str | None:
        """Its answer; ``None`` if there is none in time. Raises ``RuntimeError`` if it does not start."""
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
            except BaseException:  # Ctrl-C: what it says later would be taken for the next answer
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
                    with contextlib.suppress(OSError):  # it will not read what is buffered
                        pipe.close()


def _line(pipe: IO[str], seconds: float) -> str:
    """The next line, without its end; raises ``TimeoutError`` or ``EOFError``."""
    if not select.select([pipe], [], [], seconds)[0]:
        raise TimeoutError
    line = pipe.readline()
    if not line:
        raise EOFError
    return line.strip()
