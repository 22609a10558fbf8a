"""A run that is killed with ``kill -9`` anywhere resumes and ends as if nothing had happened.

Ends the same: the same set of training rows, bitwise the same weights, the same held-out dialogues.
The fast tests kill in each stage and between stages; the slow sweep (``make test-crash``) kills at
every write boundary of the run, resumes, kills again, resumes.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ZYGOTE = Path(__file__).parent / "zygote.py"


class Zygote:
    """The process that forks, runs and kills."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ZYGOTE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, kill_at: str = "0") -> dict[str, object]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{folder} {kill_at}\n")
        self.process.stdin.flush()
        answer: dict[str, object] = json.loads(self.process.stdout.readline())
        assert not answer["failed"], f"the run failed by itself (kill_at={kill_at})"
        return answer


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    assert started.process.stdin
    started.process.stdin.close()
    started.process.wait(timeout=30)


@pytest.fixture(scope="module")
def undisturbed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return zygote.run(tmp_path_factory.mktemp("undisturbed") / "run")


def test_two_undisturbed_runs_are_equal(
    zygote: Zygote, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    assert zygote.run(tmp_path / "run")["digest"] == undisturbed["digest"]


# The last boundary of a stage's work is the commit that marks it finished: 1 is the first write.
@pytest.mark.parametrize(
    "kill_at", ["evaluate:3", "rollout:6", "reward:3", "select:1", "train:4"]
    + [pytest.param(at, marks=pytest.mark.slow)
       for at in ("rollout:1", "reward:1", "train:1", "train:9", "train:14")],
)  # fmt: skip
def test_killed_in_a_stage_it_resumes_to_the_same_end(
    zygote: Zygote, undisturbed: dict[str, object], tmp_path: Path, kill_at: str
) -> None:
    assert zygote.run(tmp_path / "run", kill_at)["killed"]
    resumed = zygote.run(tmp_path / "run")
    assert resumed["digest"] == undisturbed["digest"]


@pytest.mark.slow
def test_killed_at_every_write_boundary_twice(
    zygote: Zygote, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    generator = random.Random(0)
    boundaries = int(str(undisturbed["boundary"]))
    assert boundaries > 50
    for n in range(1, boundaries + 1):
        folder = tmp_path / f"run-{n}"
        assert zygote.run(folder, str(n))["killed"]
        zygote.run(folder, str(generator.randint(1, boundaries - n + 1)))
        assert zygote.run(folder)["digest"] == undisturbed["digest"], f"killed at {n}"
