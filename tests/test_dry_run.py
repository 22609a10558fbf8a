"""`coterie run --dry-run`: a plan on standard output, with the time that a trial tells."""

import re
from pathlib import Path

import pytest

from coterie.cli import execution
from coterie.cli.execution import estimate
from coterie.recipes.base import Recipe
from coterie.recipes.registry import recipe, settings
from coterie.runs.folder import Step
from tests.conftest import FEW, Cli


def test_a_dry_run_prints_the_plan_with_its_time_and_makes_nothing(
    cli: Cli, tmp_path: Path
) -> None:
    said = cli("run", "optima/isft", *FEW, "--dry-run")
    assert said.code == 0, said.err
    assert "training dialogues" in said.out
    assert re.search(r"time of all stages +about \d+ (s|min)\b", said.out)
    assert "a trial on 4 training tasks" in " ".join(said.out.split())
    assert not list(tmp_path.iterdir())


def test_what_was_tried_is_scaled_by_the_number_of_dialogues() -> None:
    """Of a stage of 3 s, 2 of them work, on 4 of 40 tasks, the whole takes 1 + 20 s."""
    whole = recipe(
        settings("optima/isft", ["iterations=3", "rollout.tasks=80", "evaluate.tasks=160"])
    )
    small = execution._smaller(whole, 8)
    assert small.settings.evaluate.tasks == 32
    measured = {
        step: (3.0, 2.0 if step.stage in ("evaluate", "rollout") else 0.0) for step in small.steps()
    }
    rollouts, evaluations, others = 3 * (1 + 2.0 * 10), 4 * (1 + 2.0 * 5), 3 * 3 * 3.0
    assert estimate(whole, small, measured) == (
        pytest.approx(rollouts + evaluations + others),
        [],
    )
    first = {Step(0, "evaluate"): (3.0, 2.0)}
    assert estimate(whole, small, first) == (
        pytest.approx(evaluations),
        ["rollout", "reward", "select", "train"],
    )


@pytest.mark.slow
def test_what_fails_in_a_trial_is_said(cli: Cli) -> None:
    words = [word for word in FEW if "threshold" not in word] + ["select.threshold=0.99"]
    said = cli("run", "optima/isft", *words, "--dry-run")
    text = " ".join(said.out.split())
    assert said.code == 0 and "time of all stages at least" in text
    assert re.search(r"It excludes .*train, which could not be tried: .*select", text)


def test_a_trial_that_takes_too_long_is_ended(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "TIMEOUT", 0.0)
    said = cli("run", "optima/isft", *FEW, "--dry-run")
    assert said.code == 0 and "could not be tried: it did not end" in " ".join(said.out.split())


def test_a_trial_never_asks_a_server_that_may_cost_money(cli: Cli) -> None:
    words = ("user_simulator=x", "user_simulator.url=http://127.0.0.1:9/v1", "rollout.tasks=2",
             "evaluate.tasks=2")  # fmt: skip
    said = cli("run", "sweet_rl/backend", *words, "--dry-run")
    assert said.code == 0, said.err
    text = " ".join(said.out.split())
    assert "not estimated: a trial would ask the server of user_simulator.url" in text


@pytest.mark.parametrize(
    "name", ["optima/idpo", "sweet_rl/backend", "rl/grpo", "gap/tiny", "dense_tree/tiny"]
)
def test_a_trial_is_smaller_and_tells_no_tracker(name: str) -> None:
    world = ["environment=exchange"] * (name == "rl/grpo") + ["method=sft_rl"] * (
        name == "gap/tiny"
    )
    own = settings(name, [*world, "tracker=tensorboard"])
    small = execution._smaller(recipe(own), 2)
    assert isinstance(small, Recipe) and small.settings.tracker == "none"
    plan = small.plan()
    assert plan.heldout <= 8 and plan.dialogues < recipe(own).plan().dialogues


@pytest.mark.parametrize(("name", "models"), [("rl/grpo", 1), ("rl/ppo", 2)])
def test_memory_of_reinforcement_learning_is_that_of_all_models_in_training(
    name: str, models: int
) -> None:
    plan = recipe(settings(name, ["model=tiny-exchange", "train.method=full"])).plan()
    terms, weights = plan.memory[-1].terms, plan.weights["policy"]
    assert terms["weights"] == models * weights * 4
    assert terms["optimizer state"] == models * weights * 8, "two moments"
    assert terms["gradients"] == weights * 4, "models take turns"
    assert terms["reference model"] == weights * 4
