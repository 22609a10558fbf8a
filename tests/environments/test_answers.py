r"""Answers in messages, metrics against values worked out by hand, and numbers, on the packaged rows of GSM8K."""

import pytest

from coterie.datasets.problems import boxed_answer
from coterie.environments.grading import boxed_number, number, same_number
from coterie.environments.qa_metrics import (
    Vote,
    exact_match,
    f1,
    gold_answer,
    marked_answer,
    normalize_answer,
)
from coterie.record.tree import Task
from tests.helpers.packaged_environments import packaged_dialogue


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel\tTower!", "eiffel tower"),
        ("an Apple, a day", "apple day"),
        ("U.S.A.", "usa"),
        ("theatre and anthem", "theatre and anthem"),
        ("A", ""),
        ("Zürich", "zürich"),
    ],
)
def test_normalisation_drops_case_punctuation_articles_and_spare_spaces(text, normal):
    assert normalize_answer(text) == normal


def test_exact_match_holds_for_any_alias_after_normalisation():
    assert exact_match("the big apple.", ["New York", "Big Apple"]) == 1.0
    assert exact_match("big apples", ["New York", "Big Apple"]) == 0.0
    assert exact_match(None, ["the"]) == 0.0


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("Barack Obama", ["Obama"], 2 / 3),  # precision 1/2, recall 1
        ("red red blue", ["red blue blue"], 2 / 3),  # common: one red, one blue; 2*2/6
        ("red red blue", ["red blue red red"], 6 / 7),  # common: two red, one blue; 2*3/7
        ("a cat sat", ["the cat sat down"], 0.8),  # cat sat / cat sat down: 2*2/5
        ("down sat cat", ["cat sat down"], 1.0),  # order does not count
        ("New York City", ["Manhattan", "York", "New York"], 0.8),  # best of 0, 1/2, 4/5
        ("", ["cat"], 0.0),
        ("the", ["The"], 1.0),  # nothing is left of both
        ("the", ["cat"], 0.0),
        (None, ["the"], 0.0),
    ],
)
def test_f1_of_word_multisets_is_the_best_over_golds(prediction, golds, score):
    assert f1(prediction, golds) == pytest.approx(score, abs=1e-12)


# ``G`` stands for the right answer, 99999 for another one.
HONEST = (
    "G", "$G", r"\$G", "$G$", r"\(G\)", "**G**", "G.", "G.00", "G apples", "G dollars per day", "$G/day",
    "G km/h", r"G\,\text{cm}", r"G\text{ cm}^2", "G m/s^2", "G square feet", "G years old", "G more apples",
    "G%", r"G\%", "G percent", r"G^\circ", "G cents", "G USD", "€G", "x = G", "x_1 = G", r"\theta = \$G",
    "The answer is G", "Answer: G.", r"\boxed{G}", r"\text{G miles}", "G/1", r"\frac{G}{1}",
    "Ge0", r"G \times 10^{0}", "+G", "(G)", "{G}", "0 + G = G", "$G - $0 = $G apples",
    "G red apples in each box", "G children", "G pieces of candy", "G men's shirts", "G times a day",
    "G kilowatt hours", "G kg m/s^2", "G dollars left over", "G minutes to fill the pool", "G pounds heavier",
    "G in total", "G jelly beans",
)  # fmt: skip
CHEATS = (
    "G/7", "G^2", "G^{2}", "G²", "G**2", "G or 99999", "G or so", "G or ninety", "G and 99999", "about G",
    "about G to 99999", "G to 99999", "G-99999", "99999-G", "99999 G", "G 99999", "G, 99999", "99999, G",
    "99999 or G", "not G", "it is not G", "~G", "≈G", r"\approx G", r"\neq G", "x != G", "x > G", "x >= G",
    r"x \ge G", "99999 = G", "G = 99999", "1 + 99999 = G", "x == G", "G+99999", "G*7", r"7 \cdot G", "G!",
    "Gx", r"G\pi", r"\sqrt{G}", r"\frac{G}{7}", r"G\frac{1}{7}", "G 1/7", "G//7", "G million", "Gk", "GM",
    "G dozen", "half of G", "minus G", "negative G", "G squared", "G plus one", "G mod 7", "G±5", r"G\pm 5",
    "[G, 99999]", "(G, 99999)", "G:99999", "99999:G", "G|99999", "G_7", "G; 99999", "G\n99999", "|G|",
    "G²²", "G m½", "G百万", "Gxy", "G ab", "x² = G", r"x\pm = G", "G hundredths", "G crore", "G doubled", "G base",
    "false: G", "none of: G", "G unlikely", "G (or 99999)", "G(99999)", "G is wrong", "G?", "between G and 99999",
    "1, 2, G", "99999 apples = G",
    "G actually", "G sorry", "G wait", "G max", "G gross", "G score", "G perhaps", "G dollars max", "G final",
    "G apples sorry", "G actually dollars", "G sorry dollars", "G dollars instead", "G K dollars", "G m dollars",
    "G million apples", "G dollars in thousands", "G more than x", "G thousand-dollar bills",
)  # fmt: skip


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    """One for each answer but 0, of which a seventh is 0 too."""
    by_answer = {
        gold_answer(task): task for task in packaged_dialogue("gsm8k").tasks("heldout", 100, 0)
    }
    return [task for gold, task in by_answer.items() if gold != "0"]


