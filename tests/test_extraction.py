"""Reading answers out of utterances."""

import pytest

from coterie.environments.extraction import boxed_answer, boxed_number, marked_answer, number


def test_the_last_mark_counts() -> None:
    assert marked_answer("<A>Rome</A> no, <A> Oslo </A>") == "Oslo"
    assert marked_answer("<A>Oslo</A and so on") == "Oslo"
    assert marked_answer("<A> </A>") is None
    assert marked_answer("Oslo") is None


def test_the_last_box_counts_and_its_braces_match() -> None:
    assert boxed_answer(r"\boxed{1} then \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert boxed_answer(r"\boxed{never closed") is None
    assert boxed_answer(r"\boxed{}") is None
    assert boxed_answer("18") is None


@pytest.mark.parametrize(
    "text, want",
    [
        ("18", "18"),
        ("18.00", "18"),
        ("1,234,567 dollars", "1234567"),
        ("1{,}234", "1234"),
        (r"\$0.50", "0.5"),
        ("x = 5", "5"),
        ("3 + 4 = 7", "7"),
        ("-3", "-3"),
        (".5", "0.5"),
        ("0.0", "0"),
        ("70000", "70000"),
        ("no number", None),
        ("", None),
    ],
)
def test_a_number_has_one_spelling(text: str, want: str | None) -> None:
    assert number(text) == want


def test_a_box_without_a_number_is_still_an_answer() -> None:
    assert boxed_number(r"so \boxed{18 eggs}") == "18"
    assert boxed_number(r"so \boxed{many}") == "many"
    assert boxed_number("so 18") is None
