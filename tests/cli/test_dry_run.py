"""`coterie run --dry-run`: a plan on standard output, with the estimated time of a trial."""

import re
from pathlib import Path

import pytest

from coterie.cli import execution
from coterie.cli.execution import estimate
from coterie.recipes.registry import recipe, settings
from coterie.runs.run import StageKey
from tests.conftest import FEW, Cli, refused
from tests.helpers.write_rows import write_jsonl


def dry(cli: Cli, *words: str) -> str:
    """Return the plan without line breaks."""
    result = cli("run", *words, "--dry-run")
    assert result.code == 0, result.err
    return " ".join(result.out.split())


def test_a_dry_run_prints_the_plan_with_its_time_and_makes_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dry(cli, "optima/isft", *FEW)
    assert "training dialogues" in plan and "a trial on 4 training tasks" in plan
    assert re.search(r"time of all stages about \d+ (s|min)\b", plan)
    monkeypatch.setattr(execution, "TIMEOUT", 0.0)
    assert "could not be tried: it did not end" in dry(cli, "optima/isft", *FEW)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a\ntouch made\n#", "a\rb", "a\x1b[2J", "a\x85b", "a\u2028b"])
@pytest.mark.parametrize("words", [("--dry-run", "cluster=slurm"), ("cluster=slurm",), ()])
def test_a_folder_name_with_control_characters_is_refused_before_anything_is_written(
    words: tuple[str, ...], name: str, cli: Cli, tmp_path: Path
) -> None:
    error = refused(cli, "run", "optima/isft", *FEW, *words, "--folder", tmp_path / name)
    assert "has control characters" in error
    assert not list(tmp_path.iterdir())


def test_the_trial_is_scaled_by_the_number_of_dialogues() -> None:
    """Of a stage of 3 s, 2 of them work, on 4 of 40 tasks, the whole takes 1 + 20 s."""
    overrides = ["iterations=3", "rollout.tasks=80", "evaluate.tasks=160"]
    whole = recipe(settings("optima/isft", overrides))
    small = execution._smaller(whole, 8)
    assert small.settings.evaluate.tasks == 32
    scaled = ("evaluate", "rollout")
    measured = {step: (3.0, 2.0 * (step.stage in scaled)) for step in small.stage_keys()}
    rollouts, evaluations, others = 3 * (1 + 2.0 * 10), 4 * (1 + 2.0 * 5), 3 * 3 * 3.0
    all_stages = pytest.approx(rollouts + evaluations + others), []
    assert estimate(whole, small, measured) == all_stages
    missing = ["rollout", "reward", "select", "train"]
    first = {StageKey(0, "evaluate"): (3.0, 2.0)}
    assert estimate(whole, small, first) == (pytest.approx(evaluations), missing)


def test_a_trial_that_runs_out_of_time_has_trained(tmp_path: Path) -> None:
    """Evaluations, which may take longer, come last."""
    rows = [{"prompt": f"Say {n}", "completion": str(n)} for n in range(10)]
    overrides = [
        f"dataset.source={write_jsonl(tmp_path / 'rows.jsonl', *rows)}",
        "model=tiny-exchange",
    ]
    measured, reason = execution._trial(execution._smaller(recipe(settings("sft", overrides)), 2))
    stages = [step.stage for step in measured]
    assert not reason and stages == ["measure", "train", "measure", "evaluate", "evaluate"]


def test_a_failed_trial_has_its_reason_and_asks_no_server_that_may_cost_money(cli: Cli) -> None:
    overrides = [pair for pair in FEW if "threshold" not in pair] + ["select.threshold=0.99"]
    plan = dry(cli, "optima/isft", *overrides)
    assert "time of all stages at least" in plan
    assert re.search(r"It excludes .*train, which could not be tried: .*select", plan)
    simulator = ("user_simulator=x", "user_simulator.url=http://127.0.0.1:9/v1")
    plan = dry(cli, "sweet_rl/backend", *simulator, "rollout.tasks=2", "evaluate.tasks=2")
    assert "not estimated: a trial would ask the server of user_simulator.url" in plan


@pytest.mark.parametrize("name", ["optima/idpo", "rl/grpo", "gap/tiny"])
def test_a_trial_is_smaller_and_tells_no_tracker(name: str) -> None:
    world = {"rl/grpo": ["environment=exchange"], "gap/tiny": ["method=sft_rl"]}.get(name, [])
    own = settings(name, [*world, "tracker=tensorboard"])
    small = execution._smaller(recipe(own), 2)
    assert small.settings.tracker == "none"
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
