"""Rows with plans, and plans made of solutions (GSM8K) and of questions taken apart (StrategyQA)."""

from fractions import Fraction
from typing import Any

import pytest

from coterie.datasets.plans import (
    BRACKETS,
    BROKEN,
    FORWARD,
    NO_PARTS,
    NO_STEPS,
    OTHER_ANSWER,
    Gsm8kPlanRow,
    PlanRow,
    PlanStep,
    StrategyPlanRow,
)
from coterie.datasets.problems import number, value

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
    assert one.aligned and not one.flaw and one.description == ""
    assert PlanRow.model_validate_json(one.model_dump_json()) == one
    assert PlanStep(subgoal=" Open  the page ", actions=("R1 = A(b)",)).subgoal == "Open the page"


# Arithmetic


def test_formulas_are_worked_out_without_rounding_and_other_text_is_refused() -> None:
    read = [number(text) for text in ("1,200", "$3.50", "1/3.", "-4", "four", "1/0", "")]
    assert [str(one) for one in read] == ["1200", "7/2", "1/3", "-4", "None", "None", "None"]
    for formula, expected in (
        ("(1 + 2) * 3 - -4", "13"), ("10 / 3 * 3", "10"), (".1 + 0.2", "0.3"), ("20% * 50", "10"),
        ("2 ** 10", "1024"), ("R1 * 05", "-20"), ("+7", "7"),
    ):  # fmt: skip
        assert value(formula, {"R1": read[3] or Fraction(0)}) == number(expected)
    for bad in (
        "R2 + 1",
        "1 / 0",
        "2 ** 9999",
        "f(3)",
        "3 +",
        "2 ** 0.5",
        "'a' * 3",
        "True",
        "1 < 2",
    ):
        with pytest.raises(ValueError, match=r"formula|arithmetic|zero|power"):
            value(bad)


def solved(answer: str, question: str = "How many are there?") -> Gsm8kPlanRow:
    """A row made of upstream's answer: solution lines and the number after ``####``."""
    return Gsm8kPlanRow.model_validate({"question": question, "answer": answer})


def parts(*decomposition: str, **fields: Any) -> StrategyPlanRow:
    raw = {"qid": "q", "question": "Is it so?", "answer": True, "decomposition": decomposition}
    return StrategyPlanRow.model_validate(raw | fields)


def run(row: PlanRow) -> str:
    """What the last action gives, by an evaluator of fractions that knows nothing of the converter."""
    results: dict[str, Any] = {}
    last = ""
    for action in row.actions:
        last, _, call = action.partition(" = ")
        assert call.startswith("Calculator(") and call.endswith(")")
        results[last] = value(call[len("Calculator(") : -1], results)
    return str(results[last])


# GSM8K


def test_each_line_that_computes_is_a_subgoal_with_its_action() -> None:
    row = solved(
        "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nThat is not all.\n"
        "Her 24 clips and 48 more are <<48+24=72>>72 clips.\n#### 72",
        "Natalia sold 48 clips in April and half as many in May. How many is that?",
    )
    assert [(step.subgoal, step.actions, step.result) for step in row.steps] == [
        ("Natalia sold ? clips in May.", ("R1 = Calculator(48 / 2)",), "24"),
        ("Her ? clips and 48 more are ? clips.", ("R2 = Calculator(48 + R1)",), "72"),
    ]
    assert (row.answer, row.domain, row.flaw, run(row)) == ("72", "maths", "", "72")


@pytest.mark.parametrize(
    "line, subgoal",
    [
        ("This means she needs 100 - 50 - 15 = $<<100-50-15=35>>35 more.", "This means she needs ? more."),
        ("There are 3 dozen eggs * 12 eggs/dozen = <<3*12=36>>36 eggs.", "There are ? eggs."),
        ("He gets $<<5*7=35>>35, and 35 is enough.", "He gets ?, and ? is enough."),
        ("From 4 cows: 6 x 9 = <<6*9=54>>54", "From 4 cows: ?"),
        ("A 12-mile walk takes <<12/4=3>>3 hours", "A 12-mile walk takes ? hours"),
        ("How many eggs are sold? ** She sells 16 - 3 = <<16-3=13>>13 eggs.", "How many eggs are sold?"),
    ],
)  # fmt: skip
def test_a_subgoal_tells_neither_the_formula_nor_the_result(line: str, subgoal: str) -> None:
    total = line.rpartition("=")[2].partition(">>")[0]
    assert solved(f"{line}\n#### {total}").subgoals == (subgoal,)


