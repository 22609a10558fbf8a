"""When two answers are the same text, the same option, or the same to math-verify.

math-verify runs in a process of its own (``math_worker``) that is ended if it takes too long.
``environments.mathematics`` settles most answers without it.
"""

import atexit
import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import IO

from coterie.environments.answers import exact_match

LIMIT = 12.0
"""Seconds for a comparison; its own limits (see ``math_worker``) come earlier, but a signal waits for C code."""
START = 120.0
"""Seconds for the process to come up; it reads in sympy."""


def same_text(first: str, second: str) -> bool:
    """Equal texts, whatever their spacing."""
    return first.split() == second.split()


def same_words(first: str, second: str) -> bool:
    """Equal texts, whatever their case, spacing, articles and punctuation."""
    return exact_match(second, [first]) == 1.0


def option_of(answer: str, options: Sequence[str]) -> str:
    """The option that an answer names: in its own case, or in any if only one is spelled so.

    An answer that names none, or one of several that differ in their case only, is left as it is.
    """
    words = answer.split()
    if any(option.split() == words for option in options):
        return answer
    folded = answer.casefold().split()
    named = {tuple(o.split()): o for o in options if o.casefold().split() == folded}
    return next(iter(named.values())) if len(named) == 1 else answer


@lru_cache(maxsize=65536)
def compared(gold: str, given: str) -> bool:
    """What math-verify says of two answers in LaTeX; ``False`` if it takes too long. May be called from
    any thread.
    """
    return _WORKER.equal(gold, given)


class _Worker:
    """The process that compares, one pair at a time; a new one after each that failed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def equal(self, gold: str, given: str) -> bool:
        """What the process says; ``False`` if it says nothing in time."""
        with self._lock:
            try:
                process = self._process or self._start()
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(json.dumps([gold, given]) + "\n")
                process.stdin.flush()
                return _line(process.stdout, LIMIT) == "true"
            except (OSError, EOFError):  # TimeoutError too
                self._end()
                return False
            except BaseException:  # Ctrl-C: what it says later would be taken for the next answer
                self._end()
                raise

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))]
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
                f"`{' '.join(command)}` does not start; run it by hand to see why (is math-verify "
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


_WORKER = _Worker()
atexit.register(_WORKER.close)
