"""A plug-in package beside coterie's own wheel, both installed by pip into a fresh environment.

Its environment, reward and recipe of two roles go through every command by their entry points, and then by
``file.py:Class``. Everything is a process of the fresh environment, outside the repository.
"""

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

from coterie.training.checkpoint import weight_hash

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = HERE / "package"
SMALL = (
    "model=tiny-exchange", "evaluate.tasks=2", "engine.device=cpu", "train.learning_rate=1e-3",
    "train.max_length=512", "train.batch_rows=1", "train.epochs=6", "tasks=8",
)  # fmt: skip
FINALS = ("grounder/iteration-00", "grounder/iteration-01", "planner/iteration-01")
SECONDS = 300


@dataclass(frozen=True)
class Fresh:
    """The environment, and the folder in which commands are given."""

    venv: Path
    place: Path

    def start(self, program: str, *words: object) -> subprocess.Popen[str]:
        """A program of the environment, in a process group of its own."""
        return subprocess.Popen(
            [str(self.venv / "bin" / program), *map(str, words)],
            cwd=self.place, env=plain_variables(), start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def call(self, *words: object, program: str = "coterie", lines: str = "") -> tuple[str, str]:
        """What a program that succeeds prints, on both of its streams."""
        process = self.start(program, *words)
        try:
            out, err = process.communicate(lines, timeout=SECONDS)
        finally:
            kill(process)
        assert process.returncode == 0, f"{words}\n{out}\n{err}"
        assert "Traceback" not in out + err
        return out, err

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
    """The variables of this process without those that would show the repository to another one."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def pip(*words: object, python: object = sys.executable) -> None:
    """Run pip without the network."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, env=plain_variables(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def build(source: Path, copy: Path, wheels: Path) -> None:
    """A wheel of a copy: building leaves files beside the source."""
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src", "relay.py"):
        if (source / name).is_dir():
            left = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source / name, copy / name, ignore=left)
        elif (source / name).exists():
            shutil.copy(source / name, copy / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", wheels, copy)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Both wheels in a new environment, which borrows only what coterie depends on."""
    folder = tmp_path_factory.mktemp("outside")
    build(ROOT, folder / "coterie", folder / "wheels")
    build(PACKAGE, folder / "plugin", folder / "wheels")
    venv, place = folder / "venv", folder / "place"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    wheels = sorted((folder / "wheels").glob("*.whl"))
    assert len(wheels) == 2
    pip("install", "--no-deps", "--no-index", *wheels, python=venv / "bin/python")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    place.mkdir()
    return Fresh(venv, place)


@pytest.fixture(scope="module")
def undisturbed(fresh: Fresh) -> Path:
    """A whole run by entry points."""
    fresh.call("run", "relay", *SMALL, "--folder", "undisturbed")
    return fresh.place / "undisturbed"


def weights(run: Path) -> list[str]:
    """What every training of a run left."""
    return [weight_hash(run / "training" / name / "final") for name in FINALS]


def played(run: Path, stage: str) -> int:
    """How many dialogues of a stage a run has stored."""
    if not (run / "store.sqlite").is_file():
        return 0
    with closing(sqlite3.connect(f"file:{run}/store.sqlite?mode=ro", uri=True)) as store:
        try:
            return int(
                store.execute("select count(*) from item where stage = ?", (stage,)).fetchone()[0]
            )
        except sqlite3.OperationalError:  # the tables are not there yet
            return 0


def test_both_are_of_the_fresh_environment(fresh: Fresh) -> None:
    out, _ = fresh.call(
        "-c", "import coterie, relay; print(coterie.__file__, relay.__file__)", program="python"
    )
    assert all(Path(file).is_relative_to(fresh.venv) for file in out.split())
    out, err = fresh.call("doctor")
    assert "environment relay" in out + err and "reward lightness" in out + err


def test_a_dry_run_says_what_is_planned_and_leaves_nothing(fresh: Fresh) -> None:
    out, _ = fresh.call("run", "relay", *SMALL, "--folder", "dry", "--dry-run")
    assert "role grounder" in out and "role planner" in out and "train_planner" in out
    assert not (fresh.place / "dry").exists()


def test_a_run_that_is_killed_twice_ends_as_an_undisturbed_one(
    fresh: Fresh, undisturbed: Path
) -> None:
    run, words = fresh.place / "killed", ("relay", *SMALL, "--folder", "killed")
    fresh.run_until(lambda: played(run, "rollout") >= 2, *words)
    assert played(run, "rollout") < 24, "killed in the middle of the rollout"
    training = run / "training" / FINALS[0]
    fresh.run_until(lambda: (training / "metrics.jsonl").is_file(), *words)
    assert not (training / "final").exists(), "killed in the middle of the training"
    fresh.call("run", *words)
    assert weights(run) == weights(undisturbed)
    assert len(set(weights(run))) == 3


def test_a_finished_run_is_reported_evaluated_and_talked_with(
    fresh: Fresh, undisturbed: Path
) -> None:
    (undisturbed / "report.html").unlink()
    fresh.call("report", "undisturbed")
    page = (undisturbed / "report.html").read_text()
    assert "RelayRecipe" in page or "relay on relay" in page
    out, _ = fresh.call("evaluate", "relay", "policy=undisturbed", "tasks=2", "max_tokens=6",
                        "--checkpoints", "all")  # fmt: skip
    found = json.loads(out.splitlines()[-1])
    assert [row["version"] for row in found["rows"]] == [0, 1, 2], "those of the first role"
    out, err = fresh.call("chat", "undisturbed", "--task", 1, "--max-tokens", 8, "--temperature", 0,
                          lines="go on\n")  # fmt: skip
    assert "You are the grounder" in err and "topic 1 of heldout" in err
    assert len(out.splitlines()) >= 2, "the agent begins, then it answers"


def test_a_recipe_that_ships_plays_the_environment_with_the_reward(fresh: Fresh) -> None:
    fresh.call(
        "run", "optima/isft", "environment=relay", "reward.terms={lightness: 0.5}", "model=tiny-exchange",
        "iterations=1", "rollout.tasks=2", "rollout.samples=2", "rollout.max_tokens=6", "evaluate.tasks=2",
        "select.threshold=-9", "train.max_length=512", "engine.device=cpu", "--folder", "shipped",
    )  # fmt: skip
    assert "lightness" in (fresh.place / "shipped/report.html").read_text()


def test_the_same_by_file_and_class(fresh: Fresh, undisturbed: Path) -> None:
    file = shutil.copy(PACKAGE / "relay.py", fresh.place / "mine.py")
    words = ("mine.py:RelayRecipe", "environment=mine.py:Relay", *SMALL, "--folder", "by_file")
    run = fresh.place / "by_file"
    out, _ = fresh.call("run", *words, "--dry-run")
    assert "role planner" in out and not run.exists()
    training = run / "training" / FINALS[0]
    fresh.run_until(lambda: (training / "metrics.jsonl").is_file(), *words)
    assert not (training / "final").exists()
    fresh.call("run", *words)
    assert weights(run) == weights(undisturbed), "a name changes nothing"
    fresh.call("report", "by_file")
    out, _ = fresh.call("evaluate", f"{file}:Relay", "policy=by_file", "tasks=2", "max_tokens=6")
    assert json.loads(out.splitlines()[-1])["rows"][0]["version"] == 2
    out, _ = fresh.call("chat", "by_file", "--max-tokens", 8, lines="hello\n")
    assert out.strip()
