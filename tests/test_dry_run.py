"""`coterie run --dry-run`: a plan on standard output, with the time and memory that a trial tells."""

import re
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.recipes import trial
from coterie.recipes.base import Recipe
from coterie.recipes.registry import recipe, settings
from coterie.recipes.trial import Estimate, Measured, estimate
from tests.conftest import FEW, Cli
from tests.outside.package.relay import RelayRecipe

MIB = 2**20


def test_a_dry_run_prints_the_plan_with_time_and_memory_and_makes_nothing(
    cli: Cli, tmp_path: Path
) -> None:
    said = cli("run", "optima/isft", *FEW, "--dry-run")
    assert said.code == 0, said.err
    assert "training dialogues" in said.out
    assert re.search(r"time of all stages +about \d+ (s|min)\b", said.out)
    memory = re.search(r"memory of the process +about ([\d.]+) (M|G)iB", said.out)
    assert memory and float(memory[1]) * (1024 if memory[2] == "G" else 1) > 200
    assert "a trial on 4 training and 4 held-out tasks" in " ".join(said.out.split())
    assert not list(tmp_path.iterdir())


def test_what_was_tried_is_scaled_by_the_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stage of 3 s, 2 of them work, on 4 of 40 tasks, the whole takes 1 + 20 s."""

    def tried(small: Recipe) -> tuple[list[Measured], str]:
        assert small.settings.evaluate.tasks == 4 * trial.MOST_TASKS
        found = []
        for step in small.steps():
            plays = step.stage in ("evaluate", "rollout")
            working = 2.0 if plays else 0.0
            found.append(
                Measured(step.iteration, step.stage, 3.0, working, 500 * MIB, MIB, plays, 0)
            )
        return found, ""

    monkeypatch.setattr(trial, "_tried", tried)
    n = trial.MOST_TASKS
    words = ["iterations=3", f"rollout.tasks={10 * n}", f"evaluate.tasks={20 * n}"]
    found = estimate(recipe(settings("optima/isft", words)))
    rollouts, evaluations, others = 3 * (1 + 2.0 * 10), 4 * (1 + 2.0 * 5), 3 * 3 * 3.0
    assert found.seconds == pytest.approx(rollouts + evaluations + others)
    assert found.memory == 510 * MIB, "that of 10 times the dialogues"
    assert not found.untold


def test_stages_that_could_not_be_tried_are_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Measured(0, "evaluate", 3.0, 2.0, 500 * MIB, MIB, True, 0)
    monkeypatch.setattr(trial, "_tried", lambda small: ([first], "nothing was selected"))
    said = cli("run", "optima/isft", *FEW, "--dry-run")
    text = " ".join(said.out.split())
    assert said.code == 0 and "time of all stages at least 6 s" in text
    assert (
        "without rollout, reward, select, train, which could not be tried: nothing was selected"
        in text
    )


def test_a_trial_never_asks_a_server_that_may_cost_money(cli: Cli) -> None:
    words = ("user_simulator=x", "user_simulator.url=http://127.0.0.1:9/v1", "rollout.tasks=2",
             "evaluate.tasks=2")  # fmt: skip
    said = cli("run", "sweet_rl/backend", *words, "--dry-run")
    assert said.code == 0, said.err
    text = " ".join(said.out.split())
    assert "not estimated: a trial would ask the server of user_simulator.url" in text


def test_a_trial_is_smaller_and_tells_no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Recipe] = []

    def tried(small: Recipe) -> tuple[list[Measured], str]:
        seen.append(small)
        return [], "not today"

    monkeypatch.setattr(trial, "_tried", tried)
    for name in ("optima/idpo", "sweet_rl/backend"):
        own = settings(name)
        values = {**trial.flatten(own.model_dump(mode="json")), "tracker": "tensorboard"}
        found = estimate(recipe(type(own).model_validate(trial.nested(values))))
        assert found.seconds is None and found.reason == "not today"
        small = trial.flatten(seen[-1].settings.model_dump())
        assert small["tracker"] == "none"
        assert small["rollout.tasks"] <= trial.MOST_TASKS


def relay(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int]) -> tuple[list[Recipe], Estimate]:
    """The recipe of a plug-in whose ``trial_sizes`` adds some: what was tried, and what was told."""
    seen: list[Recipe] = []

    def tried(small: Recipe) -> tuple[list[Measured], str]:
        seen.append(small)
        steps = [(0, "evaluate"), (0, "rollout"), (0, "train_grounder")]
        return [Measured(*step, 3.0, 2.0, MIB, 0, False, 0) for step in steps], "enough"

    def trial_sizes(self: Recipe, tasks: int) -> dict[str, int]:
        return {**Recipe.trial_sizes(self, tasks), **sizes}

    monkeypatch.setattr(trial, "_tried", tried)
    monkeypatch.setattr(RelayRecipe, "trial_sizes", trial_sizes)
    place = "tests.outside.package.relay:Relay"
    words = [f"environment={place}", "tasks=20", "samples=8", "evaluate.tasks=40"]
    return seen, estimate(recipe(settings(f"{place}Recipe", words)))


def test_a_trial_of_a_plugin_lowers_what_its_recipe_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, found = relay(monkeypatch, {"samples": 2})
    small = trial.flatten(seen[-1].settings.model_dump())
    assert (small["tasks"], small["samples"], small["evaluate.tasks"]) == (1, 2, 4)
    assert "a trial on tasks=1, samples=2 and 4 held-out tasks" in found.basis
    evaluations, rollouts, trainings = 3 * (1 + 2 * 10), 2 * (1 + 2 * 80), 2 * (1 + 2 * 80)
    assert found.seconds == pytest.approx(evaluations + rollouts + trainings)


def test_what_a_recipe_names_and_does_not_have_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"(?s)names 'sampels', which its settings .*did you mean 'samples'"
    ):
        relay(monkeypatch, {"sampels": 2})
    with pytest.raises(UserError, match="names 'model', which is 'tiny-exchange'"):
        relay(monkeypatch, {"model": 2})


@pytest.mark.slow
def test_what_fails_in_a_trial_is_said(tmp_path: Path) -> None:
    words = [word for word in FEW if "threshold" not in word] + ["select.threshold=0.99"]
    measured, reason = trial._tried(recipe(settings("optima/isft", words)))
    assert [one.stage for one in measured][:2] == ["evaluate", "rollout"]
    assert "train" not in [one.stage for one in measured]
    assert "select" in reason
