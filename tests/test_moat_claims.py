"""``coterie reproduce moat``: its gate, its control and its claims, on small sizes."""

import json

import pytest

from coterie.errors import UserError
from coterie.evaluation.claims import HeldOut
from coterie.progress import Silent
from coterie.recipes.moat import claims as claims_module
from coterie.recipes.moat import gate as gate_module
from coterie.recipes.moat.claims import (
    CONTROL,
    FAR,
    JOINT,
    START,
    MoatFindings,
    _measures,
    _recipe,
)
from coterie.recipes.moat.controls import ContinuedSFT, Trained, trained
from coterie.recipes.moat.gate import SAMPLED
from coterie.recipes.moat.recipe import Moat
from coterie.recipes.moat.settings import MoatSettings
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import fork, run_steps
from coterie.trajectories.item import ItemKey

SIZES = (
    "iterations=2", "rollout.tasks=6", "rollout.samples=6", "start.tasks=8", "measure.tasks=4",
    "measure.samples=2", "evaluate.tasks=10", "pairs.margin=0.001", "engine.device=cpu",
)  # fmt: skip


@pytest.fixture
def open_gate(monkeypatch):
    """Ten tasks are too few to be sure that the gate is passed."""
    for name, value in (("BEST_MINUS_MEAN", 0.0), ("GOLD_SUCCESS", 0.0), ("SAMPLED_SUCCESS", 1.0)):
        monkeypatch.setattr(gate_module, name, value)


def test_the_gate_says_what_it_measured_and_trains_nothing(cli, tmp_path):
    said = cli(
        "reproduce", "moat", "--gate", "--folder", tmp_path / "all", *SIZES[:3], "evaluate.tasks=40"
    )
    found = json.loads(said.out.splitlines()[-1])
    assert set(found) == {"best_minus_mean", "gold_success", "sampled_success", "passed"}
    assert 0 <= found["sampled_success"] <= 1 and 0 <= found["best_minus_mean"] <= 1
    assert found["gold_success"] > 0.8, "the packaged grounder knows right plans"
    assert found["sampled_success"] < 0.8, "and is told worse ones"
    assert found["best_minus_mean"] > 0.1, "some of which are better than others"
    passed = (
        found["best_minus_mean"] >= 0.15
        and found["gold_success"] >= 0.9
        and found["sampled_success"] <= 0.7
    )
    assert (found["passed"], said.code) == (passed, 0 if passed else 1)
    assert [one.name for one in (tmp_path / "all").iterdir()] == ["gate"]


def test_the_gate_compares_the_best_plan_with_the_mean_one(tmp_path, open_gate):
    words = [*SIZES, "evaluate.tasks=8"]
    measured = gate_module.gate(tmp_path / "gate", words, Silent()).values
    own = settings("moat/maths", words)
    with open_run(tmp_path / "gate", "moat/maths", own, write=False) as run:
        scores = [
            [one.score for one in tree.outcomes.values()] for tree in run.store.trees(0, SAMPLED)
        ]
    assert [len(some) for some in scores] == [6] * 8
    mean = sum(map(sum, scores)) / 48
    assert measured["sampled_success"] == pytest.approx(mean)
    assert measured["best_minus_mean"] == pytest.approx(sum(map(max, scores)) / 8 - mean)


def trained_all_the_same(*_: object) -> None:
    raise UserError("it was trained all the same", "do not")


@pytest.mark.parametrize(
    "shut", [("BEST_MINUS_MEAN", 1.1), ("GOLD_SUCCESS", 1.1), ("SAMPLED_SUCCESS", -0.1)]
)
def test_nothing_is_trained_if_the_gate_is_not_passed(cli, tmp_path, monkeypatch, open_gate, shut):
    monkeypatch.setattr(gate_module, *shut)
    monkeypatch.setattr(claims_module, "reproduce", trained_all_the_same)
    said = cli("reproduce", "moat", "--seeds", 1, "--folder", tmp_path / "all", *SIZES)
    assert said.code == 1
    assert json.loads(said.out.splitlines()[-1])["passed"] is False
    assert "that is not enough to test the claims: best_minus_mean at least" in said.out
    assert not (tmp_path / "all" / "seed-0").exists()


def test_claims_without_a_gate_say_so(cli):
    said = cli("reproduce", "optima", "--gate")
    assert (said.code, "have no gate" in said.err) == (2, True)


@pytest.mark.slow
def test_it_ends_with_claims_and_rows_and_the_control_had_as_many_rows_and_steps(
    cli, open_gate, tmp_path
):
    words = ("reproduce", "moat", "--seeds", 1, "--folder", tmp_path / "all", *SIZES)
    said = cli(*words)
    assert said.code == 0, said.err
    result = json.loads(said.out.splitlines()[-1])
    assert {claim["id"]: claim["must"] for claim in result["claims"]} == {
        "over_continued_sft": True, "over_planner_only": False, "over_grounder_only": False, "j": False,
        "j_never_falls": False, "far": False,
    }  # fmt: skip
    rows = {(row["method"], row["iteration"]): row for row in result["rows"]}
    near = [
        (method, n) for method in (JOINT, CONTROL, "planner only", "grounder only") for n in (2, 3)
    ]
    far = [(method + FAR, 3) for method in (JOINT, CONTROL, "planner only", "grounder only")]
    assert set(rows) == {(START, 1), (START + FAR, 1), *near, *far}
    start = rows[START, 1]
    assert (start["rows"], start["steps"]) == (16, 2), "8 rows of each role, a step of each"
    joint, control = rows[JOINT, 3], rows[CONTROL, 3]
    assert control["steps"] == joint["steps"]
    trained = list((tmp_path / "all/seed-0/joint/training").glob("*/*/metrics.jsonl"))
    assert len(trained) == 6, "of each role: the start and two iterations"
    pairs = joint["rows"] - rows["grounder only", 3]["rows"]
    assert 0 < pairs <= 2 * 6
    again = cli(*words)
    assert json.loads(again.out.splitlines()[-1]) == result, "nothing is done twice"


