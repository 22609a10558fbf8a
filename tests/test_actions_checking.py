"""What is wrong with action lines before anything is run."""

import pytest

from coterie.errors import UserError
from coterie.tools.actions.grammar import DOMAINS, check, describe

RIGHT = {
    "maths": "R1 = Calculator(1,200 / 2); R2 = SetEquation(x + R1 = 5); R3 = SolveEquation(R2, x); Output = Count(R3)",
    "complex_qa": "R1 = KnowledgeQuery(Paris, Texas); R2 = ParagraphRetrieve(R1, Query: its size); "
    "R3 = QA([R1, R2], Question: How large, then?)",
    "web": "R1 = CLICK(Env, QUERY: search); R2 = TYPE(R1, QUERY: box, TEXT: shoes, red)",
    "shop": "R1 = Search(red shoes); R2 = FeatureRetrieve(R1, Query: colour); R3 = Pick(R2, Query: red); "
    "R4 = Click(R3, Query: Buy Now)",
}


def problems(
    text: str, domain: str = "maths", known: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    found = check(text, domain, known).problems
    return [(one.what, text[one.start : one.stop]) for one in found]


@pytest.mark.parametrize("domain", RIGHT)
def test_a_right_line_of_each_domain_has_no_problem(domain: str) -> None:
    assert problems(RIGHT[domain], domain) == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_prompt_has_a_line_for_each_tool(domain: str) -> None:
    lines = describe(domain).splitlines()
    assert [line[2:].partition("(")[0] for line in lines] == [
        one.name for one in DOMAINS[domain].tools
    ]


def test_an_unknown_tool_is_told_with_the_nearest_one() -> None:
    ((what, where),) = problems("R1 = Calculater(1)")
    assert "did you mean 'Calculator'?" in what and where == "R1 = Calculater(1)"


def test_wrong_numbers_of_arguments_are_told_with_the_signature() -> None:
    assert problems("R1 = Calculator()")[0][0] == (
        "Calculator takes at least 1 argument, not 0: Calculator(expression)"
    )
    ((what, _),) = problems("R1 = CLICK(Env)", "web")
    assert what.startswith("CLICK takes 2 arguments, not 1")


def test_a_label_that_is_missing_wrong_or_empty_is_told() -> None:
    ((what, where),) = problems("R1 = CLICK(Env, search)", "web")
    assert "with `QUERY:`" in what and where == "search"
    ((what, where),) = problems("R2 = QA([R1], Query: who)", "complex_qa", ("R1",))
    assert "with `Question:`" in what and where == "Query: who"
    assert problems("R1 = CLICK(Env, QUERY: )", "web") == [
        ("nothing stands after `QUERY:`", "QUERY:")
    ]


def test_a_result_must_stand_where_a_tool_works_on_results() -> None:
    ((what, where),) = problems("R1 = ParagraphRetrieve(Paris, Query: size)", "complex_qa")
    assert "takes the name of a result here" in what and where == "Paris"


def test_a_variable_is_set_before_it_is_used() -> None:
    assert problems("R1 = Calculator(R2); R2 = Calculator(R1)") == [
        ("R2 is used before it is set", "R2")
    ]
    assert problems("R1 = Calculator(R1 + 1)") == [("R1 is used before it is set", "R1 + 1")]
    assert problems("R2 = Calculator(R1)", known=("R1",)) == []
    assert problems("R1 = CLICK(R7, QUERY: x)", "web")[0][0] == "R7 is used before it is set"


def test_a_result_is_set_once_and_is_called_as_results_are() -> None:
    twice = ("R1 is set a second time", "R1")
    assert problems("R1 = Calculator(1); R1 = Calculator(2)") == [twice]
    assert problems("R1 = Calculator(1)", known=("R1",)) == [twice]
    assert problems("R7 = Calculator(1); R3 = Calculator(R7)") == [], (
        "gaps and any order are allowed"
    )
    for name in ("x", "R0", "r1", "R12345"):
        ((what, where),) = problems(f"{name} = Calculator(1)")
        assert what.startswith(f"{name} is not the name of a result") and where == name
    assert problems("Env = CLICK(Env, QUERY: x)", "web")[0][0].startswith("Env is not the name")


def test_a_text_without_an_action_is_a_problem_of_its_whole() -> None:
    assert problems("  ") == [("there is no action", "  ")]
    assert len(problems("(" * 10_000)) == 1


def test_a_text_of_too_many_actions_is_told_where_they_begin() -> None:
    line = "; ".join(f"R{n} = Define({n})" for n in range(1, 41))
    ((what, where),) = problems(line)
    assert what == "there are 40 actions, and 32 are allowed" and where.startswith(
        "R33 = Define(33);"
    )


def test_problems_come_in_the_order_of_the_text() -> None:
    found = check("R1 = Foo(R9); nonsense; R1 = Calculator()", "maths").problems
    assert [one.start for one in found] == sorted(one.start for one in found)
    assert len(found) == 5


def test_an_unknown_domain_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'maths'"):
        check("R1 = Calculator(1)", "math")
