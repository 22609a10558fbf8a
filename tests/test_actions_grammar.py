"""How action lines are read: what is an action, where its arguments end, and that no text takes long."""

import time

import pytest

from coterie.tools.actions.grammar import MAX_CHARACTERS, Parsed, parse


def whats(parsed: Parsed) -> list[str]:
    return [one.what for one in parsed.problems]


def texts(line: str) -> list[list[str]]:
    return [[one.text for one in action.arguments] for action in parse(line).actions]


def test_actions_are_joined_by_semicolons_or_line_ends() -> None:
    for line in (
        "R1 = A(1); R2 = B(R1, 2)",
        "R1 = A(1)\nR2 = B(R1, 2)",
        " R1=A( 1 ) ;;\n\nR2 = B (R1,2) ; ",
    ):
        parsed = parse(line)
        assert parsed.ok
        assert [(one.result, one.tool) for one in parsed.actions] == [("R1", "A"), ("R2", "B")]
        assert texts(line) == [["1"], ["R1", "2"]]
        assert parsed.actions[1].arguments[0].variables == ("R1",)


def test_positions_are_characters_of_the_text() -> None:
    line = "R1 = A(1); R2 = TYPE(Env, QUERY: a box, TEXT: hello, you)"
    action = parse(line).actions[1]
    assert line[action.start : action.stop] == action.text == line[11:]
    assert [line[one.start : one.stop] for one in action.arguments] == [
        "Env",
        "QUERY: a box",
        "TEXT: hello, you",
    ]
    assert action.rest(0) == line[21:-1] and action.rest(2) == "hello, you" and action.rest(3) == ""


def test_commas_in_brackets_and_quotes_and_after_a_label_split_nothing() -> None:
    assert texts("R1 = A([1, (2, 3)], {4, 5}, 6)") == [["[1, (2, 3)]", "{4, 5}", "6"]]
    assert texts("""R1 = A("a, b)", 'c; d', e)""") == [['"a, b)"', "'c; d'", "e"]]
    (action,) = parse("R1 = QA([R2, R3], Question: If so, who, and why?)").actions
    assert [one.label for one in action.arguments] == ["", "question"]
    assert action.arguments[1].text == "If so, who, and why?"


def test_apostrophes_and_inches_are_text() -> None:
    assert texts("R1 = A(the film's director, the boys' house)") == [
        ["the film's director", "the boys' house"]
    ]
    line = 'R1 = CLICK(Env, QUERY: 5" screen); R2 = CLICK(R1, QUERY: 6" screen)'
    assert parse(line).ok and [one.tool for one in parse(line).actions] == ["CLICK", "CLICK"]


def test_an_argument_names_results_anywhere_and_the_surroundings_only_alone() -> None:
    (action,) = parse("R4 = A(R1 + R2 * R1, Env, [Env, R3], the Output of Env, R5x)").actions
    found = [one.variables for one in action.arguments]
    assert found == [("R1", "R2"), ("Env",), ("Env", "R3"), (), ()]


def test_a_bracket_that_is_not_closed_loses_its_own_action_only() -> None:
    line = "R1 = A((1 + 2; R2 = B(3); R3 = C(4"
    parsed = parse(line)
    assert [one.tool for one in parsed.actions] == ["B"]
    assert whats(parsed) == ["`(` is not closed"] * 2
    assert [line[one.start : one.stop] for one in parsed.problems] == ["((1 + 2", "(4"]


@pytest.mark.parametrize(
    ("line", "what", "where"),
    [
        ("Calculator(1)", "not an action: write `R1 = Tool(arguments)`", "Calculator(1)"),
        ("R1 = A(1) and so on; R2 = A(2)", "text after the end of an action", " and so on"),
        ("R1 = A(1) R2 = A(2)", "`;` is missing between two actions", " "),
        ("R1 = A([1)", "`[` is not closed", "["),
        ("R1 = A(1])", "`]` is not opened", "]"),
        ("R1 = A(1,, 2)", "an argument is empty", ","),
    ],
)
def test_what_is_wrong_is_told_with_its_place(line: str, what: str, where: str) -> None:
    parsed = parse(line)
    assert whats(parsed) == [what]
    (problem,) = parsed.problems
    assert line[problem.start : problem.stop] == where


def test_a_text_that_is_too_long_is_one_problem() -> None:
    (problem,) = parse("x" * 10_000).problems
    assert (problem.start, problem.stop) == (0, 10_000) and "4,000" in problem.what
    assert parse("R1 = A(" + "1" * (MAX_CHARACTERS - 8) + ")").ok


HOSTILE = {
    "brackets": "(" * MAX_CHARACTERS,
    "nested": "R1 = A(" + "[" * 1990 + "]" * 1990 + ")",
    "unclosed": "R1 = A(" * 571,
    "lines": "R1=A(\n" * 666,
    "quotes": "'a " * 1333,
    "inches": '"' * MAX_CHARACTERS,
    "spaces": "R1 = A(" + " " * 3990,
    "labels": "R1 = A(" + "query:," * 570,
    "separators": "\n ;" * 1333,
    "mixed": "([{" * 600 + ")]}" * 600,
    "long": "(" * 10_000,
    "odd": "\x00\u2028\ud800" * 1000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_read_in_no_time(name: str) -> None:
    before = time.process_time()
    parsed = parse(HOSTILE[name])
    assert time.process_time() - before < 0.25
    assert parsed.problems or parsed.ok
