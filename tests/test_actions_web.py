"""Actions on a web page: which element they take, and when a step is right."""

import pytest

from coterie.tools.actions.executors import CANDIDATES, Element, Gold, choose, score
from coterie.tools.actions.expressions import Failed
from coterie.tools.actions.grammar import parse

PAGE = (
    Element("11", "a", "Sign in"),
    Element("12", "button", "Search flights"),
    Element("13", "input", "From airport"),
    Element("14", "label", "From airport"),
    Element("15", "select", "Cabin class"),
    Element("16", "a", "Search hotels"),
)
OTHERS = tuple(Element(str(n), "a", "other") for n in range(CANDIDATES))
CITY = (Element("1", "label", "City"), Element("2", "input", "City"), Element("3", "label", "City"))


@pytest.mark.parametrize(
    ("call", "page", "operation"),
    [
        ("CLICK(Env, QUERY: search for flights)", PAGE, "CLICK [12]"),
        ("CLICK(Env, QUERY: serch flihgts)", PAGE, "CLICK [12]"),
        ("TYPE(Env, QUERY: from airport, TEXT: Oslo, Norway)", PAGE, "TYPE [13] Oslo, Norway"),
        ("SELECT(Env, QUERY: the cabin, TEXT: Business)", PAGE, "SELECT [15] Business"),
        ("TYPE(Env, QUERY: city, TEXT: x)", CITY, "TYPE [2] x"),
        ("CLICK(Env, QUERY: city)", CITY, "CLICK [1]"),
        ("CLICK(Env, QUERY: sign in)", (*OTHERS[1:], *PAGE), "CLICK [11]"),
        ("CLICK(Env, QUERY: sign in)", (*OTHERS, *PAGE), "no element of the page fits"),
        ("CLICK(Env, QUERY: sign in)", (), "no element of the page fits"),
        ("CLICK(Env, QUERY: zzz qqq)", PAGE, "no element of the page fits"),
        ("CLICK(Env, search flights)", PAGE, "it names no element"),
        ("TYPE(Env, QUERY: from airport)", PAGE, "it names no text"),
        ("HOVER(Env, QUERY: sign in)", PAGE, "there is no such tool"),
    ],
)
def test_the_element_whose_text_fits_best_is_taken(
    call: str, page: tuple[Element, ...], operation: str
) -> None:
    (action,) = parse(f"R1 = {call}").actions
    try:
        done = choose(action, page)
    except Failed as error:
        done = str(error)
    assert done == operation


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ("TYPE [13] oslo  NORWAY", (True, True)),
        ("TYPE [23] Oslo Norway", (True, True)),
        ("TYPE [14] Oslo Norway", (False, True)),
        ("TYPE [13] Oslo", (True, False)),
        ("SELECT [13] Oslo Norway", (True, False)),
        ("CLICK [13]", (True, False)),
        *((text, (False, False)) for text in ("", "CLICK", "CLICK 13", "HOVER [13]", "CLICK [1]3")),
    ],
)
def test_a_step_is_right_with_element_kind_and_value(
    done: str, expected: tuple[bool, bool]
) -> None:
    assert score(done, Gold(frozenset({"13", "23"}), "TYPE", "Oslo Norway")) == expected
