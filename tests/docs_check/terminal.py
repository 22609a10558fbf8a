"""Commands as processes of their own."""

import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.forking import FORKS

SECONDS = 300
"""How long a command may take."""
HOME = "home"
"""Where coterie keeps data sets and models, in the folder of the commands."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    out: str
    err: str

    @property
    def fault(self) -> str:
        """What is wrong with that; empty if nothing is."""
        if self.code == 0 and "Traceback" not in self.err:
            return ""
        return f"it ended with {self.code}\n{self.out[-2000:]}\n{self.err[-4000:]}"


def typed(words: Sequence[str], folder: Path, lines: str = "", *, stop: bool = False) -> Ended:
    """Type ``coterie`` or ``python`` with these words in a folder, then ``lines``; ``stop`` it by Ctrl-C
    once it has printed something."""
    streams = [folder / f".{name}" for name in ("in", "out", "err")]
    for stream, text in zip(streams, (lines, "", ""), strict=True):
        stream.write_text(text)
    process = FORKS.Process(target=_as_typed, args=(list(words), str(folder)), daemon=False)
    process.start()
    try:
        if stop:
            _wait_for_words(process, streams[1])
            os.kill(process.pid or 0, signal.SIGINT)
        process.join(SECONDS)
        code = process.exitcode
    finally:
        process.kill()
        process.join()
    return Ended(code, *(stream.read_text() for stream in streams[1:]))


def _wait_for_words(process: BaseProcess, out: Path) -> None:
    until = time.monotonic() + SECONDS
    while process.is_alive() and time.monotonic() < until:
        if out.exists() and out.stat().st_size:
            return
        time.sleep(0.02)


def _as_typed(words: list[str], folder: str) -> None:
    os.chdir(folder)
    os.environ["COTERIE_HOME"] = str(Path(folder) / HOME)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.flush()
    for number, name in enumerate(("in", "out", "err")):
        os.dup2(os.open(f".{name}", os.O_WRONLY if number else os.O_RDONLY), number)
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - until the process ends
    sys.argv[:] = words
    if words[0] == "coterie":
        runpy.run_module("coterie", run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words[1:]
        runpy.run_path(words[1], run_name="__main__")
