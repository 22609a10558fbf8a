"""Roles of reinforcement learning: agents that share one, roles that only play, rates, and training in turn."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coterie.errors import UserError
from tests.helpers.run_rl import (
    SMALL,
    final_weights,
    informative_overrides,
    make_recipe,
    run_to_end,
)

TWO = "policies.roles={Alice: a, Bob: b}"


def writers(folder: Path) -> set[tuple[str, str, str]]:
    """Speaker, role and version of all sampled turns of the steps."""
    find = (
        "SELECT DISTINCT speaker, policy, version FROM turn JOIN tree ON turn.tree = tree.key "
        "WHERE stage LIKE 'reinforce/%'"
    )
    with closing(sqlite3.connect(folder / "store.sqlite")) as store:
        return {*store.execute(find)}


def test_a_frozen_role_plays_and_is_never_trained(tmp_path: Path) -> None:
    words = [
        *informative_overrides(tmp_path),
        TWO,
        "policies.frozen={b: tiny-exchange}",
        "steps.count=2",
    ]
    run_to_end(make_recipe("rl/grpo", words), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run/training").iterdir()} == {"a"}
    speakers = {(who, role): [] for who, role, _ in writers(tmp_path / "run")}
    for who, role, version in writers(tmp_path / "run"):
        speakers[who, role].append(version)
    assert sorted(speakers["Bob", "b"]) == ["0"]
    assert sorted(speakers["Alice", "a"]) == ["0", "0.1"]


def test_roles_train_in_turn_with_their_own_rates(tmp_path: Path) -> None:
    words = [*informative_overrides(tmp_path), TWO, "steps.count=2", "loss.kl_coef=0"]
    rates = ["policies.learning_rates={b: 0.01}", "policies.alternate_steps=1"]
    records = run_to_end(make_recipe("rl/grpo", [*words, *rates]), tmp_path / "run")
    assert [(r["a/updates"], r["b/updates"]) for r in records.values()] == [(1, 0), (1, 1)]
    assert "b/learning_rate" not in records[0]
    assert records[0]["a/learning_rate"] == pytest.approx(1e-3)
    assert records[1]["b/learning_rate"] == pytest.approx(1e-2)


def test_agents_of_one_role_share_its_weights(tmp_path: Path) -> None:
    """All agents under one name are the same as no mapping, but for the name."""
    words = [*informative_overrides(tmp_path), "steps.count=1"]
    run_to_end(make_recipe("rl/grpo", words), tmp_path / "plain")
    named = [*words, "policies.roles={Alice: team, Bob: team}"]
    run_to_end(make_recipe("rl/grpo", named), tmp_path / "named")
    assert final_weights(tmp_path / "named", "team") == final_weights(tmp_path / "plain")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["policies.roles={Carl: a}"], "Carl, which is no agent of exchange"),
        (["policies.frozen={b: tiny-exchange}"], "the role b, which plays no agent"),
        (["policies.learning_rates={b: 0.1}"], "the role b, which plays no agent"),
        (["policies.frozen={policy: tiny-exchange}"], "nothing is trained"),
    ],
)
def test_roles_that_play_nobody_are_refused_before_the_run(words, problem) -> None:
    with pytest.raises(UserError, match=problem):
        make_recipe("rl/grpo", [*SMALL, *words]).plan()
