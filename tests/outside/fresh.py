"""coterie's wheel and a plug-in's, installed by pip into a fresh environment, and programs of it as processes."""

import fcntl
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

from coterie.training.checkpoint import weight_hash

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = HERE / "package"
SMALL = (
    "model=tiny-exchange", "evaluate.tasks=2", "engine.device=cpu", "train.learning_rate=1e-3",
    "train.max_length=512", "train.batch_rows=1", "train.epochs=2", "tasks=8",
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
    """The variables of this process without those that would show the repository to another one; one thread,
    for several programs run at a time."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    shown = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**shown, "OMP_NUM_THREADS": "1"}


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


def installed(folder: Path) -> Fresh:
    """Both wheels in a new environment, which borrows only what coterie depends on; the first of several
    processes makes it, and a whole run called ``undisturbed``."""
    made = Fresh(folder / "venv", folder / "place")
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.place.exists():
            _install(made.venv, folder)
            made.place.mkdir()
            made.call("run", "relay", *SMALL, "--folder", "undisturbed")
    return made


def _install(venv: Path, folder: Path) -> None:
    build(ROOT, folder / "coterie", folder / "wheels")
    build(PACKAGE, folder / "plugin", folder / "wheels")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    wheels = sorted((folder / "wheels").glob("*.whl"))
    assert len(wheels) == 2
    pip("install", "--no-deps", "--no-index", *wheels, python=venv / "bin/python")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")


def weights(run: Path) -> list[str]:
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
