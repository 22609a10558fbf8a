"""``coterie sweep``: runs over the values of one key, what they share, and what is printed of them."""

import json
from pathlib import Path

import pytest

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
from coterie.runs.folder import Step, open_run
from coterie.runs.items import evaluation
from tests.conftest import Cli
from tests.test_moat import SMALL

PLANS = f"dataset={Path(__file__).parent}/plans.py:Plans"
TINY = (PLANS, *(word for word in SMALL if not word.startswith("dataset=")), "parts=grounder")
ISFT = ("rollout.tasks=4", "evaluate.tasks=4", "engine.device=cpu")


def done(sweep: list[Point]) -> tuple[list[SweepRow], list[str]]:
    lines: list[str] = []
    return run_sweep(sweep, lines.append, Silent()), lines


def seconds(folder: Path, sweep: list[Point]) -> dict[Step, object]:
    """How long each finished stage took: of one that was done once, one number."""
    (point,) = [one for one in sweep if one.folder == folder]
    with open_run(folder, point.recipe.name, point.recipe.settings, write=False) as run:
        steps = [step for step in point.recipe.steps() if run.is_finished(step)]
        return {step: run.metrics(step)["seconds"] for step in steps}


@pytest.mark.slow
def test_runs_share_what_their_value_does_not_touch(tmp_path: Path) -> None:
    sweep = plan_sweep("moat/maths", [*TINY, "rollout.samples=2,3"], tmp_path, 1)
    assert [point.folder.name for point in sweep] == ["2-seed-0", "3-seed-0"]
    first, second = sweep
    common = [Step(0, "align"), Step(0, "improve"), Step(1, "measure"), Step(1, "evaluate")]
    assert (first.source, first.shared) == (None, [])
    assert second.source is first and list(second.shared) == common
    found, lines = done(sweep)
    assert lines[0] == "run 1 of 2: rollout.samples=2 seed=0"
    assert "kept from" in lines[-1] and "align of iteration 0" in lines[-1]
    times = [seconds(point.folder, sweep) for point in sweep]
    assert all(set(some) == set(first.recipe.steps()) for some in times)
    assert [step for step in times[0] if times[0][step] == times[1][step]] == common
    for point, row in zip(sweep, found, strict=True):
        with open_run(point.folder, point.recipe.name, point.recipe.settings, write=False) as run:
            last = evaluation(run.store, 2)
            assert (row.iteration, row.n) == (2, 2)
            assert (row.score, row.low, row.high) == pytest.approx(
                (last.score, last.low, last.high)
            )
            assert run.metrics(Step(1, "rollout"))["n"] == 4 * int(row.value)
            assert run.report.is_file()
    again, _ = done(plan_sweep("moat/maths", [*TINY, "rollout.samples=2,3"], tmp_path, 1))
    assert again == found
    assert [seconds(point.folder, sweep) for point in sweep] == times
    with pytest.raises(UserError, match="under other settings"):
        plan_sweep("moat/maths", [*TINY, "rollout.samples=2,3", "rollout.tasks=3"], tmp_path, 1)


def test_a_run_begins_with_the_one_that_it_shares_most_with(tmp_path: Path) -> None:
    """The third has another number of iterations than the first two, which differ in the last one."""
    sweep = plan_sweep("optima/isft", [*ISFT, "iterations=1,3,2"], tmp_path, 1)
    one, three, two = sweep
    assert three.source is one and two.source is three
    assert len(two.shared) == len(two.recipe.steps())
    other = plan_sweep("optima/isft", [*ISFT, "rollout.max_tokens=40,50"], tmp_path, 1)
    assert other[1].source is None


def test_seeds_follow_that_of_the_settings_and_share_nothing(tmp_path: Path) -> None:
    words = [*ISFT, "reward.lambda_token=0,0.5", "seed=5"]
    sweep = plan_sweep("optima/isft", words, tmp_path, 2)
    values = [(one.value, one.seed, one.recipe.settings.seed) for one in sweep]
    assert values == [("0", 5, 5), ("0.5", 5, 5), ("0", 6, 6), ("0.5", 6, 6)]
    assert [one.source and one.source.seed for one in sweep] == [None, 5, None, 6]
    sweep = plan_sweep("optima/isft", [*ISFT, "seed=3,4"], tmp_path, 1)
    assert [(one.value, one.seed) for one in sweep] == [("3", 3), ("4", 4)]


