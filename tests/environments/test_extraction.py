"""Reading answers out of utterances."""

import time

import pytest

from coterie.datasets.problems import boxed_answer
from coterie.environments.grading import boxed_number
from coterie.environments.qa_metrics import marked_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<A>Rome</A> no, <A> Oslo </A>", "Oslo"),
        ("<A>Oslo</A and so on", "Oslo"),
        ("<A> </A>", None),
        ("I write <A> when I know. <A>Oslo</A>", "Oslo"),
        ("<A>Oslo</A>, with <A> in front as asked", "Oslo"),
        ("<A>Oslo</A> stands between <A></A>", "Oslo"),
        ("I write <A> when I know", None),
    ],
)
def test_the_last_mark_counts(text: str, answer: str | None) -> None:
    assert marked_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{never closed", None),
        (r"\boxed{}", None),
        (r"I use \boxed{ when I know: \boxed{5}", "5"),
        (r"\boxed{5}, with \boxed{ in front as asked", "5"),
        (r"\boxed{5} stands in \boxed{}", "5"),
        (r"\boxed{5}, so in \boxed as asked", "5"),
        (r"I put it into \boxed at the end", None),
        (r"So $\boxed -5.5$.", "-5.5"),
        (r"So $\boxed \frac12$.", r"\frac12"),
        (r"So $\boxed A$.", "A"),
    ],
)
def test_the_last_box_counts_and_its_braces_match(text: str, answer: str | None) -> None:
    assert boxed_answer(text) == answer


def test_boxes_that_are_opened_again_and_again_take_no_time() -> None:
    began = time.thread_time()
    assert boxed_answer(r"\boxed{5}" + r"\boxed{" * 20_000) == "5"
    assert boxed_answer(r"\boxed{" * 20_000 + "5" + "}" * 20_000) == "5"
    assert time.thread_time() - began < 20, "not the square of their number: minutes"


def test_a_box_without_a_number_is_still_an_answer() -> None:
    texts = (r"so \boxed{18 eggs}", r"so \boxed{many}", "so 18")
    assert [boxed_number(text) for text in texts] == ["18", "many", None]
