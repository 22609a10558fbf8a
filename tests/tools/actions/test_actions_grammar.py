"""Grammar of action lines: bounds of actions and arguments, problems, and linear time."""

import pytest

from coterie.tools.actions.grammar import DOMAINS, MAX_CHARACTERS, check_actions, describe, parse


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        *((line, [["1"], ["R1", "2"]]) for line in (
            "R1 = A(1)\nR2 = B(R1, 2)", " R1=A( 1 ) ;;\n\nR2 = B (R1,2) ; ", "R1 = A(1). \n x = B(R1, 2)")),
        ("R1 = A([1, (2, 3)], {4, 5}, 6)", [["[1, (2, 3)]", "{4, 5}", "6"]]),
        ("""R1 = A("a, b)", 'c; d', e)""", [['"a, b)"', "'c; d'", "e"]]),
        ("R1 = QA([R2, R3], Question: If so, who?)", [["[R2, R3]", "If so, who?"]]),
        ("R1 = A(the film's director, the boys' house)", [["the film's director", "the boys' house"]]),
        ('R1 = A(5" screen); R2 = A(R1, QUERY: 6" screen)', [['5" screen'], ["R1", '6" screen']]),
    ],
)  # fmt: skip
def test_actions_and_arguments_end_where_they_should(line: str, arguments: list[list[str]]) -> None:
    parsed = parse(line)
    assert parsed.ok
    assert [[one.text for one in action.arguments] for action in parsed.actions] == arguments


def test_arguments_name_results_anywhere_and_the_environment_only_alone() -> None:
    action = parse("R1 = A(1); R2 = TYPE(Env, QUERY: a box, TEXT: hello,  you )").actions[1]
    assert action.text == "R2 = TYPE(Env, QUERY: a box, TEXT: hello,  you )"
    assert action.rest(0) == "Env, QUERY: a box, TEXT: hello,  you"
    assert action.rest(2) == "hello,  you" and action.rest(3) == ""
    (action,) = parse("R4 = A(R1 + R2 * R1, Env, [Env, R3], the Output of Env, R5x)").actions
    names = [one.variables for one in action.arguments]
    assert names == [("R1", "R2"), ("Env",), ("Env", "R3"), (), ()]


@pytest.mark.parametrize(
    ("line", "problems", "tools"),
    [
        ("Calculator(1)", ["not an action"], ""),
        ("R1 = A(1) and so on; R2 = A(2)", ["text after the end of an action"], "AA"),
        ("R1 = A(1) R2 = A(2)", ["`;` is missing between two actions"], "AA"),
        ("R1 = A([1)", ["`[` is not closed"], "A"),
        ("R1 = A(1])", ["`]` is not opened"], "A"),
        ("R1 = A(1,, 2)", ["an argument is empty"], "A"),
        ("R1 = A((1 + 2; R2 = B(3); R3 = C(4", ["`(` is not closed"] * 2, "B"),
        ("x" * 10_000, ["the text has 10,000 characters, and 4,000 are allowed"], ""),
        ("R1 = A(" + "1" * (MAX_CHARACTERS - 8) + ")", [], "A"),
    ],
)
def test_problems_of_a_text(line: str, problems: list[str], tools: str) -> None:
    parsed = parse(line)
    assert len(parsed.problems) == len(problems)
    assert all(map(str.__contains__, parsed.problems, problems))
    assert "".join(one.tool for one in parsed.actions) == tools


@pytest.mark.parametrize(
    ("domain", "line", "problems"),
    [
        ("maths", "R1 = Calculator(1,200 / 2); R2 = SetEquation(x + R1 = 5); Output = Count(R2)", []),
        ("complex_qa", "R1 = KnowledgeQuery(Paris, Texas); R2 = ParagraphRetrieve(R1, Query: its size); "
         "R3 = QA([R1, R2], Question: How large, then?)", []),
        ("web", "R1 = CLICK(Env, QUERY: search); R2 = TYPE(R1, QUERY: box, TEXT: shoes, red)", []),
        ("shop", "R1 = Search(red shoes); R2 = FeatureRetrieve(R1, Query: colour); R3 = Pick(R2, Query: red)", []),
        ("maths", "R2 = Calculator(R99)", []),
        ("maths", "R7 = Calculator(1); R3 = Calculator(R7)", []),
        ("maths", "R1 = Calculater(1)", ["did you mean 'Calculator'?"]),
        ("maths", "R1 = Calculator()", ["takes other arguments: Calculator(expression)"]),
        ("web", "R1 = CLICK(Env, search)", ["CLICK takes other arguments: CLICK(Env or the last result, QUERY: which"]),
        ("web", "R1 = CLICK(Env, QUERY: )", ["takes other arguments"]),
        ("web", "R1 = CLICK(Env, QUERY: x, QUERY: y)", ["takes other arguments"]),
        ("complex_qa", "R1 = QA([R99], Query: who)", ["takes other arguments"]),
        ("complex_qa", "R1 = ParagraphRetrieve(Paris, Query: size)", ["takes other arguments"]),
        ("maths", "R1 = Calculator(R2); R2 = Calculator(R1)", ["R2 is used before it is set"]),
        ("maths", "R1 = Calculator(R1 + 1)", ["R1 is used before it is set"]),
        ("maths", "R1 = Calculator(1); R1 = Calculator(2)", ["R1 is set a second time"]),
        ("maths", "R0 = Calculator(1)", ["R0 is not the name of a result"]),
        ("maths", "R12345 = Calculator(1)", ["R12345 is not the name of a result"]),
        ("web", "Env = CLICK(Env, QUERY: x)", ["Env is not the name"]),
        ("maths", "  ", ["there is no action"]),
        ("maths", "; ".join(f"R{n} = Define({n})" for n in range(1, 41)), ["40 actions, and 32 are allowed"]),
    ],
)  # fmt: skip
def test_problems_of_actions(domain: str, line: str, problems: list[str]) -> None:
    parsed = check_actions(line, domain, ("R99",))
    assert len(parsed.problems) == len(problems), parsed.problems
    assert all(map(str.__contains__, parsed.problems, problems))
    names = [one[2:].partition("(")[0] for one in describe(domain).splitlines()]
    assert names == [one.name for one in DOMAINS[domain]]
