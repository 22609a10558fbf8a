"""Rows with plans: what they hold, what is refused, how the sets that have them are prepared and checked."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coterie.datasets.arithmetic import number, value
from coterie.datasets.catalogue import CATALOGUE, SPLITS, find
from coterie.datasets.finding import Rows, dataset_type, row_type
from coterie.datasets.local import load_rows
from coterie.datasets.plan_checks import findings
from coterie.datasets.plan_rows import PlanRow, PlanStep
from coterie.datasets.prepared import folder_of, read_manifest
from coterie.datasets.preparing import prepare
from coterie.datasets.problem_rows import SvampRow
from coterie.errors import UserError
from coterie.progress import Silent
from tests.conftest import Cli
from tests.test_data import SHARED, jsonl, real_rows

pytestmark = pytest.mark.usefixtures("own_home")

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


def with_actions(*actions: str, **changes: Any) -> PlanRow:
    return row(steps=[{"subgoal": "Find it", "actions": list(actions)}], **changes)


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
        load_rows("lumos_maths", "train", jsonl(tmp_path / "plan.jsonl", [line]))


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
def test_sample_plans_have_no_findings_and_their_set_is_found_by_name(name: str) -> None:
    settings = dataset_type(name)(name=name, source="sample")  # type: ignore[call-arg]
    rows = Rows(settings)
    for split in SPLITS:
        for one in rows.split(split):
            assert isinstance(one, PlanRow) and one.answer
            assert findings(one) == set()
    assert issubclass(row_type(name), PlanRow)


@pytest.mark.parametrize(
    "made, found",
    [
        (with_actions("R1 = Calculator(3 * 4 - 2)"), set()),
        (with_actions("R1 = Calculator(3 * 4)"), {"answer"}),
        (with_actions("R1 = Calculator(R2 + 1)"), {"undefined"}),
        (with_actions("R1 = Calculator(R1 + 1)"), {"undefined"}),
        (with_actions("R2 = Calculator(10)"), {"order"}),
        (with_actions("R1 = Ask(10)"), {"tool"}),
        (with_actions("twelve less two"), {"form"}),
        (with_actions("R1, R2 = SolveEquation(x)", "R3 = Calculator(R2)"), set()),
        (with_actions("R1 = Calculator(10)", aligned=False), {"unaligned"}),
        (with_actions("R1 = CLICK(Env, QUERY: Press R3-D4)", domain="web"), set()),
    ],
)
def test_findings_tell_what_is_wrong_with_actions(made: PlanRow, found: set[str]) -> None:
    assert findings(made) == found


def test_checking_a_set_of_plans_names_rows(tmp_path: Path, cli: Cli) -> None:
    rows = [ROW, ROW | {"id": "p2", "answer": "11", "question": "And now?"}]
    jsonl(tmp_path / "plans.jsonl", rows)
    said = cli("data", "check", "gsm8k_plans", "--source", "plans.jsonl")
    assert said.code == 0, said.err
    assert json.loads(said.out.splitlines()[-1])["files"][0]["findings"] == {"answer": [2]}
    assert "plans.jsonl: 2 rows, 1 with findings" in said.err
    assert cli("data", "check", "gsm8k", "--source", "sample").code == 2


def test_svamp_is_read_from_its_own_form() -> None:
    given = {
        "ID": "chal-1", "Body": "Each pack costs 76 dollars. If there is a discount of 25 dollars",
        "Question": "How much is a pack?", "Equation": "( 76.0 - 25.0 )", "Answer": 51.0, "Type": "Subtraction",
    }  # fmt: skip
    one = SvampRow.model_validate(given)
    assert one.question.endswith("If there is a discount of 25 dollars, how much is a pack?")
    assert (one.id, one.answer, value(one.equation)) == ("chal-1", "51", 51)
    assert SvampRow.model_validate(given | {"Answer": 2.5}).answer == "2.5"
    with pytest.raises(ValidationError, match="not a number"):
        SvampRow.model_validate(given | {"Answer": "many"})


@real_rows
def test_real_files_become_plans_and_what_is_dropped_is_counted() -> None:
    def made(name: str, *files: str) -> tuple[int, int, int]:
        target = folder_of(find(name))
        prepare(find(name), [SHARED / file for file in files], target, Silent())
        known = read_manifest(target)
        assert sum(known.reasons.values()) == known.train.dropped + known.heldout.dropped
        splits = {split: load_rows(name, split) for split in SPLITS}
        assert not {one.key for one in splits["train"]} & {one.key for one in splits["heldout"]}
        return known.train.rows, known.heldout.rows, known.train.dropped

    assert made("gsm8k_plans", "gsm8k/train_first2000.jsonl", "gsm8k/test.jsonl")[:2] == (1871, 917)
    train, held, dropped = made(
        "strategyqa_plans", "strategyqa/train_1656_with_decomposition.jsonl"
    )
    assert (train + held, dropped) == (1655, 1) and 120 < held < 210
    svamp = load_rows("svamp", "heldout", SHARED / "svamp/all_1000.json")
    assert len(svamp) == len({one.key for one in svamp}) == 1000
