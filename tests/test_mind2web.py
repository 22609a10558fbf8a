"""Mind2Web's tasks: how rows are made of them, how actions are graded on their pages, and how they are evaluated."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from coterie.datasets.plan_files import DEPTH, MAX_TEXT, MOST, Mind2WebRow, elements, texts_of
from coterie.environments.plan_domains import ELEMENTS
from coterie.environments.plan_ground import GROUNDER, PLANNER, PlanGround, gold
from coterie.environments.protocol import WELL_FORMED, Grade, State
from coterie.errors import UserError
from coterie.record.tree import Task
from tests.conftest import Cli, refused
from tests.played import environment_of
from tests.test_plan_ground import played, seen
from tests.web_tasks import CANDIDATES, PAGE, action, one, task, write


def row(**changes: Any) -> Mind2WebRow:
    return Mind2WebRow.model_validate({**task(0), **changes})


def world(folder: Path, *words: str) -> PlanGround:
    file = write(folder / "tasks.jsonl")
    found = environment_of("mind2web", f"dataset.source={file}", *words)
    assert isinstance(found, PlanGround)
    return found


def done(where: PlanGround, what: Task, actions: str) -> Grade:
    return played(where, what, {PLANNER: [gold(what).plan], GROUNDER: [actions]})[1]


def test_a_task_becomes_a_plan_of_a_subgoal_and_an_action_for_each_step() -> None:
    found = row()
    assert found.question == "Search plants called roses 0 in a large pot"
    assert (found.description, found.domain, found.flaw) == ("a page of garden", "web", "")
    assert found.subgoals == (
        "Type roses (red) into the input Search plants",
        "Select large in the select Size of pot",
        "Click the button Find plants",
    )
    assert found.actions == (
        "R1 = TYPE(Env, QUERY: Search plants, TEXT: roses (red))",
        "R2 = SELECT(R1, QUERY: Size of pot, TEXT: large)",
        "R3 = CLICK(R2, QUERY: Find plants)",
    )
    pages = [step.pages[0] for step in found.steps]
    assert [(page.right, page.kind, page.value) for page in pages] == [
        ({"10"}, "TYPE", "roses (red)"), ({"111"}, "SELECT", "large"), ({"214"}, "CLICK", ""),
    ]  # fmt: skip
    texts = {element.id: (element.tag, element.text) for element in pages[0].elements}
    assert texts["14"] == ("button", "Find plants")
    assert texts["10"] == ("input", "Search plants")
    assert texts["11"] == ("select", "Size of pot small large")


def test_what_a_node_says_is_that_of_all_in_it_and_of_nothing_after_it() -> None:
    texts = texts_of(PAGE)
    assert texts["4"] == "What are you looking for?"
    assert texts["17"] == "Basket" and texts["16"] == "Opening hours"
    assert "Basket" not in texts["3"] and texts["3"].endswith("Find plants")
    code = "<div backend_node_id=1>Buy<script>let x = 1</script><style>p {}</style> now</div>"
    assert texts_of(code) == {"1": "Buy now"}


def test_pages_that_explode_or_break_off_are_read_in_no_time() -> None:
    began = time.process_time()
    deep = texts_of("".join(f"<div backend_node_id={n}>word" for n in range(20_000)))
    assert len(deep) == DEPTH and len(deep["0"]) < 2 * MAX_TEXT
    assert texts_of(f"<p backend_node_id=1>first{'<div>' * 20_000}{'</i>' * 20_000}</p>") == {
        "1": "first"
    }
    assert time.process_time() - began < 10
    assert texts_of("<p backend_node_id=1>first</p><![strange[<p>second</p>") == {"1": "first"}


def test_candidates_stand_by_their_ranks_and_without_them_by_words_in_common() -> None:
    ranks = {10: 4, 11: 3, 14: 2, 16: 0, 17: 1}
    steps = [action(14, "CLICK", ranks=ranks)]
    ranked = row(action_reprs=task(0)["action_reprs"][2:], actions=steps).steps[0].pages[0]
    assert [element.id for element in ranked.elements] == ["16", "17", "14", "11", "10"]
    plain = row().steps[0].pages[0]
    assert {element.id for element in plain.elements[:2]} == {"10", "11"}, "three words, two words"
    scored = [
        {**one(n, "a"), "attributes": {}, "score": s, "text": "x"}
        for n, s in ((1, "0.1"), (2, 0.9))
    ]
    assert [element.id for element in elements(scored, "", "")] == ["2", "1"]


def test_the_order_of_candidates_does_not_tell_which_one_is_right() -> None:
    many = [{**one(n, "a", text="same"), "attributes": {}} for n in range(200)]
    found = [element.id for element in elements(many, "", "task")]
    assert len(found) == MOST and found[:5] != ["0", "1", "2", "3", "4"]
    assert found == [element.id for element in elements(reversed(many), "", "task")]


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({"action_reprs": ["[a]  x -> CLICK"]}, "different numbers"),
        ({"actions": [{**action(10, "TYPE", "x"), "operation": {"op": "HOVER"}}],
          "action_reprs": ["[a]  x -> HOVER"]}, "other than CLICK"),
        ({"actions": [action(10, "TYPE", "; ")], "action_reprs": ["[a]  x -> TYPE: ; "]}, "without the text"),
        ({"actions": [], "action_reprs": []}, "has no plan"),
    ],
)  # fmt: skip
def test_tasks_whose_actions_are_not_known_are_left_out(changes: Any, flaw: str) -> None:
    assert flaw in row(**changes).flaw


def test_right_actions_are_worth_1_step_by_step_and_at_once(tmp_path: Path) -> None:
    for form in ("iterative", "onetime"):
        where = world(tmp_path, f"environment.form={form}")
        tasks = where.tasks("heldout", 100, 0)
        assert len(tasks) == (6 if form == "iterative" else 2), "steps, or tasks"
        for what in tasks:
            grade = done(where, what, gold(what).actions)
            expected = {"element": 1.0, "operation": 1.0, "on_page": 1.0, WELL_FORMED: 1.0}
            assert {name: grade.metrics[name] for name in expected} == expected
            assert grade.score == 1.0


def step(where: PlanGround, number: int) -> Task:
    return next(one for one in where.tasks("heldout", 100, 0) if one.id.endswith(f"/{number}"))


@pytest.mark.parametrize(
    ("actions", "element", "operation"),
    [
        ("R2 = SELECT(R1, QUERY: size of the pot, TEXT: Large)", 1.0, 1.0),
        ("R2 = SELECT(R1, QUERY: size of the pot, TEXT: small)", 1.0, 0.0),
        ("R2 = TYPE(R1, QUERY: size of the pot, TEXT: large)", 1.0, 0.0),
        ("R2 = SELECT(R1, QUERY: opening hours, TEXT: large)", 0.0, 1.0),
        ("R2 = CLICK(R1, QUERY: zzz)", 0.0, 0.0),
        ("I would choose the large one", 0.0, 0.0),
    ],
)
def test_a_step_counts_with_element_and_operation(
    tmp_path: Path, actions: str, element: float, operation: float
) -> None:
    where = world(tmp_path)
    assert (where.form, where.metric) == ("iterative", "step success")
    grade = done(where, step(where, 2), actions)
    assert (grade.metrics["element"], grade.metrics["operation"]) == (element, operation)
    assert grade.score == element * operation


def test_at_once_each_action_is_done_on_its_own_page_and_failures_stop_none(tmp_path: Path) -> None:
    where = world(tmp_path, "environment.form=onetime")
    what = where.tasks("heldout", 1, 0)[0]
    lines = "R1 = CLICK(Env, QUERY: zzz); R2 = SELECT(R1, QUERY: size of pot, TEXT: large)"
    grade = done(where, what, lines)
    assert grade.score == pytest.approx(1 / 3) and grade.metrics["operation"] == pytest.approx(
        1 / 3
    )
    grade = done(where, what, f"{lines}; R3 = CLICK(R2, QUERY: find plants)")
    assert grade.score == pytest.approx(2 / 3)


def test_nobody_is_shown_the_elements_and_what_is_right_is_a_secret(tmp_path: Path) -> None:
    where = world(tmp_path)
    what = step(where, 2)
    assert list(what.public[ELEMENTS]) == ["2"], "the page of this step alone"
    assert "right" not in str(what.public)
    for actor in (PLANNER, GROUNDER):
        shown = seen(where, State(what, 0), actor)
        assert not any("Opening hours" in text for _, text in shown)
    assert ("user", "Subgoal 1 is done.") in seen(where, State(what, 0), PLANNER)


def test_rows_without_elements_are_played_and_have_no_score() -> None:
    where = environment_of("lumos_web")
    assert isinstance(where, PlanGround)
    what = where.tasks("heldout", 1, 0)[0]
    grade = done(where, what, gold(what).actions)
    assert grade.score is None and grade.metrics[WELL_FORMED] == 1.0
    assert where.ungraded is not None and "no page elements" in where.ungraded.what


def test_files_that_cannot_be_used_are_refused(cli: Cli, tmp_path: Path) -> None:
    words = ("evaluate", "mind2web", "policy=tiny-exchange")
    assert "dataset=mind2web needs a file" in refused(cli, *words)
    broken = tmp_path / "broken.jsonl"
    for lines, says in (
        ({"confirmed_task": "x", "action_reprs": 3, "actions": []}, "broken.jsonl, line 1"),
        ({**task(0), "actions": [{**action(10, "CLICK"), "pos_candidates": [{"tag": "a"}]}],
          "action_reprs": ["[a]  x -> CLICK"]}, "no backend_node_id"),
        ({**task(0), "action_reprs": []}, "no task with known actions"),
        (task(0), "too few questions"),
    ):  # fmt: skip
        broken.write_text(json.dumps(lines) + "\n")
        assert says in refused(cli, *words, f"dataset.source={broken}")
    with pytest.raises(UserError, match="pages to search"):
        world(tmp_path, "environment.corpus=nowhere")
    assert len(CANDIDATES) == 5
