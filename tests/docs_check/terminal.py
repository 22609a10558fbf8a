"""Commands as processes of their own."""

import os
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.helpers.fork_server import FORKS

SECONDS = 300
"""How long a command may take."""
HOME = "home"
"""Where coterie keeps data sets and models, in the folder of the commands."""


def typed(words: Sequence[str], folder: Path, lines: str = "", *, stop: bool = False) -> str:
    """Type ``coterie`` or ``python`` with these words in a folder, then ``lines``. Return its fault, if any.

    ``stop`` ends it by Ctrl-C once it has printed something.
    """
    # Two workers of pytest may type in one folder.
    streams = [folder / f".{name}-{os.getpid()}" for name in ("in", "out", "err")]
    for stream, text in zip(streams, (lines, "", ""), strict=True):
        stream.write_text(text)
    process = FORKS.Process(
        target=_as_typed, args=(list(words), [*map(str, streams)]), daemon=False
    )
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
    out, err = (stream.read_text() for stream in streams[1:])
    is_fine = code == 0 and "Traceback" not in err
    return "" if is_fine else f"it ended with {code}\n{out[-2000:]}\n{err[-4000:]}"


def _wait_for_words(process: BaseProcess, out: Path) -> None:
    until = time.monotonic() + SECONDS
    while process.is_alive() and time.monotonic() < until:
        if out.exists() and out.stat().st_size:
            return
        time.sleep(0.02)


def _as_typed(words: list[str], streams: list[str]) -> None:
    folder = Path(streams[0]).parent
    os.chdir(folder)
    os.environ["COTERIE_HOME"] = str(folder / HOME)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.flush()
    for number, stream in enumerate(streams):
        os.dup2(os.open(stream, os.O_WRONLY if number else os.O_RDONLY), number)
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - until the process ends
    sys.argv[:] = words
    if words[0] == "coterie":
        runpy.run_module("coterie", run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words[1:]
        runpy.run_path(words[1], run_name="__main__")