@pytest.mark.parametrize(
    "solution, question, last",
    [
        ("<<2+2=4>>4\n<<8/2=4>>4\n<<4*10=40>>40\n#### 40", "2 and 8 and 10?", "R2 * 10"),
        # a number of the question is not taken for a result that was used
        ("<<1+6=7>>7\n<<7*3=21>>21\n<<21*7=147>>147\n#### 147", "1, 6, 3, in 7 days of a week?", "R2 * 7"),
    ],
)  # fmt: skip
def test_an_operand_refers_to_the_newest_result_that_it_equals(
    solution: str, question: str, last: str
) -> None:
    assert solved(solution, question).actions[2] == f"R3 = Calculator({last})"


def test_a_rounded_result_is_referred_to_and_must_still_lead_to_the_answer() -> None:
    fine = solved("<<10/3=3.33>>3.33\n<<3.33*3=10>>10\n#### 10", "10 in 3?")
    assert fine.actions[1] == "R2 = Calculator(R1 * 3)" and run(fine) == "10"
    assert solved("<<10/3=3.33>>3.33\n<<3.33*100=333>>333\n#### 333").left_out == OTHER_ANSWER


@pytest.mark.parametrize(
    "answer, why",
    [
        ("So it is 5.\n#### 5", NO_STEPS),
        ("It is <<2+2=4>>4.\nSo 4 + 1 = 5.\n#### 5", OTHER_ANSWER),
        ("It is <<x+2=4>>4.\n#### 4", BROKEN),
        ("It is <<4/0=4>>4.\n#### 4", BROKEN),
        ("It is <<2+2>>4.\n#### 4", BROKEN),
        ("It is <<__import__('os')=4>>4.\n#### 4", BROKEN),
    ],
)
def test_a_solution_without_a_plan_is_left_out_with_the_reason(answer: str, why: str) -> None:
    row = solved(answer)
    assert (row.left_out, row.flaw, row.steps) == (why, why, ())


# StrategyQA


def test_a_sub_question_that_needs_facts_is_looked_up_and_one_that_compares_is_not() -> None:
    row = parts(
        "How old is Ann Lee?", "How old is the pope?", "Is #1 greater than #2?", term="pope"
    )
    assert row.subgoals[2] == "Is the answer to Subgoal 1 greater than the answer to Subgoal 2?"
    assert [step.actions for step in row.steps] == [
        (
            "R1 = KnowledgeQuery(Ann Lee)",
            "R2 = ParagraphRetrieve(R1, Query: How old is Ann Lee?)",
            "R3 = QA([R2], Question: How old is Ann Lee?)",
        ),
        (
            "R4 = KnowledgeQuery(pope)",
            "R5 = ParagraphRetrieve(R4, Query: How old is the pope?)",
            "R6 = QA([R5], Question: How old is the pope?)",
        ),
        ("R7 = QA([R3, R6], Question: Is R3 greater than R6?)",),
    ]
    assert (row.answer, row.domain, [step.result for step in row.steps]) == (
        "yes", "complex_qa", ["", "", "yes"],
    )  # fmt: skip


def test_topics_are_those_of_the_evidence_or_earlier_answers() -> None:
    evidence = [[[["Tattoo (art)-3"]], ["operation"]], [[["Ink-1"]], ["operation"]]]
    row = parts("Where is it from?", "Is Ohio in #1?", evidence=evidence, answer=False)
    assert row.actions[0] == "R1 = KnowledgeQuery(Tattoo art)"
    assert row.actions[3] == "R4 = QA([R3], Question: Is Ohio in R3?)"
    assert row.answer == "no"
    row = parts("Who wrote it?", "When was #1 born?")
    assert row.actions[3] == "R4 = KnowledgeQuery(R3)"
    assert row.actions[5] == "R6 = QA([R3, R5], Question: When was R3 born?)"


@pytest.mark.parametrize(
    "decomposition, why",
    [
        ((), NO_PARTS),
        (("Is #1 it?",), FORWARD),
        (("What is it?", "Is #3 it?", "Is it?"), FORWARD),
        (("Is it (or not?",), BRACKETS),
    ],
)
def test_questions_that_can_not_be_taken_apart_are_left_out(
    decomposition: tuple[str, ...], why: str
) -> None:
    assert parts(*decomposition).flaw == why


# Real rows
