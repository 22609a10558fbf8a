"""The recipe ``optima/isft`` end to end on the packaged model, through the command line."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coterie.environments.talk import FORMAT_SOURCE, drop_format
from coterie.progress import Silent
from coterie.recipes import trainings
from coterie.recipes.optima import DROP_FORMAT, Optima
from coterie.recipes.registry import recipe, settings
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.loop import run_steps
from tests.by_hand import distance
from tests.conftest import SMALL, Cli, once, refused

ADAPTER = "adapter_model.safetensors"
STAGES = ("evaluate", "rollout", "reward", "select", "train")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A finished run of two small iterations."""
    own = settings("optima/isft", [*SMALL, "iterations=2"])
    with open_run(tmp_path_factory.mktemp("optima") / "run", "optima/isft", own) as opened:
        run_steps(Optima(own), opened, Silent())
        yield opened


def recipe_of(run: Run) -> Optima:
    assert run.settings.__class__.__name__ == "OptimaSettings"
    return Optima(run.settings)  # type: ignore[arg-type]


def test_every_step_is_finished_and_measured(run: Run) -> None:
    recipe = recipe_of(run)
    assert all(run.is_finished(step) for step in recipe.steps())
    assert run.metrics(Step(0, "rollout"))["n"] == 8
    assert run.metrics(Step(2, "evaluate"))["n"] == 4
    assert run.metrics(Step(0, "select"))["selected"] == 4
    assert run.metrics(Step(0, "train"))["rows"] == 8
    assert run.metrics(Step(0, "train"))["weights"] != run.metrics(Step(1, "train"))["weights"]


def test_iteration_0_samples_under_formats_and_trains_without_them(run: Run) -> None:
    recipe = recipe_of(run)
    base = recipe.load_policy(run, 0)
    tree = next(run.store.trees(0, "rollout"))
    shown = [part for r in tree.requests.values() for m in tree.messages(r) for part in m.parts]
    assert any(part.source == FORMAT_SOURCE for part in shown)
    rows = recipe.rows(run, 0, base)
    assert {row.context for row in rows} == {DROP_FORMAT}
    assert all("Format:" not in base.tokenizer.decode(row.ids) for row in rows)
    assert all(row.logprobs is None for row in rows), "log-probs do not outlive their context"


def test_trained_tokens_are_exactly_the_sampled_ones(run: Run) -> None:
    recipe = recipe_of(run)
    base = recipe.load_policy(run, 0)
    turns = {}
    for iteration in (0, 1):
        for tree in run.store.trees(iteration, "rollout"):
            turns |= tree.turns
        for row in recipe.rows(run, iteration, base):
            agent = row.origin.split("/")[1]
            for target in row.targets:
                turn = turns[target.turn]
                assert row.ids[target.start : target.stop] == turn.ids
                assert turn.speaker.name == agent
                assert target.writer == f"policy@{iteration}"


def test_later_iterations_have_no_format_prompt(run: Run) -> None:
    for tree in run.store.trees(1, "rollout"):
        for request in tree.requests.values():
            shown = tree.messages(request)
            assert shown == drop_format(shown)


def test_no_prompt_and_no_row_shows_the_partners_facts_or_the_gold_answer(run: Run) -> None:
    recipe = recipe_of(run)
    for tree in run.store.trees(0, "rollout"):
        for request in tree.requests.values():
            for message in tree.messages(request):
                assert all(part.visible_to(request.agent) for part in message.parts)
                assert not any(part.source.startswith("secret:") for part in message.parts)
    for task in recipe.train_tasks(0):
        assert "secret" in str(task.secrets["answer"])


def test_reward_credit_adds_up_and_is_keyed_by_settings(run: Run) -> None:
    recipe = recipe_of(run)
    for rewards in recipe.rewards(run, 0).values():
        assert len(rewards) == 2
        assert min(r.terms["tokens"] for r in rewards) == pytest.approx(
            -recipe.settings.reward.lambda_token
        )
        assert all(r.terms["loss"] > 0 for r in rewards)
    other = recipe.settings.reward.model_copy(update={"lambda_token": 0.1})
    changed = Optima(recipe.settings.model_copy(update={"reward": other}))
    assert not any(changed.rewards(run, 0).values()), "other settings have no credit yet"


def test_train_and_held_out_tasks_are_disjoint(run: Run) -> None:
    recipe = recipe_of(run)
    held_out = {str(task.public["facts"]) for task in recipe.heldout_tasks()}
    for iteration in (0, 1):
        assert not held_out & {str(t.public["facts"]) for t in recipe.train_tasks(iteration)}


def test_run_resumes_reports_and_repeats_nothing(cli: Cli, tmp_path: Path) -> None:
    first = cli("run", "optima/isft", *SMALL, "--folder", "mine")
    assert first.code == 0, first.err
    page = tmp_path / "mine/report.html"
    assert page.is_file() and str(page.relative_to(tmp_path)) in first.out
    again = cli("run", "optima/isft", "--folder", "mine")
    assert again.code == 0, again.err
    assert "rollout" not in again.err.split("generations")[1]


def test_stages_alone_make_the_same_run(cli: Cli, run: Run, tmp_path: Path) -> None:
    for stage in ("evaluate", "rollout", "reward", "select", "train"):
        said = cli(
            "stage", stage, "alone", *(SMALL if stage == "evaluate" else ()), "--iteration", 0
        )
        assert said.code == 0, said.err
    said = cli("evaluate", "alone", "--iteration", 1)
    assert said.code == 0, said.err
    assert "score=" in said.out
    assert cli("report", "alone").code == 0
    with open_run(
        tmp_path / "alone", "optima/isft", settings("optima/isft", SMALL), write=False
    ) as alone:
        for step in (*(Step(0, stage) for stage in STAGES), Step(1, "evaluate")):
            mine, whole = dict(alone.metrics(step)), dict(run.metrics(step))
            assert mine | {"seconds": 0} == whole | {"seconds": 0}, step


