"""The environment, reward and recipe of two roles of an installed package go through every command by their entry
points; everything is a process of the fresh environment, outside the repository."""

import json
from pathlib import Path

import pytest

from tests.outside.fresh import SMALL, Fresh, played, weights

pytestmark = pytest.mark.slow


def test_both_are_of_the_fresh_environment(fresh: Fresh) -> None:
    code = (
        "import coterie, importlib.util as u; print(coterie.__file__, u.find_spec('relay').origin)"
    )
    out, _ = fresh.call("-c", code, program="python")
    assert all(Path(file).is_relative_to(fresh.venv) for file in out.split())


def test_a_dry_run_says_what_is_planned_and_leaves_nothing(fresh: Fresh) -> None:
    out, _ = fresh.call("run", "relay", *SMALL, "--folder", "dry", "--dry-run")
    assert "role grounder" in out and "role planner" in out and "train_planner" in out
    assert not (fresh.place / "dry").exists()


def test_a_run_that_is_killed_in_its_rollout_ends_as_an_undisturbed_one(
    fresh: Fresh, undisturbed: Path
) -> None:
    run, words = fresh.place / "killed", ("relay", *SMALL, "--folder", "killed")
    fresh.run_until(lambda: played(run, "rollout") >= 2, *words)
    assert played(run, "rollout") < 24, "killed in the middle of the rollout"
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
    out, _ = fresh.call(
        "chat", "undisturbed", "--max-tokens", 8, "--temperature", 0, lines="hello\n"
    )
    assert out.strip()