def test_a_number_in_an_honest_dress_scores_agrees_and_has_a_vote(tasks: list[Task]) -> None:
    environment = packaged_dialogue("gsm8k")
    for task in tasks:
        gold = gold_answer(task)
        for dress in (*HONEST, f"{float(gold):,}"):
            answer = environment.answer(rf"so \boxed{{{dress.replace('G', gold)}}}")
            assert answer is not None and environment.score(task, answer) == 1.0, (gold, dress)
            assert environment.same(gold, answer), (gold, dress)
            assert votes(environment.similarity, gold, answer) == 1, (gold, dress)


def test_a_number_with_something_left_over_scores_agrees_and_votes_for_nothing(
    tasks: list[Task],
) -> None:
    environment = packaged_dialogue("gsm8k")
    for task in tasks:
        gold = gold_answer(task)
        for cheat in CHEATS:
            answer = environment.answer(rf"so \boxed{{{cheat.replace('G', gold)}}}")
            assert answer is not None and environment.score(task, answer) == 0.0, (gold, cheat)
            assert not environment.same(gold, answer) and not environment.same(answer, gold), cheat
            assert votes(environment.similarity, gold, answer) == 2, cheat


def votes(similarity, one: str, other: str) -> int:  # type: ignore[no-untyped-def]
    """How many groups the two answers make."""
    vote = Vote(similarity)
    vote.add(0, one)
    vote.add(1, other)
    return 3 - len(vote.winners)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("18.00", "18"), ("1,234,567 dollars", "1234567"), ("1{,}234", "1234"), (r"10,\!080", "10080"),
        (r"10\,080", "10080"), ("$1,234.50", "1234.5"), (r"\$0.50", "0.5"), ("-$5", "-5"), ("$-5", "-5"),
        ("−5", "-5"), ("- 5", "-5"), ("--5", None), (".5", "0.5"), ("0.0", "0"), ("-0", "0"), ("007", "7"),
        ("1**8", None), ("**18** apples", "18"), ("18 m²", "18"), ("18 xy", None),
        ("3/4", "0.75"), (r"\frac{3}{4}", "0.75"), (r"-\dfrac34", "-0.75"), (r"\frac{-3}{4}", "-0.75"),
        ("1 1/2", "1.5"), (r"1\frac{1}{2}", "1.5"), (r"-1\frac12", "-1.5"), ("2/6", "1/3"), ("5/0", None),
        (r"\frac{270}7\text{ degrees}", "270/7"), ("1.5e3", "1500"), (r"1.5 \times 10^{-3}", "0.0015"),
        ("3 + 4 = 7", "7"), ("3 + 4 = 8", None), ("5 apples + 3 apples = 8 apples", "8"),
        ("1,000 + 234 = 1,234", "1234"), ("1 apple", "1"), ("1/2 mile", "0.5"), ("18 apple", None), ("1 yes", None),
        ("1,2345", None), ("0,018", None), ("1.234.567", None), ("18e9999999", None), ("9**9**9 = 5", None),
        ("1" * 5000, None), ("\\ab" * 60 + "1 = 5", None), ("no number", None), ("", None),
    ],
)  # fmt: skip
def test_a_number_has_one_spelling(text: str, want: str | None) -> None:
    assert number(text) == want


def test_what_is_no_number_equals_its_own_text_only() -> None:
    assert same_number("many", "many") and same_number("18 or 99", "18 or 99")
    assert not same_number("many", "more") and not same_number("18 or 99", "18")


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


def test_a_box_without_a_number_is_still_an_answer() -> None:
    texts = (r"so \boxed{18 eggs}", r"so \boxed{many}", "so 18")
    assert [boxed_number(text) for text in texts] == ["18", "many", None]
