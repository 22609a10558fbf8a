"""coterie's wheel and a plug-in's, installed by pip into a fresh environment, go through every command.

Everything is a process of that environment, outside the repository. The plug-in has an environment, a reward and a
recipe of two roles, which are found by entry points.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).parent / "package"
SMALL = (
    "model=tiny-exchange", "evaluate.tasks=2", "engine.device=cpu", "train.learning_rate=1e-3",
    "train.max_length=512", "train.batch_size=1", "train.epochs=2", "tasks=8",
)  # fmt: skip
FINALS = ("grounder/iteration-00", "grounder/iteration-01", "planner/iteration-01")
SECONDS = 300


@dataclass(frozen=True)
class Fresh:
    """The environment, and the folder in which commands are given."""

    venv: Path
    place: Path

    def start(self, program: str, *words: object) -> subprocess.Popen[str]:
        """Start a program of the environment, in a process group of its own."""
        return subprocess.Popen(
            [str(self.venv / "bin" / program), *map(str, words)],
            cwd=self.place, env=plain_variables(), start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def call(self, *words: object, program: str = "coterie", lines: str = "") -> str:
        """Return the standard output of a program that succeeds."""
        process = self.start(program, *words)
        try:
            out, err = process.communicate(lines, timeout=SECONDS)
        finally:
            kill(process)
        assert process.returncode == 0 and "Traceback" not in out + err, f"{words}\n{out}\n{err}"
        return out

    def run_until(self, happened: Callable[[], bool], *words: object) -> None:
        """Begin ``coterie run`` and kill it (``kill -9``) when something has happened."""
        process = self.start("coterie", "run", *words)
        deadline = time.monotonic() + SECONDS
        try:
            while not happened():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "it did not come so far"
                time.sleep(0.01)
        finally:
            kill(process)
        assert process.returncode == -signal.SIGKILL


def kill(process: subprocess.Popen[str]) -> None:
    """End a process and its children, if they still run."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def plain_variables() -> dict[str, str]:
    """Return the variables of this process without those that would show the repository to another one."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    shown = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**shown, "OMP_NUM_THREADS": "1"}


def pip(*words: object, python: object = sys.executable) -> None:
    """Run pip without the network."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, env=plain_variables(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def build(source: Path, copy: Path, wheels: Path) -> None:
    """Build a wheel from a copy, since building leaves files beside the source."""
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src", "relay.py"):
        if (source / name).is_dir():
            left = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source / name, copy / name, ignore=left)
        elif (source / name).exists():
            shutil.copy(source / name, copy / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels, copy)


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Fresh:
    """Both wheels in a new environment, which borrows coterie's dependencies, and a run called ``undisturbed``.

    The first of several processes makes it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "outside"
    folder.mkdir(exist_ok=True)
    made = Fresh(folder / "venv", folder / "place")
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.place.exists():
            build(ROOT, folder / "coterie", folder / "wheels")
            build(PACKAGE, folder / "plugin", folder / "wheels")
            subprocess.run([sys.executable, "-m", "venv", str(made.venv)], check=True)
            wheels = sorted((folder / "wheels").glob("*.whl"))
            pip("install", "--no-deps", "--no-index", *wheels, python=made.venv / "bin/python")
            borrowed = [path for path in sys.path if path.endswith("site-packages")]
            (site,) = made.venv.glob("lib/python*/site-packages")
            (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
            made.place.mkdir()
            made.call("run", "relay", *SMALL, "--folder", "undisturbed")
    return made


def weights(run: Path) -> list[str]:
    files = (run / "training" / name / "final" / "model.safetensors" for name in FINALS)
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def rollouts(run: Path) -> int:
    """Return the number of stored dialogues of the rollout."""
    if not (run / "store.sqlite").is_file():
        return 0
    with closing(sqlite3.connect(f"file:{run}/store.sqlite?mode=ro", uri=True)) as store:
        try:
            query = "select count(*) from item where stage = 'rollout'"
            return int(store.execute(query).fetchone()[0])
        except sqlite3.OperationalError:  # the tables are not there yet
            return 0


def test_a_dry_run_of_the_installed_packages_leaves_nothing(fresh: Fresh) -> None:
    code = (
        "import coterie, importlib.util as u; print(coterie.__file__, u.find_spec('relay').origin)"
    )
    files = fresh.call("-c", code, program="python").split()
    assert all(Path(file).is_relative_to(fresh.venv) for file in files)
    out = fresh.call("run", "relay", *SMALL, "--folder", "dry", "--dry-run")
    assert "role grounder" in out and "role planner" in out and "train_planner" in out
    assert not (fresh.place / "dry").exists()


def test_a_run_that_is_killed_in_its_rollout_ends_as_an_undisturbed_one(fresh: Fresh) -> None:
    run, words = fresh.place / "killed", ("relay", *SMALL, "--folder", "killed")
    fresh.run_until(lambda: rollouts(run) >= 2, *words)
    assert rollouts(run) < 24, "killed in the middle of the rollout"
    fresh.call("run", *words)
    assert weights(run) == weights(fresh.place / "undisturbed")
    assert len(set(weights(run))) == 3


def test_a_finished_run_is_reported_evaluated_and_talked_with(fresh: Fresh) -> None:
    page = fresh.place / "undisturbed/report.html"
    page.unlink()
    fresh.call("report", "undisturbed")
    assert "relay" in page.read_text()
    few = ("policy=undisturbed", "tasks=2", "max_tokens=6")
    out = fresh.call("evaluate", "relay", *few, "--checkpoints", "all")
    versions = [row["version"] for row in json.loads(out.splitlines()[-1])["rows"]]
    assert versions == [0, 1, 2], "those of the first role"
    greedy = ("--max-tokens", 8, "--temperature", 0)
    assert fresh.call("chat", "undisturbed", *greedy, lines="hello\n").strip()


def test_a_recipe_that_ships_plays_the_environment_with_the_reward(fresh: Fresh) -> None:
    fresh.call(
        "run", "optima/isft", "environment=relay", "reward.terms={lightness: 0.5}", "model=tiny-exchange",
        "iterations=1", "rollout.tasks=2", "rollout.rollouts_per_task=2", "rollout.max_tokens=6", "evaluate.tasks=2",
        "select.threshold=-9", "train.max_length=512", "engine.device=cpu", "--folder", "shipped",
    )  # fmt: skip
    assert "lightness" in (fresh.place / "shipped/report.html").read_text()
