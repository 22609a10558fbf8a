"""Run faults: ``python -m tests.mutation [--check] [--sample N --seed S] [--only WORD]``.

The parent imports torch, pytest and the whole package once and forks a child for each fault, so a
fault costs about as much as its tests. First all named tests must pass without a fault.
"""

import argparse
import gc
import importlib
import json
import os
import pkgutil
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import coterie  # before torch: it sets how torch's threads wait on shared cores

# isort: split

import pytest
import torch

from coterie.errors import UserError
from tests.mutation.fault import ROOT, Fault

LAYERS = ("datasets", "record", "training", "rewards", "rollout", "runs", "recipes", "tools")
"""Modules with faults."""
LONGEST = 150.0
"""Seconds after which a child is killed."""


@dataclass
class Outcome:
    """What became of the tests of one child."""

    passed: list[str] = field(default_factory=list)
    asserted: dict[str, str] = field(default_factory=dict)
    """Tests that failed by an assertion of their own, each with its message."""
    broken: dict[str, str] = field(default_factory=dict)
    """Tests that failed by anything else, were skipped, or could not be collected."""


@dataclass(frozen=True)
class Job:
    """Tests to run in a child, under a fault or none."""

    fault: Fault | None
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    """More arguments for pytest."""


class _Watch:
    """Pytest plugin that fills an :class:`Outcome`."""

    def __init__(self, outcome: Outcome, until_red: bool) -> None:
        self.outcome, self.until_red = outcome, until_red

    def pytest_sessionstart(self) -> None:
        torch.set_num_threads(1)  # tests/conftest.py sets it for a machine of its own

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcome.broken[report.nodeid] = f"not collected: {str(report.longrepr)[-600:]}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None:
            message = f"{call.excinfo.typename}: {call.excinfo.value}"[:600]
            if _is_assertion(call.excinfo):
                self.outcome.asserted[item.nodeid] = message
                item.session.shouldstop = "red" if self.until_red else False
            else:
                self.outcome.broken[item.nodeid] = message
        elif report.skipped:
            self.outcome.broken[item.nodeid] = "skipped"
        elif report.when == "call":
            self.outcome.passed.append(item.nodeid)
        return report


def _is_assertion(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return True if a test's own check failed: no ``assert`` of the package or of a fault."""
    where = Path(str(excinfo.traceback[-1].path))
    other = (Path(str(coterie.__file__)).parent, Path(__file__).parent)
    return isinstance(excinfo.value, AssertionError | pytest.fail.Exception) and not any(
        where.is_relative_to(folder) for folder in other
    )


def _child(job: Job, folder: Path) -> None:
    """Run the tests of a job and write ``folder/outcome.json``; output goes to ``folder/log``."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    outcome = Outcome()
    words = [f"--basetemp={folder / 'tmp'}", f"--rootdir={ROOT}", "--tb=short", "--assert=plain"]
    try:
        if job.fault is not None:
            job.fault.apply()
        watch = _Watch(outcome, until_red=job.fault is not None)
        code = pytest.main(
            [*words, "-p", "no:cacheprovider", *job.options, *job.tests], plugins=[watch]
        )
        if code == pytest.ExitCode.USAGE_ERROR:
            outcome.broken["pytest"] = f"usage error: {(folder / 'log').read_text()[-600:]}"
    except BaseException:
        outcome.broken["fault"] = traceback.format_exc()[-1000:]
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome)), encoding="utf-8")


def _fork(job: Job, folder: Path) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        try:
            _child(job, folder)
        finally:
            os._exit(0)
    with suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def run(jobs: Iterable[Job], workers: int) -> Iterator[tuple[Job, Outcome, float]]:
    """Run each job in a forked child, ``workers`` at a time; yield outcomes and seconds as they end."""
    waiting = list(jobs)[::-1]
    running: dict[int, tuple[Job, float, tempfile.TemporaryDirectory[str]]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            job, folder = waiting.pop(), tempfile.TemporaryDirectory(prefix="fault-")
            running[_fork(job, Path(folder.name))] = (job, time.monotonic(), folder)
        time.sleep(0.02)
        for pid, (job, begun, folder) in list(running.items()):
            seconds = time.monotonic() - begun
            if seconds < LONGEST and os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # also servers that its tests left
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
            del running[pid]
            written = Path(folder.name, "outcome.json")
            if written.is_file():
                outcome = Outcome(**json.loads(written.read_text(encoding="utf-8")))
            else:
                outcome = Outcome(broken={"child": f"no result after {seconds:.0f} s"})
            folder.cleanup()
            yield job, outcome, seconds


def all_faults() -> list[Fault]:
    """Return the faults of all layers."""
    modules = [importlib.import_module(f"tests.mutation.{layer}") for layer in LAYERS]
    return [fault for module in modules for fault in module.FAULTS]


def prepare() -> None:
    """Import every module of the package, so that children share them and faults reach them."""
    os.chdir(ROOT)
    torch.set_num_threads(1)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # saves a third of a child's time
    for module in pkgutil.walk_packages(coterie.__path__, "coterie."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError, UserError):  # an optional package, or code inside vLLM
                importlib.import_module(module.name)
    gc.freeze()  # pytest collects garbage twice; nothing imported so far is garbage


def main() -> int:
    """Return 0 if every fault fits the code and is killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only: targets and tests exist")
    parser.add_argument("--sample", type=int, metavar="N", help="draw N faults")
    parser.add_argument("--seed", default="", help="for --sample")
    parser.add_argument("--only", default="", metavar="WORD", help="faults with WORD in the name")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    words = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    begun = time.monotonic()
    faults = [fault for fault in all_faults() if words.only in fault.name]
    if words.sample is not None:
        faults = random.Random(words.seed).sample(faults, min(words.sample, len(faults)))
    misfits = [f"{fault.name}: {why}" for fault in faults for why in fault.problems()]
    print(*misfits, f"{len(faults)} faults, {len(misfits)} do not fit the code", sep="\n")
    if misfits or words.check:
        return bool(misfits)

    prepare()
    by_file: dict[str, set[str]] = {}
    for test in (test for fault in faults for test in fault.killed_by):
        by_file.setdefault(test.partition("::")[0], set()).add(test)
    green = [Job(None, tuple(sorted(tests))) for _, tests in sorted(by_file.items())]
    bad = 0
    for _, outcome, _ in run(green, words.workers):
        for test, why in (outcome.asserted | outcome.broken).items():
            bad += 1
            print(f"NOT GREEN without a fault: {test}\n    {why}")
    print(f"{time.monotonic() - begun:.0f} s: tests without a fault are run, {bad} not green")
    if bad:
        return 1
    survived = 0
    for job, outcome, seconds in run((Job(f, tuple(f.killed_by)) for f in faults), words.workers):
        assert job.fault is not None
        if outcome.asserted:
            print(f"killed   {seconds:5.1f} s  {job.fault.name}")
            continue
        survived += 1
        print(f"SURVIVED {seconds:5.1f} s  {job.fault.name}")
        for test, why in outcome.broken.items():
            print(f"    {test}: {why}")
    print(
        f"{len(faults) - survived} of {len(faults)} faults killed, {time.monotonic() - begun:.0f} s"
    )
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
