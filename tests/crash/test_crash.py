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
from contextlib import closing
from pathlib import Path

import pytest

from coterie.record.store import Store
from coterie.record.tree import ItemKey, Metrics
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_record import groups_taken, step_records
from tests.helpers import program_worlds
from tests.helpers.program_worlds import write_exchange

EXAMPLES = Path(__file__).parents[2] / "examples"
PLUGINS = (
    f"{EXAMPLES}/recipe.py:BestOfN", f"environment={EXAMPLES}/environment.py:Guess", "model=tiny-exchange",
    "tasks=3", "evaluate.tasks=3", "train.batch_size=2", "train.save_every_steps=1", "engine.device=cpu",
)  # fmt: skip
REINFORCED = (
    "rollout.tasks=2", "rollout.rollouts_per_task=3", "rollout.max_tokens=96", "evaluate.tasks=2", "steps.count=4",
    "steps.save_every=2", "train.learning_rate=1e-3", "engine.device=cpu",
)  # fmt: skip
SHARES = 8
"""Tests into which the sweep over all write boundaries is divided, for several processes."""


class Zygote:
    """The process that forks, runs and kills."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote", *words],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, kill_at: str = "0") -> dict[str, object]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{folder} {kill_at}\n")
        self.process.stdin.flush()
        answer: dict[str, object] = json.loads(self.process.stdout.readline())
        assert not answer["failed"], f"the run failed by itself (kill_at={kill_at})"
        return answer

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with closing(Zygote()) as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return zygote.run(tmp_path_factory.mktemp("undisturbed") / "run")


# The last boundary of a stage's work is the commit that marks it finished: 1 is the first write.
@pytest.mark.parametrize(
    "kill_at", ["rollout:6", "train:4"]
    + [pytest.param(at, marks=pytest.mark.slow) for at in (
        "evaluate:3", "rollout:1", "reward:1", "reward:3", "select:1", "train:1", "train:9", "train:14")],
)  # fmt: skip
def test_killed_in_a_stage_it_resumes_to_the_same_end(
    zygote: Zygote, undisturbed: dict[str, object], tmp_path: Path, kill_at: str
) -> None:
    assert zygote.run(tmp_path / "run", kill_at)["killed"]
    resumed = zygote.run(tmp_path / "run")
    assert resumed["digest"] == undisturbed["digest"]


@pytest.mark.slow
def test_a_recipe_and_an_environment_of_files_resume_to_the_same_end(tmp_path: Path) -> None:
    with closing(Zygote(*PLUGINS)) as zygote:
        undisturbed = zygote.run(tmp_path / "whole")
        for n, kill_at in enumerate(("rollout:2", "select:1", "train:4", "evaluate:5")):
            folder = tmp_path / f"run-{n}"
            assert zygote.run(folder, kill_at)["killed"], kill_at
            resumed = zygote.run(folder)
            assert resumed["digest"] == undisturbed["digest"], kill_at
            assert int(str(resumed["boundary"])) < int(str(undisturbed["boundary"])), kill_at


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rl/grpo", "rl/ppo"])
def test_reinforcement_learning_killed_within_a_step_resumes_to_the_same_weights(
    tmp_path: Path, method: str
) -> None:
    (tmp_path / "own.py").write_text("def short(dialogue):\n    return -dialogue.tokens / 100\n")
    term = f"reward.terms={{{tmp_path / 'own.py'}:short: 1}}"
    with closing(Zygote(method, *REINFORCED, term)) as zygote:
        undisturbed = zygote.run(tmp_path / "whole")
        generator = random.Random(0)
        for n in range(8):
            folder, kill_at = tmp_path / f"run-{n}", f"reinforce:{generator.randint(1, 40)}"
            assert zygote.run(folder, kill_at)["killed"], kill_at
            assert zygote.run(folder)["digest"] == undisturbed["digest"], kill_at


@pytest.mark.slow
def test_programs_killed_within_a_step_resume_to_the_same_rows_and_weights(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def short(dialogue):\n    return -dialogue.tokens / 100\n")
    term = f"reward.terms={{{tmp_path / 'own.py'}:short: 1}}"
    rows, world = write_exchange(tmp_path / "rows.jsonl"), program_worlds.__file__
    program = (
        *("environment=program", f"dataset={rows}", f"environment.agent={world}:play_exchange"),
        *("environment.roles=[Alice,Bob]", "environment.reward=exact", "model=tiny-exchange"),
    )
    two_steps = [pair.replace("steps.count=4", "steps.count=2") for pair in REINFORCED]
    with closing(Zygote("rl/grpo", *two_steps, *program, term)) as zygote:
        undisturbed = zygote.run(tmp_path / "whole")
        for n, kill_at in enumerate(("reinforce:3", "reinforce:12")):
            folder = tmp_path / f"run-{n}"
            assert zygote.run(folder, kill_at)["killed"], kill_at
            assert zygote.run(folder)["digest"] == undisturbed["digest"], kill_at


@pytest.mark.slow
def test_sampling_beside_training_killed_anywhere_loses_no_group_and_takes_none_twice(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text("def short(dialogue):\n    return -dialogue.tokens / 100\n")
    term = f"reward.terms={{{tmp_path / 'own.py'}:short: 1}}"
    overlap = ("engine.kind=vllm", "rollout.max_staleness=1", "loss.kl_coef=0", term)
    with closing(Zygote("rl/grpo", *REINFORCED, *overlap)) as zygote:
        generator = random.Random(0)
        for n in range(8):
            folder, finished = tmp_path / f"run-{n}", set[ItemKey]()
            steps: dict[int, Metrics] = {}
            for kill_at in (f"reinforce:{generator.randint(1, 60)}" for _ in range(2)):
                zygote.run(folder, kill_at)
                with Store.open(folder / "store.sqlite", read_only=True) as store:
                    finished |= {item.key for item in store.items(0)}
                    steps |= step_records(store, 0, REINFORCE)
            zygote.run(folder)
            with Store.open(folder / "store.sqlite", read_only=True) as store:
                records = step_records(store, 0, REINFORCE)
                assert finished <= {item.key for item in store.items(0)}
                taken = [group for step in range(4) for group in groups_taken(records[step])]
                for draw, task in taken:
                    keys = store.finished_keys(0, f"{REINFORCE}/{draw:05d}")
                    assert sum(one == task for one, _ in keys) == 3
            assert steps == {step: records[step] for step in steps}
            assert len({*taken}) == len(taken) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_killed_at_every_write_boundary_twice(
    zygote: Zygote, undisturbed: dict[str, object], tmp_path: Path, share: int
) -> None:
    generator = random.Random(share)
    boundaries = int(str(undisturbed["boundary"]))
    assert boundaries > 50
    for n in range(1 + share, boundaries + 1, SHARES):
        folder = tmp_path / f"run-{n}"
        assert zygote.run(folder, str(n))["killed"]
        zygote.run(folder, str(generator.randint(1, boundaries - n + 1)))
        assert zygote.run(folder)["digest"] == undisturbed["digest"], f"killed at {n}"