def test_all_seeds_of_a_value_are_one_more_row() -> None:
    rows = [
        SweepRow("2", 0, 1, 2, 0.5, 0, 1, 10.0, "a"), SweepRow("2", 1, 1, 2, 1.0, 1, 1, 20.0, "b"),
        SweepRow("5", 0, 1, 2, 0.0, 0, 0, 90.0, "c"),
    ]  # fmt: skip
    found = mean_of_seeds("2", rows, {"a": [0.0, 1.0], "b": [1.0, 1.0]})
    assert (found.value, found.seed, found.n, found.score, found.tokens) == ("2", None, 2, 0.75, 15)
    assert (found.low, found.high) == (0.5, 1.0)


def test_values_of_several_keys_are_combined(tmp_path: Path) -> None:
    words = [*ISFT, "iterations=1,2", "rollout.samples=4,5"]
    sweep = plan_sweep("optima/isft", words, tmp_path, 1)
    assert [point.folder.name for point in sweep] == [
        f"{i}_{n}-seed-0" for i in (1, 2) for n in (4, 5)
    ]
    last = sweep[-1].recipe.settings.model_dump()
    assert (last["iterations"], last["rollout"]["samples"]) == (2, 5)
    assert sweep[-1].source is sweep[1]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("2,5,15", ["2", "5", "15"]),
        ("[0.9,0.95],[0.8,0.99]", ["[0.9,0.95]", "[0.8,0.99]"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("one", ["one"]),
    ],
)
def test_commas_divide_values_but_not_in_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


@pytest.mark.parametrize(
    ("words", "seeds", "says"),
    [
        (["iterations=2"], 1, "no key has several values"),
        (["iterations=1,,2"], 1, "empty or repeated value"),
        (["iterations=2,2"], 1, "repeated value"),
        (["reward.lambda_token=1,1.0"], 1, "=1 and reward.lambda_token=1.0 are the same"),
        (["seed=1,2"], 2, "given twice"),
        (["rollout.sample=2,3"], 1, "rollout.samples"),
        (["rollout.samples=2,many"], 1, "rollout.samples"),
        (["model=tiny-exchange,nowhere/at-all"], 1, "nowhere"),
    ],
)
def test_what_is_no_sweep_is_refused(
    tmp_path: Path, words: list[str], seeds: int, says: str
) -> None:
    with pytest.raises(UserError) as error:
        plan_sweep("optima/isft", [*ISFT, *words], tmp_path / "sweep", seeds)
    assert says in f"{error.value.what} {error.value.todo}"
    assert not (tmp_path / "sweep").exists()


def test_runs_that_evaluate_nothing_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    words = [*TINY[1:], "dataset=lumos_web", "dataset.source=sample", "environment.turns=8"]
    with pytest.raises(UserError, match="=2: moat/web on lumos_web has no evaluation"):
        plan_sweep("moat/web", [*words, "rollout.samples=2,3"], tmp_path / "sweep", 1)
    assert not (tmp_path / "sweep").exists()


def test_the_command_prints_the_plan_and_leaves_nothing_behind(cli: Cli, tmp_path: Path) -> None:
    found = cli("sweep", "optima/isft", *ISFT, "rollout.samples=2,5", "--dry-run", "--seeds", "2")
    assert found.code == 0, found.err
    assert "plan of optima/isft over rollout.samples" in found.out
    rows = [line.split() for line in found.out.splitlines()]
    assert ["2", "0", "16", "0", "runs/sweep-optima-isft-rollout.samples/2-seed-0"] in rows
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_runs_all_and_ends_with_one_json_object(cli: Cli, tmp_path: Path) -> None:
    words = [*TINY, "correct.critic.model=script,tiny-exchange", "correct.critic.max_tokens=8"]
    found = cli("sweep", "moat/maths", *words, "--folder", tmp_path / "critics", "--seeds", "2")
    assert found.code == 0, found.err
    told = json.loads(found.out.splitlines()[-1])
    assert (told["recipe"], told["key"]) == ("moat/maths", "correct.critic.model")
    values = [(row["value"], row["seed"]) for row in told["rows"]]
    assert values == [
        ("script", 0), ("tiny-exchange", 0), ("script", 1), ("tiny-exchange", 1),
        ("script", None), ("tiny-exchange", None),
    ]  # fmt: skip
    assert {row["n"] for row in told["rows"]} == {2}
    assert sorted(one.name for one in (tmp_path / "critics").iterdir()) == [
        "script-seed-0", "script-seed-1", "sweep.html", "tiny-exchange-seed-0", "tiny-exchange-seed-1",
    ]  # fmt: skip
    page = (tmp_path / "critics" / "sweep.html").read_text()
    assert "correct.critic.model=tiny-exchange: " in page and "all seeds together" in page
    assert "held-out results over correct.critic.model" in found.out
