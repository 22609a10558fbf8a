"""Mathematics with Python: answers, feedback and examples; tasks with functions of a file."""

import json
from pathlib import Path

import pytest

from coterie.environments.acting import SOLVED, drop_shots
from coterie.environments.grading import same_mathematics, same_number
from coterie.environments.plans.python_maths import SUBJECTS, PythonMaths
from coterie.environments.qa_metrics import gold_answer
from coterie.record.tree import ANSWERED, TURNS, Ending, Task
from coterie.record.turn import Message
from coterie.rollout.episodes import first_prompts
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.run_python import act, answer, observed_texts, play_python


def maths(dataset: str = "gsm8k", *overrides: str) -> PythonMaths:
    settings = [f"environment.{pair}" for pair in overrides]
    environment = packaged_environment(dataset, "environment=python_maths", *settings)
    assert isinstance(environment, PythonMaths)
    return environment


def first_task(environment: PythonMaths) -> tuple[Task, str]:
    (task,) = environment.tasks("heldout", 1, 0)
    return task, gold_answer(task)


def test_an_agent_runs_cells_and_may_answer_again_until_it_is_right() -> None:
    environment = maths()
    task, gold = first_task(environment)
    state, grade = play_python(
        *(environment, task, act("x = 6 * 7"), act("x"), act("y"), answer(f"{gold}1"), answer(gold))
    )
    assert observed_texts(state)[0] == f"Problem: {task.public['question']}"
    assert observed_texts(state)[2] == "42" and "NameError" in observed_texts(state)[3]
    assert observed_texts(state)[4:] == [environment.wrong]
    assert state.end == SOLVED and state.answer == gold
    assert grade is not None and grade.score == 1.0
    assert grade.metrics == {
        "answers": 2, "cells": 3, "failed_cells": 1, "corrected": 1.0,
        "within_1": 0.0, "within_2": 1.0, "within_4": 1.0, "within_8": 1.0, "within_10": 1.0,
    }  # fmt: skip


def test_answers_are_used_up() -> None:
    """That is the environment's end, and not a limit's; messages that are used up are a limit."""
    environment = maths("gsm8k", "answers=3")
    task, gold = first_task(environment)
    wrong = [answer(f"{gold}{n}") for n in (1, 2, 3)]
    state, grade = play_python(environment, task, *wrong)
    assert state.end == Ending("answers") and not state.end.truncated
    assert grade is not None and (grade.score, grade.metrics["answers"]) == (0.0, 3)
    assert (grade.metrics["within_2"], grade.metrics["within_3"]) == (0.0, 0.0)
    assert grade.metrics["corrected"] == 0.0
    state, grade = play_python(maths("gsm8k", "steps=2"), task, *wrong[:2])
    assert state.end == TURNS and grade is not None and grade.score == 0.0


def test_with_neutral_feedback_right_and_wrong_answers_are_told_the_same() -> None:
    environment = maths("gsm8k", "feedback=neutral")
    task, gold = first_task(environment)
    changed, grade = play_python(environment, task, *map(answer, (f"{gold}1", gold, gold)))
    assert changed.end == ANSWERED and set(observed_texts(changed)[1:]) == {environment.check}
    assert grade is not None and grade.score == 1.0
    assert (grade.metrics["within_1"], grade.metrics["within_2"]) == (0.0, 1.0)
    assert grade.metrics["answers"] == 3
    spoilt, grade = play_python(environment, task, *map(answer, (gold, f"{gold}1", f"{gold}1.0")))
    assert spoilt.end == ANSWERED and observed_texts(spoilt) == observed_texts(changed)
    assert grade is not None and (grade.score, grade.metrics["within_1"]) == (0.0, 1.0)
    assert grade.metrics["within_10"] == 0.0, "a right answer that was given up is wrong"


def test_without_feedback_the_first_answer_is_final_and_nothing_is_said_of_it() -> None:
    environment = maths("gsm8k", "feedback=none")
    task, gold = first_task(environment)
    for text, score in ((rf"\boxed{{{gold}}}", 1.0), (f"{gold}1", 0.0)):
        state, grade = play_python(environment, task, answer(text))
        assert state.end == ANSWERED and len(observed_texts(state)) == 1
        assert grade is not None and grade.score == score
        assert ("corrected" in grade.metrics) == (score == 0.0), "a right answer needs none"


