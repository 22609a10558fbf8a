"""Experiments: tests of claims against values worked out by hand, and one whole experiment."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from coterie.environments import settings as environment_settings
from coterie.errors import UserError
from coterie.progress import Silent
from experiments import moat
from experiments.experiment import (
    Experiment,
    HeldOutResult,
    PolicyResult,
    Results,
    above,
    brief,
    print_claims,
    token_ratio,
)
from experiments.gap_sft import BySeed, cut
from tests.conftest import SMALL, Cli, refused


def results(*of_seeds: list[tuple[float, int]]) -> Results:
    """Return (score, tokens) of each task, by seed."""
    return {
        seed: {str(task): HeldOutResult(*one) for task, one in enumerate(tasks)}
        for seed, tasks in enumerate(of_seeds)
    }


def alike(score: float, tokens: int) -> Results:
    """Return twenty equal tasks of two seeds."""
    return results(*[[(score, tokens)] * 20] * 2)


BASE = alike(0.5, 100)


def test_above_has_its_margin_and_its_tokens() -> None:
    sure = above("a", "a", alike(0.7, 500), BASE, margin=0.1)
    assert sure.holds and sure.effect == pytest.approx(0.2) and sure.p < 0.001
    assert not above("a", "a", alike(0.6, 500), BASE, margin=0.1).holds, "exactly the margin"
    assert above("a", "a", BASE, alike(0.6, 1), margin=-0.2).holds
    for ours, holds in ((alike(0.7, 100), True), (alike(0.7, 101), False), (alike(0.3, 10), False)):
        claim = above("a", "a", ours, BASE, margin=0.1, at_no_more_tokens="base")
        assert claim.holds == holds and claim.tried.endswith("of base's tokens")
    # Two seeds, one without a gain: both draws hit it a quarter of the time.
    claim = above("a", "a", results([(1.0, 10)] * 20, [(0.5, 10)] * 20), BASE)
    assert claim.effect == pytest.approx(0.25) and claim.p == pytest.approx(0.25, abs=0.02)
    assert not claim.holds


def test_brief_needs_few_tokens_and_hardly_a_lower_score() -> None:
    claim = brief("b", "b", alike(0.48, 40), BASE, share=0.5, loss=0.05)
    assert claim.holds and claim.effect == pytest.approx(-0.6)
    for ours in (alike(0.40, 40), alike(0.48, 50), alike(0.45, 40)):
        claim = brief("b", "b", ours, BASE, share=0.5, loss=0.05)
        assert not claim.holds and claim.p == 1
    ours, theirs = results([(0, 30), (0, 10)], [(0, 20)]), results([(0, 40), (0, 40)], [(0, 40)])
    assert token_ratio(ours, theirs) == 0.5


def measured(parallel: float, failed: int = 0) -> BySeed:
    """Return values of forty questions; the last parallel dialogues failed."""
    values = [parallel] * (40 - failed) + [None] * failed
    return {
        "parallel": {0: {f"q{n}": one for n, one in enumerate(values)}},
        "sequential": {0: {f"q{n}": 10.0 for n in range(40)}},
    }


def test_a_cut_is_a_share_of_the_sequential_values_without_failures() -> None:
    assert cut("rounds", "", measured(7.9), 0.8).holds
    claim = cut("rounds", "", measured(8.1, failed=30), 0.8)
    assert not claim.holds and claim.effect == pytest.approx(-0.1)
    assert "8.10 against 10.00, on 10 of 40 questions" in claim.claim
    with pytest.raises(UserError, match="on every question one of the dialogues failed"):
        cut("rounds", "", measured(1, failed=40), 0.8)


@pytest.mark.parametrize(("fall", "holds"), [(0.03, True), (0.09, False)])
def test_j_may_fall_by_its_standard_error_and_tasks_without_it_are_left_out(
    fall: float, holds: bool
) -> None:
    values = [(-1.0, 0), (-0.5, 0)] * 10
    fallen = results([(value - fall, 0) for value, _ in values])
    del fallen[0]["0"]  # type: ignore[attr-defined]
    control = results([(value - 0.3, 0) for value, _ in values])
    j, never_falls = moat.likelihood_claims([results(values), results(values), fallen], control)
    assert j.holds and j.effect == pytest.approx(0.3 - fall) and "19 tasks" in j.tried
    assert never_falls.holds == holds, "the standard error is 0.057"


def test_tables_have_means_of_the_newest_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = Experiment(tmp_path, [], [0], print, Silent())
    x.rows = [
        PolicyResult("base", 0, 0, 500, 0.5, 40.0, 0, 0),
        PolicyResult("rejection", 0, 1, 500, 0.9, 40.0, 1000, 125, {"a_share": 0.9}),
        PolicyResult("rejection", 0, 2, 499, 0.7, 40.0, 1000, 125, {"a_share": 0.5}),
        PolicyResult("rejection", 1, 2, 500, 0.7, 40.0, 1000, 125, {"a_share": 0.6}),
    ]
    print_claims(x, [])
    out = capsys.readouterr().out
    assert ["a", "share", "0.55"] in [line.split() for line in out.splitlines()]
    assert "fewer than 500 tasks" in out
    assert json.loads(out.splitlines()[-1])["rows"][1]["a_share"] == 0.9


@pytest.mark.slow
def test_an_experiment_ends_with_claims_and_rows_and_is_not_done_twice(cli: Cli) -> None:
    first = cli("reproduce", "optima/isft", "--scale", "tiny", "--seeds", 1, *SMALL)
    assert first.code == 0, first.err
    result = json.loads(first.out.splitlines()[-1])
    ids = ["isft_over_base", "isft_over_random", "isft_over_scripted"]
    assert [claim["id"] for claim in result["claims"]] == ids
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == ["base", "isft", "random", "scripted"]
    for name in ("rows", "steps"):
        assert rows["isft"][name] == rows["random"][name] == rows["scripted"][name] > 0
    again = cli("reproduce", "optima/isft", "--seeds", 1, *SMALL)
    assert json.loads(again.out.splitlines()[-1]) == result


def test_nothing_is_trained_if_the_gate_is_not_passed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moat, "GOLD_SUCCESS", 1.1)
    overrides = ("rollout.rollouts_per_task=2", "evaluate.tasks=4")
    gate = cli("reproduce", "moat", "--seeds", 1, "--folder", tmp_path / "all", *overrides)
    assert gate.code == 1 and json.loads(gate.out.splitlines()[-1])["passed"] is False
    assert "that is not enough to test the claims: best_minus_mean at least" in gate.out
    assert [one.name for one in (tmp_path / "all").iterdir()] == ["gate"]
    assert "have no gate" in refused(cli, "reproduce", "optima", "--gate")
    on_data = refused(cli, "reproduce", "moat", "dataset=gsm8k_plans")
    assert "claims are tested on the micro-world problems" in on_data


def test_claims_on_games_whose_package_is_missing_are_refused_first(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment_settings, "version", missing)
    error = refused(cli, "reproduce", "dense_tree-textworld", "--folder", tmp_path / "all")
    assert "pip install -e '.[textworld]'" in error
    assert not (tmp_path / "all").exists()


@pytest.mark.slow
def test_the_gate_of_web_pages_has_an_oracle_that_is_always_right(cli: Cli, chromium: str) -> None:
    gate = cli("reproduce", "sweet_rl-frontend", "--gate", "evaluate.tasks=16")
    values = json.loads(gate.out.splitlines()[-1])
    assert values["oracle"] == 1.0 and 0.4 < values["base"] < 0.9, values