@pytest.mark.slow
def test_the_control_has_as_many_rows_and_steps_as_joint_alignment(tmp_path):
    words = (*SIZES, "iterations=1", "align.train.batch_rows=2")
    own = recipe_of(settings("moat/maths", words))
    assert isinstance(own, Moat)
    steps = [one for one in own.steps() if one.stage not in ("measure", "measure_half", "evaluate")]
    with open_run(tmp_path / "joint", own.name, own.settings) as run:
        run_steps(own, run, Silent(), steps)
        counts = trained(run, own)
        joint = {stage: run.metrics(Step(1, stage)) for stage in ("align", "improve")}
    sft = settings("moat/maths", [*words, "parts=sft"])
    assert isinstance(sft, MoatSettings)
    control = ContinuedSFT(sft, counts)
    fork(control, tmp_path / "joint", tmp_path / "control", sft)
    with open_run(tmp_path / "control", control.name, sft) as run:
        run_steps(control, run, Silent(), [Step(1, "align"), Step(1, "improve")])
        found = {stage: run.metrics(Step(1, stage)) for stage in ("align", "improve")}
    other = ContinuedSFT(sft, Trained(counts.planner, (counts.grounder[0] + 1,)))
    same = [
        control.fingerprint(Step(i, "improve")) == other.fingerprint(Step(i, "improve"))
        for i in (0, 1)
    ]
    assert same == [True, False], "what it was trained on is part of what it is"
    assert found["align"]["rows"] == 2 * joint["align"]["rows"] > 0
    assert found["improve"]["rows"] == joint["improve"]["rows"]
    assert found["align"]["steps"] == joint["align"]["steps"] > 1
    assert found["improve"]["steps"] == joint["improve"]["steps"]


def of(*scores: float) -> dict[str, HeldOut]:
    return {f"t{n}": HeldOut(score, 1) for n, score in enumerate(scores)}


def found_with(joint: list[float], other: list[float], falls: float) -> MoatFindings:
    found = MoatFindings()
    for method in (JOINT, JOINT + FAR):
        found.tasks[method, 0] = of(*joint)
    for method in (CONTROL, "planner only", "grounder only", START + FAR):
        found.tasks[method, 0] = of(*other)
    values = [-1.0, -0.5] * 10
    found.j[JOINT, 0] = [of(*values), of(*values), of(*(value - falls for value in values))]
    found.j[CONTROL, 0] = [of(*(value - 0.3 for value in values))]
    return found


def test_claims_hold_for_what_they_say():
    better = found_with([1.0] * 15 + [0.0] * 5, [1.0] * 5 + [0.0] * 15, 0.0).claims()
    assert all(claim.holds for claim in better), better
    assert better[0].effect == pytest.approx(0.5)
    worse = {claim.id: claim for claim in found_with([0.0] * 20, [1.0] * 20, 0.5).claims()}
    assert not any(claim.holds for claim in worse.values())
    assert worse["over_continued_sft"].effect == -1.0
    small = {claim.id: claim for claim in found_with([1.0] * 20, [1.0] * 20, 0.03).claims()}
    assert small["j_never_falls"].holds, "it fell by less than its standard error, 0.057"
    large = {claim.id: claim for claim in found_with([1.0] * 20, [1.0] * 20, 0.09).claims()}
    assert not large["j_never_falls"].holds


def test_a_task_without_j_is_left_out_of_comparisons(tmp_path):
    found = found_with([1.0] * 20, [0.0] * 20, 0.0)
    first, *others = found.j[JOINT, 0]
    found.j[JOINT, 0] = [first, *({task: some[task] for task in list(some)[1:]} for some in others)]
    j, never_falls = found.claims()[3:5]
    assert (j.holds, j.effect) == (True, pytest.approx(0.3)) and never_falls.holds
    assert "19 tasks" in j.tried
    recipe = _recipe(("iterations=1", "start.enabled=false", "model=tiny-exchange"), "joint")
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run.store.finish(ItemKey(0, "measure", "a"), metrics={"loglikelihood": -1.0})
        run.store.finish(ItemKey(0, "measure", "b"), failure="too long")
        assert [list(tasks) for tasks in _measures(recipe, run)] == [["a"], [], []]


def test_claims_are_tested_on_the_micro_world_alone(cli):
    said = cli("reproduce", "moat", "dataset=gsm8k_plans")
    assert "claims are tested on the micro-world problems" in said.err


def test_the_preset_of_the_micro_world():
    own = settings("moat/maths", [])
    assert (own.model, own.environment.name, own.rollout.samples) == (
        "tiny-problems",
        "problems",
        15,
    )
