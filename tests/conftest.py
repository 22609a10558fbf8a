"""Fixtures for tests that drive the whole command line with the packaged model."""

import coterie  # noqa: F401 - before torch: it sets how torch's threads wait on shared cores

# isort: split

import asyncio
import fcntl
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so started by a shell, in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMALL = (
    "iterations=1", "rollout.tasks=4", "rollout.rollouts_per_task=2", "rollout.max_tokens=96",
    "evaluate.tasks=4", "select.threshold=-100", "select.top_share=1", "train.epochs=1",
    "engine.device=cpu",
)  # fmt: skip
"""Settings of a run of seconds; everything that is sampled is trained on."""
FEW = tuple("rollout.max_tokens=16" if "max_tokens" in word else word for word in SMALL)
"""The same with turns of a few tokens."""
LONG = (
    "test_evaluate_benchmark", "test_reinforce", "test_mcp", "test_presets", "test_two_roles",
    "test_sandbox_hostile", "test_moat", "test_micro_worlds", "test_value_head",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with long files."""
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_collection_finish() -> None:
    """Spare later garbage collections (each training has one) the millions of objects that are imported."""
    gc.collect()
    gc.freeze()


def once(*overrides: str) -> tuple[str, ...]:
    """Return overrides with only the last one of each key, because the command line takes each key once."""
    return tuple({pair.partition("=")[0]: pair for pair in overrides}.values())


class CliResult(NamedTuple):
    """What a command printed, and its exit status."""

    code: int
    out: str
    err: str


Cli = Callable[..., CliResult]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run ``coterie`` with the given arguments, in an empty folder."""
    from coterie.cli.app import main

    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> CliResult:
        monkeypatch.setattr(sys, "argv", ["coterie", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return CliResult(code, out, err)

    return call


def refused(cli: Cli, *words: object) -> str:
    """Return the error of a command that is refused, which has the fix and no traceback."""
    result = cli(*words)
    assert result.code == 2, result.err + result.out
    assert "error:" in result.err and "->" in result.err
    assert "Traceback" not in result.err + result.out
    return result.err


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder of coterie's, for data sets and models."""
    monkeypatch.setenv("COTERIE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one for all workers of pytest-xdist; tests that change it take a copy."""
    from coterie.cli.execution import run_recipe
    from coterie.recipes.registry import settings
    from coterie.terminal import notes

    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, part = root / "finished", root / "unfinished"
    with (root / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            run_recipe(settings("optima/isft", FEW), part, notes())
            part.rename(folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, called `run`, in the working folder."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.fixture(scope="module")
def sandbox(runner: asyncio.Runner) -> Iterator[Sandbox]:
    """A sandbox on the loop of `runner`."""
    pool = Sandbox(SandboxSettings(workers=1))
    runner.run(pool.__aenter__())
    yield pool
    runner.run(pool.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def chromium() -> str:
    """Program of Chromium or Chrome, installed or of Playwright; skips without one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        with sync_api.sync_playwright() as playwright:
            path = playwright.chromium.executable_path
    if not Path(path).exists():
        pytest.skip("there is no Chromium or Chrome")
    return path


@pytest.fixture
def browser(chromium: str) -> Iterator[Any]:
    """Headless Chromium, for pages of our own."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield one
        one.close()
