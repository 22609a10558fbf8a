"""Checks of a run's health: each number that is beyond its limit is named, with links to its rollouts."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.record.rows import TrainedRow, Update
from coterie.record.store import Store
from coterie.record.tree import Ending, ItemKey, Metrics, Outcome, Task, Tree
from coterie.reports.health import health, step_checks, step_warnings
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_record import HELDOUT, STEP

SAMPLED: Metrics = {
    "reward": 0.5, "tasks": 4, "groups": 4, "groups_equal": 1, "groups_informative": 3, "truncated": 0.1,
    "failed_share": 0.0, "paths": 16, "paths_stale": 1, "tokens": 100.0, "reward_at_min": 0.5, "reward_at_max": 0.5,
    "distinct": 0.9, "tokens_right": 90.0, "tokens_wrong": 110.0, "call_errors": 0.1, "staleness": 0.5,
    "staleness_max": 1, "reward/environment": 0.6, "reward/short": -0.1,
}  # fmt: skip
LEARNED: Metrics = {
    "paths_rewarded": 8, "entropy": 1.0, "clip_share": 0.1, "clip_share_low": 0.05, "clip_share_high": 0.05,
    "ratio": 1.0, "ratio_min": 0.5, "ratio_max": 2.0, "policy_kl": 0.02, "sampler_kl": 1e-4, "reference_kl": 0.01,
    "grad_norm": 1.0, "loss": 0.0,
}  # fmt: skip
TRAINED: Metrics = {
    "grad_norm": 1.0, "margin": 1.0, "accuracy": 0.9, "chosen_logprob": -10.0, "heldout_loss": 0.5,
}  # fmt: skip


def step(**changes: float) -> Metrics:
    """A healthy step of a single role, but for ``changes``."""
    learned = {name: changes.pop(name, value) for name, value in LEARNED.items()}
    return {**SAMPLED, **{f"policy/{name}": value for name, value in learned.items()}, **changes}


def fired(records: Mapping[int, Metrics], heldout: Mapping[int, Metrics] | None = None) -> set[str]:
    checks = step_checks(records, heldout or {})
    return {check["id"] for check in checks if check["level"] == "warning"}


@pytest.mark.parametrize(
    ("id_", "changes"),
    [
        ("equal", {"groups_equal": 3}),
        ("equal", {"groups": 0, "groups_informative": 1}),
        ("reward_end", {"reward_at_min": 0.95}),
        ("reward_end", {"reward_at_max": 1.0}),
        ("truncated", {"truncated": 0.3}),
        ("failed_share", {"failed_share": 0.06}),
        ("call_errors", {"call_errors": 0.3}),
        ("distinct", {"distinct": 0.4}),
        ("length", {"tokens": 160.0}),
        ("length", {"tokens": 40.0}),
        ("wrong_length", {"tokens_wrong": 200.0}),
        ("clip_share_low", {"clip_share_low": 0.3}),
        ("clip_share_high", {"clip_share_high": 0.3}),
        ("entropy", {"entropy": 0.19}),
        ("entropy", {"entropy": 2.1}),
        ("sampler_kl", {"sampler_kl": 0.02}),
        ("ratio", {"ratio_min": 0.005}),
        ("ratio", {"ratio_max": 150.0}),
        ("reference_kl", {"reference_kl": 0.6}),
        ("staleness", {"staleness": 2.5}),
        ("staleness_max", {"staleness_max": 5}),
        ("stale", {"paths_stale": 6}),
        ("grad_norm", {"grad_norm": 11.0}),
        ("grad_norm", {"grad_norm": math.nan}),
        ("grad_norm", {"grad_norm": math.inf}),
        ("reward/short", {"reward": 0.6, "reward/short": -0.13}),
        (None, {"reward": 0.4, "reward/short": -0.13}),
        (None, {"reward": 0.6, "reward/short": -0.11, "tokens": 140.0, "entropy": 0.3}),
    ],
)
def test_a_value_beyond_its_limit_is_the_only_warning(
    id_: str | None, changes: dict[str, float]
) -> None:
    """Three steps as at the start, then three with the changes; a healthy run has no warning."""
    steps = {n: step(**(changes if n > 4 else {})) for n in range(8)}
    assert fired(dict(list(steps.items())[:5])) == set()
    assert fired(steps) == ({id_} if id_ else set())


def test_a_run_without_any_reward_says_so() -> None:
    assert fired({n: step(paths_rewarded=0) for n in range(4)}) == {"rewarded"}
    assert not fired({n: step(paths_rewarded=int(n == 0)) for n in range(4)})
    distilled = {**step(paths_rewarded=0, groups_equal=4), "policy/teacher_kl": 0.1}
    assert not fired(dict.fromkeys(range(4), distilled)), "its signal is the teacher's"


def test_single_bad_steps_count_only_for_the_gradient() -> None:
    """Its line names it, later lines do not, and the page still does."""
    steps = {n: step(grad_norm=30.0, truncated=0.5) if n == 3 else step() for n in range(9)}
    until = {n: steps[n] for n in range(4)}
    assert step_warnings(until, {}, True) == ["gradient over its median 30 (limit 10)"]
    assert not step_warnings(steps, {}, True) and fired(steps) == {"grad_norm"}


@pytest.mark.parametrize(
    ("rewards", "scores", "expected"),
    [
        ((0.1, 0.3, 0.5, 0.7), (0.5, 0.6, 0.6, 0.5), {"heldout_fall"}),
        ((0.1, 0.3, 0.5, 0.7), (0.5, 0.6, 0.6, 0.57), set()),
        ((0.7, 0.5, 0.3, 0.1), (0.5, 0.6, 0.6, 0.5), set()),
    ],
)
def test_a_held_out_score_that_falls_while_the_reward_rises_is_a_warning(
    rewards: tuple[float, ...], scores: tuple[float, ...], expected: set[str]
) -> None:
    records = {n: step(reward=reward) for n, reward in enumerate(rewards)}
    heldout: dict[int, Metrics] = {n + 1: {"score": score} for n, score in enumerate(scores)}
    assert fired(records, heldout) & {"heldout_fall"} == expected


def test_each_role_has_checks_of_its_own() -> None:
    def both(entropy: float, rewarded: int) -> Metrics:
        of_role = {"reward": 0.5, "tokens": 9.0, "groups_informative": 3, "reward/short": -0.1}
        alice = {**of_role, **LEARNED, "entropy": entropy}
        bob = {**of_role, **LEARNED, "paths_rewarded": rewarded, "groups_informative": 1}
        names = {f"Alice/{name}": value for name, value in alice.items()}
        return {**SAMPLED, **names, **{f"Bob/{name}": value for name, value in bob.items()}}

    records = {n: both(0.1 if n > 3 else 1.0, 0) for n in range(7)}
    assert step_warnings(records, {}, True) == [
        "change of the entropy of Alice -0.9 (limit -0.8)",
        "rollouts with a reward other than 0 of Bob 0 (limit 1)",
        "groups with equal rewards of Bob 0.75 (limit 0.5)",
    ]
    assert [c["agent"] for c in step_checks(records, {}) if c["id"] == "truncated"] == [None]


def test_links_lead_to_the_worst_steps() -> None:
    """With asynchronous sampling to the draws whose groups the step took."""
    groups = {"groups_taken": json.dumps([[2, "a"], [4, "b"]])}
    shares = {0: 0.3, 1: 0.9, 2: 0.1, 3: 0.6}
    records = {n: {**step(truncated=share), **groups} for n, share in shares.items()}
    (check,) = (check for check in step_checks(records, {}, 1) if check["level"] == "warning")
    stages = [f"#/tasks?stage=1%2Freinforce%2F0000{n}&where=cut_off" for n in (2, 4)]
    assert check["links"] == [*stages, stages[0]]
    (check,) = (c for c in step_checks({5: step(truncated=0.9)}, {}) if c["level"] == "warning")
    assert check["links"] == ["#/tasks?stage=0%2Freinforce%2F00005&where=cut_off"]


def write_store(folder: Path, *, truncated: int = 0, failed: int = 0) -> None:
    """An evaluation of 10 rollouts, some of them cut off or failed, and a step of reinforcement learning."""
    with Store.open(folder / "store.sqlite") as store:
        for n in range(10):
            task = Task(f"t{n}", {"question": "?"})
            store.put_tasks([task])
            key = ItemKey(0, "evaluate", task.id, "0000")
            if n < failed:
                store.finish(key, failure="the server stopped")
                continue
            tree = Tree(task.id, "evaluate", 0)
            ending = Ending("turns", truncated=n >= 10 - truncated)
            tree.end(Outcome(tree.root, 0, ending, None, 1.0))
            store.finish(key, tree=tree)


def of_folder(folder: Path) -> dict[str, dict[str, Any]]:
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        checks = health(store, folder)
    json.dumps(checks, allow_nan=False)
    return {check["id"]: check for check in checks}


def test_stages_are_checked_by_their_rollouts(tmp_path: Path) -> None:
    write_store(tmp_path, truncated=4, failed=1)
    checks = of_folder(tmp_path)
    assert checks["stage/failed_share"]["value"] == 0.1
    assert checks["stage/truncated"]["value"] == pytest.approx(4 / 9)
    assert checks["stage/truncated"]["links"] == ["#/tasks?stage=0%2Fevaluate&where=cut_off"]
    assert {check["level"] for check in checks.values()} == {"warning"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"margin": -0.1}, {"margin"}),
        ({"accuracy": 0.4}, {"accuracy"}),
        ({"chosen_logprob": -12.0}, {"chosen"}),
        ({"heldout_loss": 0.6}, {"heldout_loss"}),
        ({"grad_norm": 20.0}, {"grad_norm"}),
    ],
)
def test_trainings_on_rows_and_pairs_are_checked_by_their_steps(
    tmp_path: Path, changes: dict[str, float], expected: set[str]
) -> None:
    write_store(tmp_path)
    folder = tmp_path / "training/policy/iteration-00"
    folder.mkdir(parents=True)
    lines = [json.dumps(TRAINED | (changes if n > 4 else {"margin": 0.0})) for n in range(9)]
    # A running training may be writing its last line.
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"step"']))
    checks = of_folder(tmp_path)
    assert {id_ for id_, check in checks.items() if check["level"] == "warning"} == expected
    assert checks["margin"]["agent"] == "policy"


def test_a_step_on_rows_of_a_file_is_shown_by_its_first_row(tmp_path: Path) -> None:
    write_store(tmp_path)
    rows = [TrainedRow("line 3", None, None, 1.0, 4, {"loss": 0.5})]
    with Store.open(tmp_path / "store.sqlite") as store:
        for number in range(1, 10):
            store.put_update(Update(0, "train", "policy", number, rows))
    folder = tmp_path / "training/policy/iteration-00"
    folder.mkdir(parents=True)
    lines = [{**TRAINED, "step": n, "grad_norm": 20.0 if n == 7 else 1.0} for n in range(1, 10)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert of_folder(tmp_path)["grad_norm"]["links"] == ["#/row/policy/7/0?iteration=0&stage=train"]


def test_steps_and_held_out_scores_come_from_the_record(tmp_path: Path) -> None:
    write_store(tmp_path)
    with Store.open(tmp_path / "store.sqlite") as store:
        for n in range(6):
            key = ItemKey(0, REINFORCE, "", f"{STEP}{n:05d}")
            store.finish(key, metrics=step(reward=n / 9, grad_norm=math.nan if n == 2 else 1.0))
        for n, score in ((2, 0.8), (6, 0.4)):
            key = ItemKey(0, REINFORCE, "", f"{HELDOUT}{n:05d}")
            store.finish(key, metrics={"score": score})
    checks = of_folder(tmp_path)
    warned = {id_: c["value"] for id_, c in checks.items() if c["level"] == "warning"}
    assert warned == {"heldout_fall": pytest.approx(0.4), "grad_norm": None}


def test_the_viewer_needs_no_torch() -> None:
    code = "import sys, coterie.reports.health; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
