"""The recipe ``optima/isft`` end to end on the packaged model, through the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.environments.talk import FORMAT_SOURCE
from coterie.progress import Silent
from coterie.recipes.optima import DROP_FORMAT, Optima
from coterie.recipes.registry import recipe, settings
from coterie.runs.folder import Run, open_run
from coterie.runs.loop import run_steps
from tests.conftest import SMALL, Cli, once


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


def test_iteration_0_samples_under_formats_and_trains_without_them(run: Run) -> None:
    recipe = recipe_of(run)
    base = recipe.load_policy(run, 0)
    tree = next(run.store.trees(0, "rollout"))
    shown = [part for r in tree.requests.values() for m in tree.messages(r) for part in m.parts]
    assert any(part.source == FORMAT_SOURCE for part in shown)
    rows = recipe.rows(run, 0)
    assert {row.context for row in rows} == {DROP_FORMAT}
    assert all("Format:" not in base.tokenizer.decode(row.ids) for row in rows)
    assert all(row.logprobs is None for row in rows), "log-probs do not outlive their context"


def test_trained_tokens_are_exactly_the_sampled_ones(run: Run) -> None:
    recipe = recipe_of(run)
    turns = {}
    for iteration in (0, 1):
        for tree in run.store.trees(iteration, "rollout"):
            turns |= tree.turns
        for row in recipe.rows(run, iteration):
            agent = row.origin.split("/")[1]
            for target in row.targets:
                turn = turns[target.turn]
                assert row.ids[target.start : target.stop] == turn.ids
                assert turn.speaker.name == agent
                assert target.writer == f"policy@{iteration}"


def test_a_run_repeats_nothing_and_a_fork_keeps_the_steps_that_the_settings_do_not_touch(
    cli: Cli,
) -> None:
    first = cli("run", "optima/isft", *SMALL, "--folder", "a")
    assert first.code == 0, first.err
    assert Path("a/report.html").is_file() and "a/report.html" in first.out
    again = cli("run", "optima/isft", "--folder", "a")
    assert again.code == 0, again.err
    assert "rollout" not in again.err.split("generations")[1]
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


def test_quickstart_ends_with_one_json_line(cli: Cli) -> None:
    said = cli("quickstart", *SMALL)
    assert said.code == 0, said.err
    result = json.loads(said.out.splitlines()[-1])
    assert set(result) == {"task", "model", "before", "after", "seconds", "report"}
    for when in ("before", "after"):
        assert set(result[when]) == {"score", "tokens", "n", "score_ci"}
        assert 0 <= result[when]["score"] <= 1 and result[when]["n"] == 4
    assert Path(result["report"]).is_file()
