"""The environment ``shop``: items, visits, rewards, errands and their splits, right plans."""

import asyncio
import json

import pytest

from coterie.environments.plans.plan_ground import GROUNDER, PLANNER, gold, plan_text
from coterie.environments.plans.shop import (
    WISH,
    Item,
    Session,
    Shop,
    ShopErrands,
    ShopExecutor,
    ShopSettings,
    Wish,
    canonical_key,
    errands,
    reward,
)
from coterie.environments.protocol import Grade
from coterie.environments.settings import split_of_key
from coterie.record.tree import Task
from coterie.tools.actions.executors import Executed
from coterie.tools.actions.grammar import parse
from tests.environments.plans.test_plan_ground import played_alone

SHOES = Item("B001", "Alder", "running shoes", "clothing", ("vegan", "wide fit", "waterproof"),
             (("colour", ("red", "navy blue")), ("size", ("9", "10"))), 4500)  # fmt: skip
OTHER = Item("B002", "Cove", "running shoes", "clothing", ("cushioned", "breathable"),
             (("colour", ("black",)), ("size", ("9",))), 9000)  # fmt: skip
RED = (("colour", ("red",)),)
JACKET = Item("B003", "Juno", "rain jacket", "clothing", ("hooded", "vegan"), RED, 3000)
LAMP = Item("B004", "Istra", "desk lamp", "home", ("dimmable",), (), 2000)
SHOP = Shop((SHOES, OTHER, JACKET, LAMP))
CHOSEN = ("colour", "red"), ("size", "10")
WANTED = Wish("running shoes", "clothing", ("vegan", "wide fit"), CHOSEN, 5000)
PICK = "R1 = Search({}); R2 = Pick(R1, Query: {})"
BUY = "; R9 = Click(R2, Query: Buy Now)"
PICK_SHOES, PICK_LAMP = PICK.format("running shoes", "vegan wide fit"), PICK.format("lamp", "lamp")


def run(line: str, executor: ShopExecutor, values: dict[str, str] | None = None) -> Executed:
    return asyncio.run(executor.run(parse(line).actions, values or {}))


def test_a_visit_with_all_wishes_is_worth_1() -> None:
    line = (
        "R1 = Search(vegan running shoes); R2 = FeatureRetrieve(R1, Query: wide fit); "
        "R3 = Pick(R2, Query: vegan wide fit); R4 = Click(R3, Query: colour red); "
        "R5 = Click(R4, Query: size 10); R6 = Click(R5, Query: Buy Now)"
    )
    executor = ShopExecutor(SHOP)
    result = run(line, executor)
    assert result.error is None
    title = "[B001] Alder vegan wide fit running shoes | $45.00"
    assert result.values["R1"].splitlines()[0] == title
    assert "waterproof" in result.values["R2"] and "size: 9, 10" in result.values["R2"]
    assert result.answer == f"bought {title} | colour: red, size: 10"
    assert executor.session == Session("B001", CHOSEN, True)
    assert reward(SHOP, executor.session, WANTED) == 1.0


@pytest.mark.parametrize(
    ("line", "worth"),
    [
        (PICK_SHOES, 0),
        (PICK_SHOES + BUY, 3 / 5),
        (PICK_SHOES + "; R3 = Click(R2, Query: size 10)" + BUY, 4 / 5),
        (PICK.format("running shoes", "cushioned") + BUY, 0),
        (PICK.format("rain jacket", "red") + BUY, 0.5 * 2 / 5),
        (PICK_LAMP + BUY, 0),
    ],
)
def test_a_reward_is_the_share_of_the_wish(line: str, worth: float) -> None:
    executor = ShopExecutor(SHOP)
    assert run(line, executor).error is None
    assert reward(SHOP, executor.session, WANTED) == pytest.approx(worth)


def test_a_choice_replaces_the_one_before_and_a_visit_goes_on_from_its_session() -> None:
    first = ShopExecutor(SHOP)
    line = "; R3 = Click(R2, Query: navy blue); R4 = Click(R2, Query: red)"
    values = dict(run(PICK_SHOES + line, first).values)
    assert first.session.chosen == (("colour", "red"),)
    second = ShopExecutor(SHOP, first.session)
    assert run("R5 = Click(R2, Query: buy)", second, values).error is None
    assert second.session.bought and not first.session.bought
    run("R6 = Pick(R5, Query: cushioned)", first, {"R5": OTHER.line})
    assert first.session == Session("B002"), "another item has nothing chosen"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("R1 = Search(zebra)", "nothing is found"),
        ("R1 = Click(R0, Query: red)", "R0 has no value"),
        ("R1 = Search(lamp); R2 = Click(R1, Query: red)", "no item is open"),
        (PICK_LAMP + "; R3 = Click(R2, Query: purple)", "no such option"),
        (PICK_LAMP + BUY + "; R4 = Search(shoes)", "the visit is over"),
        ("R1 = Pick(R7, Query: x)", "what it is given has no items"),
        ("R1 = Pick(R7)", "it is given no words"),
    ],
)
def test_reasons_of_failures(line: str, why: str) -> None:
    result = run(line, ShopExecutor(SHOP), {"R7": "[B999] nothing of ours"})
    assert result.answer is None and why in (result.error or "")


