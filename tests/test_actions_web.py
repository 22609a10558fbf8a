"""Actions on a web page: which element they take, and when a step is right."""

import asyncio

import pytest

from coterie.tools.actions.executors import (
    CANDIDATES,
    Element,
    Executed,
    Gold,
    Operation,
    StepScore,
    WebExecutor,
    read_operation,
    score,
)
from coterie.tools.actions.grammar import parse

PAGE = (
    Element("11", "a", "Sign in"),
    Element("12", "button", "Search flights"),
    Element("13", "input", "From airport"),
    Element("14", "label", "From airport"),
    Element("15", "select", "Cabin class"),
    Element("16", "a", "Search hotels"),
)


def ran(line: str, page: tuple[Element, ...] = PAGE) -> Executed:
    parsed = parse(line)
    assert parsed.ok, parsed.problems
    return asyncio.run(WebExecutor(page).run(parsed.actions, {}))


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("R1 = CLICK(Env, QUERY: search for flights)", Operation("CLICK", "12")),
        ("R1 = CLICK(Env, QUERY: sign-in)", Operation("CLICK", "11")),
        (
            "R1 = TYPE(Env, QUERY: from airport, TEXT: Oslo, Norway)",
            Operation("TYPE", "13", "Oslo, Norway"),
        ),
        (
            "R1 = SELECT(Env, QUERY: the cabin, TEXT: Business)",
            Operation("SELECT", "15", "Business"),
        ),
        ("R1 = CLICK(Env, QUERY: serch flihgts)", Operation("CLICK", "12")),
    ],
)
def test_the_element_whose_text_fits_best_is_taken(line: str, operation: Operation) -> None:
    done = ran(line)
    assert done.answer == str(operation) and read_operation(str(operation)) == operation


def test_the_tag_decides_between_equal_texts_and_else_the_rank() -> None:
    twins = (
        Element("1", "label", "City"),
        Element("2", "input", "City"),
        Element("3", "label", "City"),
    )
    assert ran("R1 = TYPE(Env, QUERY: city, TEXT: x)", twins).answer == "TYPE [2] x"
    assert ran("R1 = CLICK(Env, QUERY: city)", twins).answer == "CLICK [1]"


def test_actions_follow_each_other_and_the_last_one_is_the_answer() -> None:
    done = ran(
        "R1 = TYPE(Env, QUERY: from airport, TEXT: Oslo); R2 = CLICK(R1, QUERY: search flights)"
    )
    assert (
        done.values == {"R1": "TYPE [13] Oslo", "R2": "CLICK [12]"} and done.answer == "CLICK [12]"
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("R1 = CLICK(Env, QUERY: zzz qqq)", "no element of the page fits"),
        ("R1 = CLICK(Env, search flights)", "it names no element"),
        ("R1 = TYPE(Env, QUERY: from airport)", "it names no text"),
        ("R1 = HOVER(Env, QUERY: sign in)", "there is no such tool"),
        ("R2 = CLICK(R1, QUERY: sign in)", "R1 has no value"),
    ],
)
def test_why_an_action_fails_is_told(line: str, why: str) -> None:
    done = ran(line)
    assert done.answer is None and why in (done.error or "")


def test_only_the_first_candidates_are_looked_at() -> None:
    many = tuple(Element(str(n), "a", "other") for n in range(CANDIDATES))
    assert ran("R1 = CLICK(Env, QUERY: sign in)", (*many, *PAGE)).error is not None
    assert ran("R1 = CLICK(Env, QUERY: sign in)", (*many[1:], *PAGE)).answer == "CLICK [11]"
    assert ran("R1 = CLICK(Env, QUERY: sign in)", ()).error is not None


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (Operation("TYPE", "13", "oslo  NORWAY"), StepScore(True, True)),
        (Operation("TYPE", "23", "Oslo Norway"), StepScore(True, True)),
        (Operation("TYPE", "14", "Oslo Norway"), StepScore(False, True)),
        (Operation("TYPE", "13", "Oslo"), StepScore(True, False)),
        (Operation("SELECT", "13", "Oslo Norway"), StepScore(True, False)),
        (Operation("CLICK", "13"), StepScore(True, False)),
        (None, StepScore(False, False)),
    ],
)
def test_a_step_is_right_with_element_kind_and_value(
    done: Operation | None, expected: StepScore
) -> None:
    gold = Gold(frozenset({"13", "23"}), "TYPE", "Oslo Norway")
    assert score(done, gold) == expected
    assert score(done, gold).success == (expected.element and expected.operation)


def test_a_text_that_is_no_operation_is_none() -> None:
    for text in ("", "CLICK", "CLICK 12", "HOVER [12]", "CLICK [1]2"):
        assert read_operation(text) is None
