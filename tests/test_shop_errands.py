"""The environment ``shop``: errands and their splits, right plans, visits by steps and at once, what they are worth."""

import json

import pytest

from coterie.environments.plan_ground import GROUNDER, PLANNER, gold, plan_text
from coterie.environments.protocol import Grade
from coterie.environments.settings import split_of_key
from coterie.environments.shop import (
    WISH,
    ShopErrands,
    ShopSettings,
    canonical_key,
    errands,
)
from coterie.record.tree import Task
from tests.played import environment_of
from tests.test_plan_ground import played_alone


def world(form: str = "iterative") -> ShopErrands:
    found = environment_of("shop", f"environment.form={form}")
    assert isinstance(found, ShopErrands)
    return found


def heldout(form: str = "iterative", count: int = 1) -> list[Task]:
    return world(form).tasks("heldout", count, 0)


def visit(task: Task, actions: list[str]) -> Grade:
    """A visit by steps: one action for each subgoal, then the end."""
    said = [plan_text([f"do {n}"], n) for n in range(1, len(actions) + 1)]
    return played_alone(world(), task, {PLANNER: [*said, "Done."], GROUNDER: list(actions)})[1]


def right(task: Task) -> list[str]:
    return [action for step in gold(task).steps for action in step.actions]


@pytest.mark.parametrize("form", ["iterative", "onetime"])
def test_right_plans_are_worth_1(form: str) -> None:
    for task in heldout(form, 12):
        if form == "onetime":
            lines = {PLANNER: [gold(task).plan], GROUNDER: [gold(task).actions]}
            grade = played_alone(world(form), task, lines)[1]
        else:
            grade = visit(task, right(task))
        assert (grade.score, grade.metrics["bought"]) == (1.0, 1.0), task.public["question"]


def test_a_visit_goes_on_from_step_to_step_and_the_planner_hears_what_each_gave() -> None:
    (task,) = heldout()
    steps = gold(task).steps
    lines = {
        PLANNER: [*(plan_text([step.subgoal], n) for n, step in enumerate(steps, 1)), "Done."],
        GROUNDER: right(task),
    }
    state, grade = played_alone(world(), task, lines)
    told = [turn.text for turn in state.turns if turn.speaker.name == "tools"]
    assert told == [f"Subgoal {n} gave: {step.result}" for n, step in enumerate(steps, 1)]
    assert grade.score == 1.0 and state.answer == steps[-1].result


def test_what_is_missing_is_taken_off_and_nothing_bought_is_worth_0() -> None:
    (task,) = heldout()
    search, pick, *choices, _ = right(task)
    assert choices
    assert visit(task, [search, pick, *choices]).score == 0.0
    some = visit(task, [search, pick, "R3 = Click(R2, Query: Buy Now)"])
    wanted = json.loads(task.secrets[WISH].reveal("grader"))
    parts = len(wanted[2]) + len(wanted[3]) + 1
    assert some.score == pytest.approx((len(wanted[2]) + 1) / parts)
    assert visit(task, [search, "R2 = Pick(R1, Query: nothing of this)"]).score == 0.0
    grade = visit(task, ["R1 = Search(zebra)"])
    assert (grade.score, grade.metrics["well_formed"]) == (0.0, 0.0)


def test_training_tasks_are_single_steps_that_give_what_the_right_ones_give() -> None:
    tasks = world().tasks("train", 40, 0)
    assert len(tasks) == len({task.id.partition("/")[0] for task in tasks}) == 40
    numbers = {int(task.id.partition("/")[2]) for task in tasks}
    assert {1, 2, 3} < numbers and any(gold(task).done for task in tasks)
    for task in tasks[:12]:
        if gold(task).done:
            assert played_alone(world(), task, {PLANNER: ["Done."], GROUNDER: []})[1].score == 1.0
            continue
        lines = {PLANNER: [gold(task).plan], GROUNDER: [gold(task).actions]}
        assert played_alone(world(), task, lines)[1].score == 1.0
        number = task.id.partition("/")[2]
        lines = {PLANNER: [gold(task).plan], GROUNDER: [f"R{number} = Search(green tea shoes)"]}
        assert played_alone(world(), task, lines)[1].score == 0.0


def test_splits_share_no_wish_and_draws_go_on() -> None:
    train, held = errands(200, "train", 0, 150), errands(200, "heldout", 0, 150)
    keys = [{canonical_key(one.wish) for one in some} for some in (train, held)]
    assert len(keys[0]) == len(keys[1]) == 150 and not keys[0] & keys[1]
    assert all(split_of_key(key) == "train" for key in keys[0])
    where = world("onetime")
    first, more = where.tasks("train", 10, 0), where.tasks("train", 5, 0, [10])
    assert [one.id for one in (*first, *more)] == [one.id for one in where.tasks("train", 15, 0)]
    assert where.tasks("heldout", 3, 1)[0].public != where.tasks("heldout", 3, 0)[0].public


def test_what_is_wished_for_is_a_secret_and_scored_tasks_have_right_actions() -> None:
    (task,) = heldout()
    assert task.secrets[WISH].readers == {"grader"}
    assert "department" not in str(task.public)
    found = world().scored_tasks(2, 0)
    assert len({one.id.partition("/")[0] for one in found}) == 2
    assert all(gold(one).steps and not gold(one).done for one in found)
    assert [one.id for one in world("onetime").scored_tasks(2, 0)] == [
        one.id for one in heldout(count=2)
    ]


@pytest.mark.parametrize("form", ["iterative", "onetime"])
def test_training_errands_begin_anew_with_other_steps(form: str) -> None:
    where = ShopErrands(ShopSettings.model_validate({"items": 50, "form": form}))
    whole = where.tasks("train", 10**4, 0)
    count, after = len(whole), where.tasks("train", 3, 0, [10**4])
    assert count == len({task.id for task in whole})
    assert [task.id.partition("/")[0] for task in after] == [
        task.id.partition("/")[0] for task in whole[:3]
    ]
    assert all((a.id == b.id) == (form == "onetime") for a, b in zip(after, whole, strict=False))
    assert where.tasks("train", 10**4, 0, [10**4])[:3] == after
    over = where.tasks("train", 4, 0, [count - 2])
    assert over == [*whole[-2:], *after[:2]]