def test_the_right_answer_is_never_shown() -> None:
    """What is shown is the same for two tasks but for the question, whatever is answered."""
    environment = maths()
    texts = set()
    for task in environment.tasks("heldout", 2, 0):
        state, _ = play_python(environment, task, act("1"), answer("-77"), answer("-78"))
        text = "\n".join([environment.system_prompt(task), *observed_texts(state)])
        texts.add(text.replace(str(task.public["question"]), ""))
    assert len(texts) == 1


def test_answers_of_math_are_compared_as_mathematics_and_others_as_numbers() -> None:
    assert maths("gsm8k").subject.same is same_number
    assert maths("math").subject.same is same_mathematics
    assert maths("math", "subject=numbers").subject.same is same_number
    assert r"\frac" in maths("math").system_prompt(first_task(maths("math"))[0])


def test_examples_are_shown_before_the_problem_and_can_be_dropped() -> None:
    environment, plain = maths("math", "shots=2"), maths("math")
    task, _ = first_task(environment)
    shown, without = (first_prompts(one, task)["agent"].messages for one in (environment, plain))
    assert [one.role for one in shown] == [
        "system", *["user", "assistant"] * 4, "user",
    ]  # fmt: skip
    assert drop_shots(shown) == without
    assert "divisible by neither 3 nor 5" in shown[1].parts[0].text
    assert isinstance(shown[-1], Message) and shown[-1].turn is not None


FUNCTIONS = '''"""Tools of a shop."""
import math

STOCK = {"pens": 3, "cups": 4}
visits = []


def count_of(thing: str, *, more: int = 0) -> int:
    """Return how many there are.

    ``more`` are added.
    """
    visits.append(thing)
    return STOCK[thing] + more


def hidden():
    return 1


def call_count() -> int:
    """Return how often the stock was asked."""
    return len(visits)
'''


def tool_tasks(folder: Path, source: str = FUNCTIONS, *overrides: str) -> PythonMaths:
    (folder / "tools.py").write_text(source)
    rows = [{"question": f"What? {n}", "answer": "[3, 4.0, 'x']"} for n in range(20)]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = [f"environment.functions={folder / 'tools.py'}", *overrides]
    source = f"dataset.source={folder / 'tasks.jsonl'}"
    environment = packaged_environment("qa", source, "environment=python_maths", *settings)
    assert isinstance(environment, PythonMaths)
    return environment


def test_an_agent_calls_the_functions_of_a_file_also_after_its_session_was_lost(
    tmp_path: Path,
) -> None:
    environment = tool_tasks(tmp_path)
    task, _ = first_task(environment)
    cells = ("count_of('pens')", "import os; os._exit(0)", "count_of('cups', more=1), call_count()")
    state, grade = play_python(environment, task, *map(act, cells), answer("[3, 4, 'x']"))
    _, pens, lost, cups = observed_texts(state)
    assert (pens, cups) == ("3", "(5, 1)") and "begins anew" in lost
    assert state.end == SOLVED and grade is not None and grade.metrics["cells"] == 3
    prompt = environment.system_prompt(task)
    assert "count_of(thing: str, *, more: int=0): Return how many there are." in prompt
    assert "call_count(): " in prompt and "hidden" not in prompt
    assert "a value as Python writes it" in prompt


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ("5", "5.0", True), ("5", "5.1", False), ("abc", " abc ", True), ("abc", "'abc'", True), ("abc", "abd", False),
        ("12.3", "12.300000001", True), ("[1, 'a']", "(1.0, 'a')", True), ("[1, 2]", "[2, 1]", False),
        ("1-2", "1 - 2", False),
        ("{'A': 1}", "{'A': 1.0}", True), ("[1]", "1", False), ("True", "True", True),
        ("1", "{[1, 2]}", False), ("1", f"1{'0' * 400}", False),
    ],
)  # fmt: skip
def test_values_are_compared_as_python_reads_them(expected: str, given: str, same: bool) -> None:
    assert SUBJECTS["values"].same(expected, given) is same
