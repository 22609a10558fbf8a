"""Files with plans: Lumos' two files, joined, and Mind2Web's tasks, with the grades of their actions."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from coterie.datasets.catalogue import find
from coterie.datasets.load import load_rows
from coterie.datasets.plan_files import (
    DEPTH,
    MAX_TEXT,
    MOST,
    NO_ACTIONS,
    NO_PARTNER,
    Mind2WebRow,
    elements,
    join,
    parse_request,
    split_actions,
    split_subgoals,
    texts_of,
)
from coterie.datasets.plans import PlanRow
from coterie.datasets.rows import LeftOut
from coterie.environments.plans.domains import ELEMENTS
from coterie.environments.plans.plan_ground import GROUNDER, PLANNER, PlanGround, gold
from coterie.environments.protocol import WELL_FORMED, Grade, State
from coterie.errors import UserError
from coterie.record.tree import Task
from tests.environments.plans.test_plan_ground import played_alone, seen
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.serve_hub import stub_hub
from tests.helpers.web_tasks import PAGE, action, candidate, web_task, write_tasks
from tests.helpers.write_rows import write_jsonl

Line = dict[str, Any]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "plan.jsonl", tmp_path / "ground.jsonl"


def line(dataset: str, id_: str, *texts: str) -> Line:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"dataset": dataset, "id": id_, "messages": messages}


# Lines as upstream writes them, but for the words of the instruction


def plan_at_once(task: str, id_: str, *planned: str) -> Line:
    numbered = "; ".join(f"Subgoal {n}: {one}" for n, one in enumerate(planned, 1))
    first = f"Make a plan.\nTask: {task}; Initial Environment Description: None."
    return line("maths", id_, first, numbered)


def ground_at_once(task: str, id_: str, calls: str, *planned: str) -> Line:
    numbered = "; ".join(f"Subgoal {n}: {one}" for n, one in enumerate(planned, 1))
    first = f"Use the tools, such as A(b).\n\nTask: {task} \nSubgoals to be grounded: {numbered}\n"
    return line("maths", id_, first, calls)


PLAN = line(
    "complex_qa",
    "complex_qa_7",
    "Make a plan.\nTask: Is Ann older than Bob?; Initial Environment Description: None.",
    "Subgoal 1: Find Ann's age; her birthday will do",
    "The executed result for Subgoal 1 is 31. Should we stop planning?",
    "No, I will keep planning. Subgoal 2: Find Bob's age",
    "The executed result for Subgoal 2 is 30.5. Should we stop planning?",
    "No, I will keep planning. Subgoal 3: Is Subgoal 1: more than the other?",
    "The executed result for Subgoal 3 is True. Should we stop planning?",
    "Yes, I will stop planning.",
)
GROUND = line(
    "complex_qa",
    "complex_qa_7",
    "Use the tools.\nTask: Is Ann older than Bob? \n"
    "Subgoal to be grounded: Subgoal 1: Find Ann's age; her birthday will do\n",
    "R1 = KnowledgeQuery(Ann); R2 = ParagraphRetrieve(R1, Query: age; birthday); R3 = QA([R2], Question: age?)",
    "Subgoal to be grounded: Subgoal 2: Find Bob's age The grounding could be based on the "
    "following results: The execution result for Subgoal 1 is 31\n",
    "R4 = KnowledgeQuery(Bob); R5 = QA([R4], Question: age?)",
    "Subgoal to be grounded: Subgoal 3: Is Subgoal 1: more than the other? And more words\n",
    "Output = QA([R3, R5], Question: Is R3 more than R5?)",
)


def unrolled(whole: Line) -> list[Line]:
    """Each turn of the assistant as a line, with the dialogue up to it."""
    messages = whole["messages"]
    return [
        whole | {"id": f"{whole['id']}_{step}", "messages": messages[: 2 * step + 2]}
        for step in range(len(messages) // 2)
    ]


def joined(
    files: tuple[Path, Path], plans: list[Line], grounds: list[Line]
) -> tuple[list[PlanRow], list[LeftOut]]:
    write_jsonl(files[0], *plans)
    write_jsonl(files[1], *grounds)
    items = list(join(files))
    rows = [one for one in items if isinstance(one, PlanRow)]
    return rows, [one for one in items if isinstance(one, LeftOut)]


# Reading


def test_a_dialogue_step_by_step_gives_subgoals_actions_and_results(
    files: tuple[Path, Path],
) -> None:
    [row], _ = joined(files, [PLAN], [GROUND])
    assert (row.id, row.question, row.domain, row.description) == (
        "complex_qa_7", "Is Ann older than Bob?", "complex_qa", "",
    )  # fmt: skip
    assert row.subgoals == (
        "Find Ann's age; her birthday will do", "Find Bob's age", "Is Subgoal 1: more than the other?",
    )  # fmt: skip
    assert [len(step.actions) for step in row.steps] == [3, 2, 1]
    assert row.actions[1] == "R2 = ParagraphRetrieve(R1, Query: age; birthday)"
    assert row.actions[-1] == "R6 = QA([R3, R5], Question: Is R3 more than R5?)"
    assert [step.result for step in row.steps] == ["31", "30.5", "True"]
    assert row.answer == "True" and row.aligned


def test_a_line_for_each_step_gives_the_same_rows_and_a_web_row_its_last_action(
    files: tuple[Path, Path],
) -> None:
    rows, _ = joined(files, [PLAN], [GROUND])
    assert joined(files, unrolled(PLAN), unrolled(GROUND))[0] == rows
    web = {"dataset": "web_agent"}
    task = "Task: Is Ann older than Bob?; Initial Environment Description: A shop's page."
    [row], _ = joined(files, [changed(PLAN, 0, task) | web], [GROUND | web])
    assert (row.domain, row.description, row.answer) == ("web", "A shop's page", row.actions[-1])


@pytest.mark.parametrize(
    "calls, sizes, aligned",
    [
        ("R1 = Calculator(2); R2 = Calculator(R1)", [1, 1], True),
        ("R1 = SetEquation(x=2); R2 = SolveEquation(R1); Output = Calculator(R2)", [2, 1], True),
        ("R1 = Calculator(1); R2 = Calculator(2); R3 = Calculator(3)", [1, 2], False),
        ("R1 = Calculator(1); R2 = Calculator(2); R3 = Define(x)", [1, 2], False),
    ],
)
def test_actions_given_at_once_are_dealt_to_the_subgoals(
    calls: str, sizes: list[int], aligned: bool, files: tuple[Path, Path]
) -> None:
    task, planned = "Add: 2 and 2", ("Do this; now", "Do that")
    plan, ground = plan_at_once(task, "m_1", *planned), ground_at_once(task, "m_1", calls, *planned)
    [row], _ = joined(files, [plan], [ground])
    assert [len(step.actions) for step in row.steps] == sizes
    assert (row.aligned, row.answer, row.question) == (aligned, "", task)
    assert row.subgoals == planned


def test_texts_are_taken_apart_whatever_the_instruction_says() -> None:
    assert parse_request("Task: A") == ("A", "", "")
    text = "Solve the Task: below.\nTask: Is it\nso?; Initial Environment Description: A b."
    assert parse_request(text) == ("Is it\nso?", "A b", "")
    quoted = "Subgoal 1: Use Subgoal 2: or not; Subgoal 3: x"
    assert split_subgoals(quoted) == ["Use", "or not", "x"]
    assert split_subgoals("Subgoal 4: a. Subgoal 5: b", first_number=4) == ["a.", "b"]
    two = ["R1, R2 = Solve(a; b)", "R3 = A(c)"]
    assert split_actions("R1, R2 = Solve(a; b); R3 = A(c);") == two
    assert split_actions("R8 = A(b); Output = R8 = 4") == ["R8 = A(b)", "R9 = R8 = 4"]
    for bad in ("Subgoal 1: a; Subgoal 3: c", "Subgoal 1: ; Subgoal 2: b"):
        with pytest.raises(ValueError, match=r"Subgoal|subgoal"):
            split_subgoals(bad)


# Joining


@pytest.mark.parametrize(
    "plans, grounds, questions, left",
    [
        ([(0, "a?"), (1, "b?")], [(1, "b?"), (0, "a?")], ["a?", "b?"], []),
        # the second row was left out before the numbers were given
        (list(enumerate("abcd")), list(enumerate("acd")), ["a", "c", "d"], ["maths_1"]),
        ([(n, "same?") for n in range(4)], [(n, "same?") for n in (1, 2, 8, 9)], ["same?"] * 2,
         ["maths_0", "maths_3", "maths_8", "maths_9"]),
    ],
)  # fmt: skip
def test_lines_join_by_id_and_else_by_a_task_that_is_there_once(
    plans: Any, grounds: Any, questions: list[str], left: list[str], files: tuple[Path, Path]
) -> None:
    rows, left_out = joined(
        files,
        [plan_at_once(task, f"maths_{n}", "Do it") for n, task in plans],
        [ground_at_once(task, f"maths_{n}", f"R1 = A({task})", "Do it") for n, task in grounds],
    )
    assert [row.question for row in rows] == questions
    assert [row.actions for row in rows] == [(f"R1 = A({task})",) for task in questions]
    assert [one.where for one in left_out] == left
    assert {one.reason for one in left_out} <= {NO_PARTNER}


def without(whole: Line, *places: int) -> Line:
    kept = [one for place, one in enumerate(whole["messages"]) if place not in places]
    return whole | {"messages": kept}


def changed(whole: Line, place: int, text: str) -> Line:
    messages = [dict(one) for one in whole["messages"]]
    messages[place]["content"] = text
    return whole | {"messages": messages}


@pytest.mark.parametrize(
    "plan, ground, reason",
    [
        ([PLAN], [changed(GROUND, 3, " ")], NO_ACTIONS),
        ([PLAN], [without(GROUND, 4, 5)], "number of subgoals"),
        ([without(PLAN, 7)], [GROUND], "alternating turns"),
        ([without(PLAN, 6, 7)], [GROUND], "without an end"),
        ([changed(PLAN, 3, "No, I will keep planning. Subgoal 2: Find Al")], [GROUND], "differs in its subgoals"),
        ([changed(PLAN, 3, "No, I will keep planning. Subgoal 3: Find Al")], [GROUND], "begin with 'Subgoal 2:'"),
        ([changed(PLAN, 0, "Do something")], [GROUND], "has no 'Task:'"),
        ([PLAN, PLAN, PLAN], [GROUND], "duplicate id"),
        ([plan_at_once("a?", "m", "One", "Two")], [ground_at_once("a?", "m", "R1 = A(b)", "One", "Two")], NO_ACTIONS),
        ([PLAN], [PLAN], "2 plan files and 0 ground files are given (plan.jsonl"),
        ([PLAN, {**PLAN, "id": ""}], [GROUND], "plan.jsonl, line 2 is broken: id"),
        ([PLAN, PLAN | {"messages": PLAN["messages"][:1]}], [GROUND], "at least 2"),
        ([PLAN, PLAN | {"dataset": "cooking"}], [GROUND], "dataset: Input should be 'maths'"),
        ([plan_at_once(f"{n}?", f"m_{n}", "Do it") for n in range(9)],
         [ground_at_once(f"{n}?", f"m_{n}", "R1 = A(b)", "Do it") for n in range(2)],
         f"only 2 rows can be made of plan.jsonl and ground.jsonl; 7 lines make none: m_2 {NO_PARTNER}"),
    ],
)  # fmt: skip
def test_lines_that_make_no_row_say_why(
    plan: list[Line], ground: list[Line], reason: str, files: tuple[Path, Path]
) -> None:
    with pytest.raises(UserError) as error:
        joined(files, plan, ground)
    assert reason in error.value.what


# The sets by name


def test_a_set_of_a_folder_or_two_repositories_is_joined_and_a_tenth_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[Line]] = [[], []]
    for n in range(300):
        plan = changed(PLAN, 0, f"Task: Is {n} more?; Initial Environment Description: None.")
        first = GROUND["messages"][0]["content"].replace("Is Ann older than Bob?", f"Is {n} more?")
        ground = changed(GROUND, 0, first)
        both = plan, ground if n % 10 else changed(ground, 1, "")
        for some, whole in zip(lines, both, strict=True):
            some.append(whole | {"id": f"complex_qa_{n}"})
    repos = find("lumos_complex_qa").repos
    served = {
        f"{one.name}/resolve/{one.revision}/{one.train[0]}": write_jsonl(
            tmp_path / "own" / one.train[0], *some
        ).read_bytes()
        for one, some in zip(repos, lines, strict=True)
    }
    with stub_hub(served, tmp_path / "cache", monkeypatch):
        downloaded = load_rows("lumos_complex_qa")
    assert load_rows("lumos_complex_qa", tmp_path / "own") == downloaded
    assert downloaded.left_out == {NO_ACTIONS: 30, NO_PARTNER: 30}
    train, heldout = downloaded.rows["train"], downloaded.rows["heldout"]
    assert len(train) + len(heldout) == 270 and 15 < len(heldout) < 48
    assert not {row.key for row in train} & {row.key for row in heldout}
    assert len(load_rows("lumos_complex_qa", tmp_path / "own", 0.5).rows["heldout"]) > 100


def row(**changes: Any) -> Mind2WebRow:
    return Mind2WebRow.model_validate({**web_task(0), **changes})


def world(folder: Path, *overrides: str) -> PlanGround:
    file = write_tasks(folder / "tasks.jsonl")
    environment = packaged_environment("mind2web", f"dataset.source={file}", *overrides)
    assert isinstance(environment, PlanGround)
    return environment


def done(where: PlanGround, what: Task, actions: str) -> Grade:
    return played_alone(where, what, {PLANNER: [gold(what).plan], GROUNDER: [actions]})[1]


def test_a_task_becomes_a_plan_of_a_subgoal_and_an_action_for_each_step() -> None:
    plan = row()
    assert plan.question == "Search plants called roses 0 in a large pot"
    assert (plan.description, plan.domain, plan.flaw) == ("a page of garden", "web", "")
    assert plan.subgoals == (
        "Type roses (red) into the input Search plants",
        "Select large in the select Size of pot",
        "Click the button Find plants",
    )
    assert plan.actions == (
        "R1 = TYPE(Env, QUERY: Search plants, TEXT: roses (red))",
        "R2 = SELECT(R1, QUERY: Size of pot, TEXT: large)",
        "R3 = CLICK(R2, QUERY: Find plants)",
    )
    pages = [step.pages[0] for step in plan.steps]
    assert [(page.right, page.kind, page.value) for page in pages] == [
        ({"10"}, "TYPE", "roses (red)"), ({"111"}, "SELECT", "large"), ({"214"}, "CLICK", ""),
    ]  # fmt: skip
    texts = {element.id: (element.tag, element.text) for element in pages[0].elements}
    assert texts["14"] == ("button", "Find plants")
    assert texts["10"] == ("input", "Search plants")
    assert texts["11"] == ("select", "Size of pot small large")


def test_texts_of_nodes_are_read_from_any_page_in_no_time() -> None:
    texts = texts_of(PAGE)
    assert texts["4"] == "What are you looking for?"
    assert texts["17"] == "Basket" and texts["16"] == "Opening hours"
    assert "Basket" not in texts["3"] and texts["3"].endswith("Find plants")
    code = "<div backend_node_id=1>Buy<script>let x = 1</script><style>p {}</style> now</div>"
    assert texts_of(code) == {"1": "Buy now"}
    began = time.process_time()
    deep = texts_of("".join(f"<div backend_node_id={n}>word" for n in range(20_000)))
    assert len(deep) == DEPTH and len(deep["0"]) < 2 * MAX_TEXT
    first = "<p backend_node_id=1>first"
    assert texts_of(f"{first}{'<div>' * 20_000}{'</i>' * 20_000}</p>") == {"1": "first"}
    assert time.process_time() - began < 10
    assert texts_of(f"{first}</p><![strange[<p>second</p>") == {"1": "first"}


def test_candidates_are_ordered_by_rank_score_or_words_and_never_by_which_one_is_right() -> None:
    ranks = {10: 4, 11: 3, 14: 2, 16: 0, 17: 1}
    steps = [action(14, "CLICK", ranks=ranks)]
    ranked = row(action_reprs=web_task(0)["action_reprs"][2:], actions=steps).steps[0].pages[0]
    assert [element.id for element in ranked.elements] == ["16", "17", "14", "11", "10"]
    plain = row().steps[0].pages[0]
    assert {element.id for element in plain.elements[:2]} == {"10", "11"}, "three words, two words"

    def ids(raw: Iterable[dict[str, Any]]) -> list[str]:
        return [element.id for element in elements(raw, "", "task")]

    many = [{**candidate(n, "a", text="same"), "attributes": {}} for n in range(200)]
    assert ids([{**many[0], "score": "0.1"}, {**many[1], "score": 0.9}]) == ["1", "0"]
    assert len(ids(many)) == MOST and ids(many)[:5] != ["0", "1", "2", "3", "4"]
    assert ids(many) == ids(reversed(many))


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
    for form, count in (("iterative", 6), ("onetime", 2)):
        where = world(tmp_path, f"environment.form={form}")
        tasks = where.tasks("heldout", 100, 0)
        assert len(tasks) == count, "steps, or tasks"
        for what in tasks:
            grade = done(where, what, gold(what).actions)
            names = ("element", "operation", "on_page", WELL_FORMED)
            assert [grade.metrics[name] for name in names] == [1.0] * 4
            assert grade.score == 1.0


def step(where: PlanGround, number: int) -> Task:
    return next(one for one in where.tasks("heldout", 100, 0) if one.id.endswith(f"/{number}"))


def test_a_step_counts_with_element_and_operation(tmp_path: Path) -> None:
    where = world(tmp_path)
    assert (where.form, where.metric) == ("iterative", "step success")
    for actions, element, operation in (
        ("R2 = SELECT(R1, QUERY: size of the pot, TEXT: Large)", 1.0, 1.0),
        ("R2 = SELECT(R1, QUERY: size of the pot, TEXT: small)", 1.0, 0.0),
        ("R2 = TYPE(R1, QUERY: size of the pot, TEXT: large)", 1.0, 0.0),
        ("R2 = SELECT(R1, QUERY: opening hours, TEXT: large)", 0.0, 1.0),
        ("R2 = CLICK(R1, QUERY: zzz)", 0.0, 0.0),
        ("I would choose the large one", 0.0, 0.0),
    ):
        grade = done(where, step(where, 2), actions)
        assert (grade.metrics["element"], grade.metrics["operation"]) == (element, operation)
        assert grade.score == element * operation


def test_at_once_each_action_is_done_on_its_own_page_and_failures_stop_none(tmp_path: Path) -> None:
    where = world(tmp_path, "environment.form=onetime")
    what = where.tasks("heldout", 1, 0)[0]
    lines = "R1 = CLICK(Env, QUERY: zzz); R2 = SELECT(R1, QUERY: size of pot, TEXT: large)"
    grade = done(where, what, lines)
    assert [grade.score, grade.metrics["operation"]] == [pytest.approx(1 / 3)] * 2
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
    where = packaged_environment("lumos_web")
    assert isinstance(where, PlanGround)
    what = where.tasks("heldout", 1, 0)[0]
    grade = done(where, what, gold(what).actions)
    assert grade.score is None and grade.metrics[WELL_FORMED] == 1.0
    assert where.ungraded is not None and "no page elements" in where.ungraded.what
