"""Jobs in processes forked from one that has imported the large packages, and nothing of ours."""

import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.mutation.child import Job, Result, run_job

LARGE = (
    *("accelerate", "fastapi", "httpx2", "math_verify", "numba", "peft", "PIL.Image"),
    *("pydantic", "rapidfuzz", "rich.progress", "sympy"),
    *("torch.nn.attention.flex_attention", "transformers.models.llama.modeling_llama"),
    *("transformers.models.auto.modeling_auto", "typer", "uvicorn"),
)


class Prepared(NamedTuple):
    """What is to be done; made when its turn comes, in a folder that is removed after it."""

    name: str
    make: Callable[[Path], Job]
    limit: float
    """Seconds after which it is ended."""


@dataclass(frozen=True, slots=True)
class _Running:
    name: str
    pid: int
    folder: Path
    start: float
    limit: float


def import_large() -> None:
    """Import what takes seconds, before any fork; checks that forking is safe and copies are seen."""
    for name in LARGE:
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] == "coterie"]
    assert not ours, f"the package is imported already: {ours}"
    threads = psutil.Process().num_threads()
    assert threads == 1, f"{threads} threads: a fork would lose all but one"


def run_all(
    jobs: list[Prepared], folder: Path, workers: int
) -> Iterator[tuple[str, Result, Callable[[], str]]]:
    """Results in the order in which jobs end: name, result, and a function that reads its log."""
    waiting, running = list(reversed(jobs)), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(waiting.pop(), folder))
            for one in list(running):
                if (result := _ended(one)) is not None:
                    running.remove(one)
                    yield one.name, result, (one.folder / "log").read_text
                    shutil.rmtree(one.folder, ignore_errors=True)
            time.sleep(0.02)
    finally:
        for one in running:
            _end(one.pid)


def _start(job: Prepared, folder: Path) -> _Running:
    own = folder / job.name
    own.mkdir()
    made = job.make(own)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            run_job(made, own)
            status = 0
        finally:
            os._exit(status)
    return _Running(job.name, pid, own, time.monotonic(), job.limit)


def _ended(one: _Running) -> Result | None:
    """The result of a job that ended or is late; ``None`` while it runs."""
    seconds = time.monotonic() - one.start
    pid, status = os.waitpid(one.pid, os.WNOHANG)
    if pid == 0:
        if seconds <= one.limit:
            return None
        _end(one.pid)
        return Result(broken=f"not done in {one.limit:.0f} s", seconds=seconds)
    with suppress(ProcessLookupError):
        os.killpg(one.pid, signal.SIGKILL)  # what its tests left behind
    file = one.folder / "result.json"
    if status or not file.is_file():
        return Result(broken=f"died with status {status}", seconds=seconds)
    result = Result(**json.loads(file.read_text(encoding="utf-8")))
    result.seconds = seconds
    return result


def _end(pid: int) -> None:
    """Kill a job's process and all below it."""
    for process in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    os.waitpid(pid, 0)
