"""Lumos' two files: read in each form, joined, and what is said of files that do not fit."""

from pathlib import Path
from typing import Any

import pytest

from coterie.datasets.catalogue import find
from coterie.datasets.load import Loaded, load
from coterie.datasets.plan_files import (
    NO_ACTIONS,
    NO_PARTNER,
    join,
    parse_request,
    split_actions,
    split_subgoals,
)
from coterie.datasets.plans import PlanRow
from coterie.datasets.rows import LeftOut
from coterie.errors import UserError
from tests.hub import stub_hub
from tests.row_files import jsonl

Line = dict[str, Any]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "plan.jsonl", tmp_path / "ground.jsonl"


def line(dataset: str, id_: str, *texts: str) -> Line:
    roles = ("user", "assistant")
    said = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"dataset": dataset, "id": id_, "messages": said}


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
WEB_PLAN = line(
    "web_agent",
    "web_agent_2",
    "Make a plan.\nTask: Buy a hat; Initial Environment Description: A shop's page.",
    "Subgoal 1: Type hat into the search field",
    "We have already type hat into the search field. Should we stop planning?",
    "Yes, I will stop planning.",
)
WEB_GROUND = line(
    "web_agent",
    "web_agent_2",
    "Use the tools.\nTask: Buy a hat \nSubgoal to be grounded: Subgoal 1: Type hat into the search field\n",
    "R1 = TYPE(Env, QUERY: Type hat into the search field, TEXT: hat)",
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
    jsonl(files[0], *plans)
    jsonl(files[1], *grounds)
    found = list(join(files))
    rows = [one for one in found if isinstance(one, PlanRow)]
    return rows, [one for one in found if isinstance(one, LeftOut)]


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


def test_a_web_row_has_its_last_action_as_answer_and_the_description(
    files: tuple[Path, Path],
) -> None:
    [row], _ = joined(files, [WEB_PLAN], [WEB_GROUND])
    assert (row.domain, row.description, row.steps[0].result) == ("web", "A shop's page", "")
    assert row.answer == "R1 = TYPE(Env, QUERY: Type hat into the search field, TEXT: hat)"


def test_a_line_for_each_step_gives_the_same_rows(files: tuple[Path, Path]) -> None:
    whole = joined(files, [PLAN], [GROUND])
    assert joined(files, unrolled(PLAN), unrolled(GROUND)) == whole and len(whole[0]) == 1


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
    assert split_subgoals("Subgoal 4: a. Subgoal 5: b", first=4) == ["a.", "b"]
    two = ["R1, R2 = Solve(a; b)", "R3 = A(c)"]
    assert split_actions("R1, R2 = Solve(a; b); R3 = A(c);") == two
    assert split_actions("R8 = A(b); Output = R8 = 4") == ["R8 = A(b)", "R9 = R8 = 4"]
    for bad in (
        "Find it",
        "Subgoal 2: b",
        "Subgoal 1: a; Subgoal 3: c",
        "Subgoal 1: ; Subgoal 2: b",
    ):
        with pytest.raises(ValueError, match=r"Subgoal|subgoal"):
            split_subgoals(bad)
    with pytest.raises(ValueError, match="Task"):
        parse_request("Do something")


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
        ([PLAN, PLAN | {"dataset": "cooking"}], [GROUND], "dataset: must be maths"),
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


def many(count: int) -> tuple[list[Line], list[Line]]:
    """As many tasks step by step, and every tenth without actions."""
    plans, grounds = [], []
    for n in range(count):
        plan = changed(PLAN, 0, f"Task: Is {n} more?; Initial Environment Description: None.")
        first = GROUND["messages"][0]["content"].replace("Is Ann older than Bob?", f"Is {n} more?")
        ground = changed(GROUND, 0, first)
        plans.append(plan | {"id": f"complex_qa_{n}"})
        grounds.append((ground if n % 10 else changed(ground, 1, "")) | {"id": f"complex_qa_{n}"})
    return plans, grounds


def check_loaded(found: Loaded, count: int) -> None:
    assert found.left_out == {NO_ACTIONS: count // 10, NO_PARTNER: count // 10}
    train, held = found.rows["train"], found.rows["heldout"]
    assert len(train) + len(held) == count - count // 10 and 0.05 * count < len(held) < 0.16 * count
    assert not {row.key for row in train} & {row.key for row in held}


def test_a_set_of_a_folder_or_two_repositories_is_joined_and_a_tenth_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repos = find("lumos_complex_qa").repos
    made = [
        jsonl(tmp_path / "own" / one.train[0], *lines)
        for one, lines in zip(repos, many(300), strict=True)
    ]
    check_loaded(load("lumos_complex_qa", tmp_path / "own"), 300)
    assert len(load("lumos_complex_qa", tmp_path / "own", 0.5).rows["heldout"]) > 100
    served = {
        f"{one.name}/resolve/{one.revision}/{one.train[0]}": file.read_bytes()
        for one, file in zip(repos, made, strict=True)
    }
    with stub_hub(served, tmp_path / "cache", monkeypatch):
        check_loaded(load("lumos_complex_qa"), 300)
