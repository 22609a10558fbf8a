"""What a forked process does: import a copy of the package, run tests on it, write down the results."""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
import torch

from tests.mutation.mutant import ROOT

_Failed = pytest.fail.Exception


@dataclass
class Result:
    """What became of the tests of one job."""

    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    asserted: dict[str, str] = field(default_factory=dict)
    """Tests that failed by an assertion, each with what it said."""
    crashed: dict[str, str] = field(default_factory=dict)
    """Tests that failed otherwise."""
    broken: str = ""
    """Why no test was run: the package does not import, a test is not there, time ran out."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """Tests to run against one copy."""

    name: str
    copy: Path
    """Folder to import the package from."""
    module: str
    """Module that must import; the changed one."""
    tests: tuple[str, ...]
    until_red: bool
    """Whether to stop at the first test that fails by an assertion."""
    stop_at_crash: bool = False
    """Whether to stop at the first test that fails otherwise, too."""


class _Watch:
    """Pytest plugin that fills a :class:`Result`."""

    def __init__(self, result: Result, job: Job) -> None:
        self.result, self.job = result, job

    def pytest_sessionstart(self) -> None:
        torch.set_num_threads(
            1
        )  # the tests' own setting is for a machine that they have to themselves

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.result.broken = f"not collected: {str(report.longrepr)[-1500:]}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None:
            said = f"{call.excinfo.typename}: {call.excinfo.value}"[:600]
            if self._is_assertion(call.excinfo):
                self.result.asserted[item.nodeid] = said
                if self.job.until_red:
                    item.session.shouldstop = "red"
            else:
                self.result.crashed[item.nodeid] = said
                if self.job.stop_at_crash:
                    item.session.shouldstop = "red"
        elif report.skipped:
            self.result.skipped.append(item.nodeid)
        elif report.when == "call":
            self.result.passed.append(item.nodeid)
        return report

    def _is_assertion(self, excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
        """Whether a test said so, and not an ``assert`` of the package."""
        where = Path(str(excinfo.traceback[-1].path))
        own = where.is_relative_to(self.job.copy)
        return isinstance(excinfo.value, AssertionError | _Failed) and not own


def run_job(job: Job, folder: Path) -> None:
    """Run the tests of a job, and write ``folder/result.json``; output goes to ``folder/log``."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    result = Result()
    sys.path.insert(0, str(job.copy))
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{job.copy}:{path}" if path else str(job.copy)
    os.chdir(ROOT)
    try:
        importlib.invalidate_caches()
        importlib.import_module("coterie")  # sets how threads wait
        found = importlib.import_module(job.module)
        assert Path(str(found.__file__)).is_relative_to(job.copy), "a copy is imported"
    except BaseException:
        result.broken = f"does not import: {traceback.format_exc()[-1500:]}"
    else:
        words = ["-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}", "--rootdir", str(ROOT)]
        code = pytest.main([*words, "--tb=short", *job.tests], plugins=[_Watch(result, job)])
        if code == pytest.ExitCode.USAGE_ERROR and not result.broken:
            result.broken = "pytest does not know one of its tests"
    (folder / "result.json").write_text(json.dumps(asdict(result)), encoding="utf-8")


def module_of(file: str) -> str:
    """The module to import for a file of the package; the package itself if it is no module."""
    path = Path("coterie", file)
    if path.suffix != ".py":
        return "coterie"
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
