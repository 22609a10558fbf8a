"""Answer metrics, against values worked out by hand."""

import pytest

from coterie.environments.answers import exact_match, f1, normalize_answer


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


def test_one_text_in_place_of_the_golds_is_refused():
    for metric in (f1, exact_match):
        with pytest.raises(TypeError, match="not one string"):
            metric("x", "x")