def test_a_fork_keeps_the_steps_that_the_settings_do_not_touch(cli: Cli) -> None:
    assert cli("run", "optima/isft", *SMALL, "--folder", "a").code == 0
    refused = cli("run", "optima/isft", "reward.lambda_token=0.1", "--folder", "a")
    assert refused.code == 2
    assert "reward.lambda_token: 0.6 -> 0.1" in refused.err and "--fork" in refused.err
    forked = cli("run", "optima/isft", "reward.lambda_token=0.1", "--folder", "a", "--fork", "b")
    assert forked.code == 0, forked.err
    assert "kept from a: evaluate of iteration 0, rollout of iteration 0" in forked.err
    assert cli("run", "optima/isft", "--folder", "a").code == 0, "the old run is as it was"


@pytest.mark.slow
def test_adapters_are_trained_from_the_base_and_sampled(cli: Cli, tmp_path: Path) -> None:
    lora = ("train.method=lora", "from_initial=true", "train.learning_rate=0.01")
    said = cli("run", "optima/isft", *once(*SMALL, *lora, "iterations=2"), "--folder", "lora")
    assert said.code == 0, said.err
    for iteration in (0, 1):
        final = tmp_path / f"lora/training/policy/iteration-{iteration:02d}/final"
        assert (final / "adapter_config.json").is_file()
        assert not (final / "model.safetensors").exists()
    assert "well formed" in said.err and "cut off" in said.err and "well_formed" not in said.err
    said = cli("run", "optima/isft", *SMALL, "model=lora", "--dry-run")
    assert said.code == 2 and "LoRA adapter" in said.err and "bring-your-own.md" in said.err
    page = (Path(__file__).parents[1] / "docs/howto/bring-your-own.md").read_text()
    line = page.split("merge it first:\n\n    coterie ")[1].split("\n")[0]
    assert cli(*line.replace("RUN", "lora").split()).code == 0  # as a reader would
    assert recipe(settings("optima/isft", [*SMALL, "model=MERGED"])).plan().weights == {
        "policy": 1_987_392
    }


@pytest.mark.slow
def test_a_run_with_adapters_can_be_forked_to_one_that_trains_all_weights(
    cli: Cli, tmp_path: Path
) -> None:
    words = once(*SMALL, "train.method=lora", "rollout.tasks=2", "evaluate.tasks=2")
    assert cli("run", "optima/isft", *words, "--folder", "lora").code == 0
    fork = ("run", "optima/isft", "--folder", "lora", "--fork")
    same = cli(*fork, "same", "evaluate.tasks=1")
    assert same.code == 0, same.err
    assert "train of iteration 0" in same.err.split("kept from lora:")[1]
    trained = "training/policy/iteration-00/final"
    first, again = (load_file(tmp_path / run / trained / ADAPTER) for run in ("lora", "same"))
    assert all(torch.equal(first[name], again[name]) for name in first.keys() | again.keys())
    said = refused(cli, *fork, "none", "train.method=full", "train.lora_r=8")
    assert "train.lora_r and train.lora_alpha have no effect with train.method=full" in said
    whole = cli(*fork, "whole", "train.method=full")
    assert whole.code == 0, whole.err
    kept = whole.err.split("kept from lora:")[1].splitlines()[0]
    assert "select of iteration 0" in whole.err and "train of iteration 0" not in kept
    assert (tmp_path / "whole" / trained / "model.safetensors").is_file()


class Given(Exception):
    """Raised instead of training."""


def test_an_adapter_goes_on_from_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = ("train.method=lora", "from_initial=false", "train.learning_rate=0.01")
    own = settings("optima/isft", once(*SMALL, *lora, "iterations=2"))
    recipe, models = Optima(own), list[Any]()

    def train(model: Any, *_: Any, **__: Any) -> None:
        models.append(model)
        raise Given

    stages = ("rollout", "reward", "select", "train")
    *before, last = (Step(i, stage) for i in (0, 1) for stage in stages)
    with open_run(tmp_path / "run", "optima/isft", own) as run:
        run_steps(recipe, run, Silent(), before)
        with monkeypatch.context() as patch:
            patch.setattr(trainings, "train", train)
            with pytest.raises(Given):
                recipe.at(last).do(run, 1, Silent())
        base, policy = (recipe.load_policy(run, version) for version in (0, 1))
        (given,) = models
        weights = dict(given.named_parameters())
        moved = {name for name, weight in weights.items() if weight.requires_grad}
        assert moved == {name for name in weights if "lora_" in name}
        assert distance(replace(base, model=given.merge_and_unload()), policy) < 1e-4
        assert distance(base, policy) > 0.1, "told apart"
        run_steps(recipe, run, Silent())
        assert recipe.versions(run) == [0, 1, 2]
        after = recipe.load_policy(run, 2)
        assert distance(policy, after) > 0.1 and distance(base, after) > 0.1
        final = run.training_folder(1) / "final"
        assert (final / "adapter_config.json").is_file()
        assert run.metrics(Step(2, "evaluate"))["n"] == 4


def test_quickstart_ends_with_one_json_line(cli: Cli) -> None:
    said = cli("quickstart", *SMALL)
    assert said.code == 0, said.err
    result = json.loads(said.out.splitlines()[-1])
    assert set(result) == {"task", "model", "before", "after", "seconds", "report"}
    for when in ("before", "after"):
        assert set(result[when]) == {"score", "tokens", "n", "score_ci"}
        assert 0 <= result[when]["score"] <= 1 and result[when]["n"] == 4
    assert Path(result["report"]).is_file()
