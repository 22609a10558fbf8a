"""Rows with plans: what they hold, what is refused, the sets that have them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coterie.datasets.catalogue import CATALOGUE, SPLITS
from coterie.datasets.files import read_rows
from coterie.datasets.load import Rows, dataset_type, row_type
from coterie.datasets.plans import PlanRow, PlanStep
from coterie.datasets.problems import number, value
from coterie.errors import UserError
from tests.row_files import jsonl

PLANS = [name for name, entry in CATALOGUE.items() if issubclass(entry.row, PlanRow)]
ROW: dict[str, Any] = {
    "id": "p1",
    "question": "Ann has 3 boxes of 4 pens and loses 2 pens. How many are left?",
    "answer": "10",
    "domain": "maths",
    "steps": [
        {"subgoal": "How many pens are there?", "actions": ["R1 = Calculator(3 * 4)"], "result": "12"},
        {"subgoal": "How many are left?", "actions": ["R2 = Calculator(R1 - 2)"], "result": "10"},
    ],
}  # fmt: skip


def row(**changes: Any) -> PlanRow:
    return PlanRow.model_validate(ROW | changes)


# Rows


def test_a_row_gives_its_plan_and_its_actions_in_order() -> None:
    one = row()
    assert one.subgoals == ("How many pens are there?", "How many are left?")
    assert one.actions == ("R1 = Calculator(3 * 4)", "R2 = Calculator(R1 - 2)")
    assert one.aligned and one.usable and one.description == ""
    assert PlanRow.model_validate_json(one.model_dump_json()) == one
    assert PlanStep(subgoal=" Open  the page ", actions=("R1 = A(b)",)).subgoal == "Open the page"


@pytest.mark.parametrize(
    "change, said",
    [
        ({"steps": []}, "at least 1"),
        ({"steps": [{"subgoal": "Find it", "actions": []}]}, "at least 1"),
        ({"steps": [{"subgoal": "Find\nit", "actions": ["R1 = A(b)"]}]}, "one line"),
        ({"steps": [{"subgoal": "Find it", "actions": [" "]}]}, "one line"),
        ({"domain": "cooking"}, "maths"),
        ({"question": " "}, "question"),
    ],
)
def test_a_row_that_says_nothing_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        row(**change)


def test_a_line_of_lumos_says_that_two_files_are_joined(tmp_path: Path) -> None:
    line = {"dataset": "maths", "id": "maths_0", "messages": []}
    with pytest.raises(UserError, match="one of Lumos' two files"):
        list(read_rows(jsonl(tmp_path / "plan.jsonl", line), PlanRow))


# Arithmetic


@pytest.mark.parametrize(
    "formula, expected",
    [
        ("48 / 2", "24"), ("(1 + 2) * 3 - -4", "13"), ("10 / 3 * 3", "10"), (".1 + 0.2", "0.3"),
        ("20% * 50", "10"), ("2 ** 10", "1024"), ("R1 * 05", "35"), ("+7", "7"),
    ],
)  # fmt: skip
def test_formulas_are_worked_out_without_rounding(formula: str, expected: str) -> None:
    seven = number("7")
    assert seven is not None
    assert value(formula, {"R1": seven}) == number(expected)


@pytest.mark.parametrize(
    "formula",
    ["R2 + 1", "1 / 0", "2 ** 9999", "f(3)", "3 +", "2 ** 0.5", "'a' * 3", "True", "1 < 2"],
)
def test_what_is_no_arithmetic_is_refused(formula: str) -> None:
    with pytest.raises(ValueError, match=r"formula|arithmetic|zero|power"):
        value(formula)


def test_numbers_are_read_with_their_signs() -> None:
    read = [number(text) for text in ("1,200", "$3.50", "1/3.", "-4", "four", "1/0", "")]
    assert [str(one) for one in read] == ["1200", "7/2", "1/3", "-4", "None", "None", "None"]


# Sets


@pytest.mark.parametrize("name", PLANS)
def test_sample_plans_have_answers_and_their_set_is_found_by_name(name: str) -> None:
    settings = dataset_type(name)(name=name, source="sample")  # type: ignore[call-arg]
    rows = Rows(settings)
    for split in SPLITS:
        for one in rows.split(split):
            assert isinstance(one, PlanRow) and one.answer
    assert issubclass(row_type(name), PlanRow)
