"""``coterie sweep``: runs over the values of one key, what they share, and what is printed of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.cli.report import write_report
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.recipes.sweep import (
    Point,
    SweepRow,
    mean_of_seeds,
    plan_sweep,
    run_sweep,
    split_values,
)
from coterie.runs.evaluation import evaluation
from coterie.runs.run import StageKey, open_run
from tests.conftest import Cli
from tests.helpers.read_page import sections_of
from tests.helpers.write_rows import write_jsonl
from tests.recipes.test_moat import SMALL

PLANS = f"dataset={Path(__file__).parents[1]}/helpers/plans.py:Plans"
TINY = (PLANS, *(word for word in SMALL if not word.startswith("dataset=")), "parts=grounder")
ISFT = ("rollout.tasks=4", "evaluate.tasks=4", "engine.device=cpu")


def done(sweep: list[Point]) -> tuple[list[SweepRow], list[str]]:
    lines: list[str] = []
    return run_sweep(sweep, lines.append, Silent(), write_report), lines


def seconds(point: Point) -> dict[StageKey, object]:
    """Return the time of each finished stage; equal times are of one stage that was copied."""
    with open_run(point.folder, point.recipe.name, point.recipe.settings, write=False) as run:
        steps = [step for step in point.recipe.stage_keys() if run.is_finished(step)]
        return {step: run.metrics(step)["seconds"] for step in steps}


@pytest.mark.slow
def test_runs_share_what_their_value_does_not_touch(tmp_path: Path) -> None:
    overrides = [*TINY, "rollout.rollouts_per_task=2,3"]
    sweep = plan_sweep("moat/maths", overrides, tmp_path, 1)
    assert [point.folder.name for point in sweep] == ["2-seed-0", "3-seed-0"]
    first, second = sweep
    common = [
        StageKey(0, "align"),
        StageKey(0, "improve"),
        StageKey(1, "measure"),
        StageKey(1, "evaluate"),
    ]
    assert (first.source, first.shared) == (None, [])
    assert second.source is first and list(second.shared) == common
    rows, lines = done(sweep)
    assert lines[0] == "run 1 of 2: rollout.rollouts_per_task=2 seed=0"
    assert "kept from" in lines[-1] and "align of iteration 0" in lines[-1]
    times = list(map(seconds, sweep))
    assert all(set(some) == set(first.recipe.stage_keys()) for some in times)
    assert all(times[0][step] == times[1][step] for step in common)
    for point, row in zip(sweep, rows, strict=True):
        with open_run(point.folder, point.recipe.name, point.recipe.settings, write=False) as run:
            last = evaluation(run.store, 2)
            assert (row.iteration, row.n) == (2, 2)
            figures = pytest.approx((last.score, *last.interval), abs=5e-5)
            assert (row.score, row.low, row.high) == figures
            assert run.metrics(StageKey(1, "rollout"))["n"] == 4 * int(row.value)
            assert run.report.is_file()
    again, _ = done(plan_sweep("moat/maths", overrides, tmp_path, 1))
    assert again == rows and list(map(seconds, sweep)) == times
    with pytest.raises(UserError, match="under other settings"):
        plan_sweep("moat/maths", [*overrides, "rollout.tasks=3"], tmp_path, 1)


def test_a_run_begins_with_the_one_that_it_shares_most_with(tmp_path: Path) -> None:
    """The third has another number of iterations than the first two, which differ in the last one."""
    one, three, two = plan_sweep("optima/isft", [*ISFT, "iterations=1,3,2"], tmp_path, 1)
    assert three.source is one and two.source is three
    assert len(two.shared) == len(two.recipe.stage_keys())
    other = plan_sweep("optima/isft", [*ISFT, "rollout.max_tokens=40,50"], tmp_path, 1)
    assert other[1].source is None
    overrides = [*ISFT, "iterations=1,2", "rollout.rollouts_per_task=4,5"]
    sweep = plan_sweep("optima/isft", overrides, tmp_path, 1)
    names = [point.folder.name for point in sweep]
    assert names == ["1_4-seed-0", "1_5-seed-0", "2_4-seed-0", "2_5-seed-0"]
    last = sweep[-1].recipe.settings.model_dump()
    assert (last["iterations"], last["rollout"]["rollouts_per_task"]) == (2, 5)
    assert sweep[-1].source is sweep[1]


def test_seeds_follow_that_of_the_settings_and_share_nothing(tmp_path: Path) -> None:
    overrides = [*ISFT, "reward.lambda_token=0,0.5", "seed=5"]
    sweep = plan_sweep("optima/isft", overrides, tmp_path, 2)
    values = [(one.value, one.seed, one.recipe.settings.seed) for one in sweep]
    assert values == [("0", 5, 5), ("0.5", 5, 5), ("0", 6, 6), ("0.5", 6, 6)]
    assert [one.source and one.source.seed for one in sweep] == [None, 5, None, 6]
    rows = [
        SweepRow("2", 0, 1, 2, 0.5, 0, 1, 10.0, "a"), SweepRow("2", 1, 1, 2, 1.0, 1, 1, 20.0, "b"),
        SweepRow("5", 0, 1, 2, 0.0, 0, 0, 90.0, "c"),
    ]  # fmt: skip
    assert mean_of_seeds("2", rows[:2], {"a": [0.0, 1.0]}).loss is None
    losses = [
        replace(rows[0], loss=1.0, loss_low=0.0, loss_high=3.0),
        replace(rows[1], loss=2.0, loss_low=1.0, loss_high=4.0),
    ]
    last = mean_of_seeds("2", losses, {"a": [0.0, 1.0]})
    assert (last.loss, last.loss_low, last.loss_high) == (1.5, 0.5, 3.5)
    mean = mean_of_seeds("2", rows, {"a": [0.0, 1.0], "b": [1.0, 1.0]})
    assert (mean.value, mean.seed, mean.n, mean.score, mean.tokens) == ("2", None, 2, 0.75, 15)
    assert (mean.low, mean.high) == (0.5, 1.0)


def test_runs_on_files_are_compared_by_their_held_out_loss_and_linked(
    cli: Cli, tmp_path: Path
) -> None:
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"{n}?"},
                {"role": "assistant", "content": "It is."},
            ]
        }
        for n in range(20)
    ]
    file = write_jsonl(tmp_path / "chats.jsonl", *chats)
    overrides = [
        f"dataset.source={file}",
        "model=tiny-exchange",
        "evaluate.tasks=1",
        "engine.device=cpu",
    ]
    swept = cli("sweep", "sft", *overrides, "train.learning_rate=1e-6,1e-3", "--folder", "sweep")
    assert swept.code == 0, swept.err
    slow, fast = json.loads(swept.out.splitlines()[-1])["rows"]
    assert fast["loss_low"] < fast["loss"] < fast["loss_high"] < slow["loss"]
    section = sections_of(Path("sweep/sweep.html"))["scores"]
    (chart,) = section["charts"]
    assert chart["steps"] == ["1e-6", "1e-3"]
    assert chart["series"][0]["values"] == [slow["loss"], fast["loss"]]
    assert chart["series"][0]["high"] == [slow["loss_high"], fast["loss_high"]]
    links = [row[-1]["href"] for row in section["rows"]]
    assert len(links) == 2 and all(Path("sweep", link).is_file() for link in links)
    assert "report.html" not in swept.out


def test_commas_divide_values_but_not_in_brackets_and_quotes() -> None:
    assert split_values("2,[0.9,0.95],'a,b',c") == ["2", "[0.9,0.95]", "'a,b'", "c"]


@pytest.mark.slow
def test_the_command_prints_the_plan_and_ends_with_one_json_object(
    cli: Cli, tmp_path: Path
) -> None:
    words = ["sweep", "moat/maths", *TINY, "correct.critic.model=script,tiny-exchange",
             "correct.critic.max_tokens=8", "--seeds", "2"]  # fmt: skip
    plan = cli(*words, "--dry-run")
    assert plan.code == 0 and "plan of moat/maths over correct.critic.model" in plan.out, plan.err
    assert not list(tmp_path.iterdir())
    swept = cli(*words, "--folder", tmp_path / "critics")
    assert swept.code == 0, swept.err
    result = json.loads(swept.out.splitlines()[-1])
    assert (result["recipe"], result["key"]) == ("moat/maths", "correct.critic.model")
    values = [(row["value"], row["seed"]) for row in result["rows"]]
    assert values == [
        (value, seed) for seed in (0, 1, None) for value in ("script", "tiny-exchange")
    ]
    assert {row["n"] for row in result["rows"]} == {2}
    assert len(list((tmp_path / "critics").iterdir())) == 5
    section = sections_of(tmp_path / "critics" / "sweep.html")["scores"]
    (chart,) = section["charts"]
    assert (
        chart["steps"] == ["script", "tiny-exchange"] and "all seeds together" in section["intro"]
    )
    assert "held-out results over correct.critic.model" in swept.out
