"""Reading answers out of utterances."""

import time

from coterie.environments.answers import boxed_answer, boxed_number, marked_answer


def test_the_last_mark_counts() -> None:
    assert marked_answer("<A>Rome</A> no, <A> Oslo </A>") == "Oslo"
    assert marked_answer("<A>Oslo</A and so on") == "Oslo"
    assert marked_answer("<A> </A>") is None
    assert marked_answer("Oslo") is None


def test_a_mark_that_is_opened_in_prose_and_never_closed_hides_no_answer() -> None:
    assert marked_answer("I write <A> when I know. <A>Oslo</A>") == "Oslo"
    assert marked_answer("<A>Oslo</A>, with <A> in front as asked") == "Oslo"
    assert marked_answer("<A>Oslo</A> stands between <A></A>") == "Oslo"
    assert marked_answer("I write <A> when I know") is None


def test_the_last_box_counts_and_its_braces_match() -> None:
    assert boxed_answer(r"\boxed{1} then \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert boxed_answer(r"\boxed{never closed") is None
    assert boxed_answer(r"\boxed{}") is None
    assert boxed_answer("18") is None


def test_a_box_that_is_opened_in_prose_and_never_closed_hides_no_answer() -> None:
    assert boxed_answer(r"I use \boxed{ when I know: \boxed{5}") == "5"
    assert boxed_answer(r"\boxed{5}, with \boxed{ in front as asked") == "5"
    assert boxed_answer(r"\boxed{5} stands in \boxed{}") == "5"
    assert boxed_answer(r"\boxed{5}, so in \boxed as asked") == "5"
    assert boxed_answer(r"I put it into \boxed at the end") is None


def test_boxes_that_are_opened_again_and_again_take_no_time() -> None:
    began = time.thread_time()
    assert boxed_answer(r"\boxed{5}" + r"\boxed{" * 20_000) == "5"
    assert boxed_answer(r"\boxed{" * 20_000 + "5" + "}" * 20_000) == "5"
    assert time.thread_time() - began < 20, "not the square of their number: minutes"


def test_a_box_without_braces_holds_what_stands_next() -> None:
    found = [boxed_answer(rf"So $\boxed {one}$.") for one in ("5", "-5.5", r"\frac12", "A")]
    assert found == ["5", "-5.5", r"\frac12", "A"]


def test_a_box_without_a_number_is_still_an_answer() -> None:
    assert boxed_number(r"so \boxed{18 eggs}") == "18"
    assert boxed_number(r"so \boxed{many}") == "many"
    assert boxed_number("so 18") is None