# -- errands ------------------------------------------------------------------------------------


def world(form: str = "iterative", items: int = 200) -> ShopErrands:
    return ShopErrands(ShopSettings.model_validate({"form": form, "items": items}))


def visit(task: Task, actions: list[str]) -> Grade:
    """Grade a visit by steps: one action for each subgoal, then the end."""
    plans = [plan_text([f"do {n}"], n) for n in range(1, len(actions) + 1)]
    return played_alone(world(), task, {PLANNER: [*plans, "Done."], GROUNDER: actions})[1]


def right(task: Task) -> list[str]:
    return [action for step in gold(task).steps for action in step.actions]


@pytest.mark.parametrize("form", ["iterative", "onetime"])
def test_right_plans_are_worth_1(form: str) -> None:
    for task in world(form).tasks("heldout", 12, 0):
        steps = gold(task).steps
        lines = {
            PLANNER: [*(plan_text([step.subgoal], n) for n, step in enumerate(steps, 1)), "Done."],
            GROUNDER: right(task),
        }
        if form == "onetime":
            lines = {PLANNER: [gold(task).plan], GROUNDER: [gold(task).actions]}
        state, grade = played_alone(world(form), task, lines)
        assert (grade.score, grade.metrics["bought"]) == (1.0, 1.0), task.public["question"]
        assert state.answer == steps[-1].result
        results = [turn.text for turn in state.turns if turn.speaker.name == "tools"]
        if form == "iterative":
            assert results == [f"Subgoal {n} gave: {s.result}" for n, s in enumerate(steps, 1)]


def test_a_reward_is_the_share_of_the_wish_and_0_without_a_purchase() -> None:
    (task,) = world().tasks("heldout", 1, 0)
    search, pick, *choices, _ = right(task)
    assert choices
    wish = json.loads(task.secrets[WISH].reveal("grader"))
    assert task.secrets[WISH].readers == {"grader"} and "department" not in str(task.public)
    share = (len(wish[2]) + 1) / (len(wish[2]) + len(wish[3]) + 1)
    grade = visit(task, [search, pick, "R3 = Click(R2, Query: Buy Now)"])
    assert grade.score == pytest.approx(share)
    assert visit(task, [search, pick, *choices]).score == 0.0
    grade = visit(task, ["R1 = Search(zebra)"])
    assert (grade.score, grade.metrics["well_formed"]) == (0.0, 0.0)


def test_training_tasks_are_single_steps_that_give_what_the_right_ones_give() -> None:
    tasks = world().tasks("train", 40, 0)
    assert len(tasks) == len({task.id.partition("/")[0] for task in tasks}) == 40
    numbers = {int(task.id.partition("/")[2]) for task in tasks}
    assert {1, 2, 3} < numbers and any(gold(task).done for task in tasks)
    for task in tasks[:12]:
        number = task.id.partition("/")[2]
        for actions, score in (
            (gold(task).actions, 1.0),
            (f"R{number} = Search(green tea shoes)", 0.0),
        ):
            if score or not gold(task).done:
                lines = {PLANNER: [gold(task).plan], GROUNDER: [actions]}
                assert played_alone(world(), task, lines)[1].score == score
    scored = world().scored_tasks(2, 0)
    assert len({one.id.partition("/")[0] for one in scored}) == 2
    assert all(gold(one).steps and not gold(one).done for one in scored)
    plans = world("onetime")
    assert [one.id for one in plans.scored_tasks(2, 0)] == [
        one.id for one in plans.tasks("heldout", 2, 0)
    ]


def test_splits_share_no_wish_and_draws_continue() -> None:
    train, held = errands(200, "train", 0)[:150], errands(200, "heldout", 0)[:150]
    keys = [{canonical_key(one.wish) for one in rows} for rows in (train, held)]
    assert len(keys[0]) == len(keys[1]) == 150 and not keys[0] & keys[1]
    assert all(split_of_key(key) == "train" for key in keys[0])
    plans = world("onetime")
    first, more = plans.tasks("train", 10, 0), plans.tasks("train", 5, 0, [10])
    assert [one.id for one in (*first, *more)] == [one.id for one in plans.tasks("train", 15, 0)]
    assert plans.tasks("heldout", 3, 1)[0].public != plans.tasks("heldout", 3, 0)[0].public


@pytest.mark.parametrize("form", ["iterative", "onetime"])
def test_training_errands_begin_anew_with_other_steps(form: str) -> None:
    plans = world(form, items=50)
    whole, after = plans.tasks("train", 10**4, 0), plans.tasks("train", 3, 0, [10**4])
    assert len(whole) == len({task.id for task in whole})
    for new, old in zip(after, whole, strict=False):
        assert new.id.partition("/")[0] == old.id.partition("/")[0]
        assert (new.id == old.id) == (form == "onetime")
    assert plans.tasks("train", 10**4, 0, [10**4])[:3] == after
    assert plans.tasks("train", 4, 0, [len(whole) - 2]) == [*whole[-2:], *after[:2]]
