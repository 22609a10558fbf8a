"""Coverage and majority by number of dialogues: by hand, on a plot, and from the command line."""

import json
from pathlib import Path

import pytest

from coterie.environments.qa_metrics import Vote, doubling, exact_match, f1
from coterie.evaluation import Draw, mean_interval, scaling, task_curve
from coterie.reports.evaluation import scaling_section
from coterie.runs.evaluation import Evaluation
from tests.conftest import Cli
from tests.helpers.packaged_environments import packaged_dialogue

TEN = "a1 b2 c3 d4 e5 f6 g7 h8 i9 j10"


def words(count: int) -> str:
    return " ".join(TEN.split()[:count])


def equal(answer: str, other: str) -> float:
    return exact_match(answer, [other])


def by_f1(answer: str, other: str) -> float:
    return f1(answer, [other])


def test_by_hand_with_equal_answers() -> None:
    draws = [
        Draw("cat", 0.0, 10), Draw(None, 0.0, 5), Draw("Dog", 1.0, 7), Draw("the dog", 1.0, 8), Draw("Cat", 0.0, 1),
    ]  # fmt: skip
    points = task_curve(draws, equal)
    assert [point.coverage for point in points] == [0, 0, 1, 1, 1]
    assert [point.majority for point in points] == [0, 0, 0, 1, 0]  # ties go to the cat
    assert [point.tokens for point in points] == [10, 15, 22, 30, 31]
    assert [point.average for point in points] == pytest.approx([0, 0, 1 / 3, 1 / 2, 2 / 5])


def test_by_hand_with_f1() -> None:
    """18/19 and 16/17 are near enough, 16/18 is not: the third joins by the second, not the first."""
    assert by_f1(words(10), words(8)) == pytest.approx(16 / 18)
    draws = [
        Draw(words(10), 1.0, 1),
        Draw("something else", 0.0, 1),
        Draw(words(9), 18 / 19, 1),
        Draw(words(8), 16 / 18, 1),
    ]
    majority = [point.majority for point in task_curve(draws, by_f1)]
    assert majority == pytest.approx([1, 1, (1 + 18 / 19) / 2, (1 + 18 / 19 + 16 / 18) / 3])
    vote = Vote(by_f1)
    for voter, draw in enumerate([draws[0], draws[3]]):  # without the one between them
        vote.add(voter, draw.answer)
    assert vote.winners == (0,)


def test_silence_has_no_vote() -> None:
    silent = Draw(None, 0.0, 1)
    curve = task_curve([silent, silent, Draw("a", 1.0, 1)], equal)
    assert [point.majority for point in curve] == [0, 0, 1]


def test_means_over_tasks_with_intervals_at_powers_of_two_and_the_last() -> None:
    right, wrong = Draw("a", 1.0, 2), Draw("b", 0.0, 4)
    points = scaling({"t": [wrong, right, right], "u": [right, wrong, wrong]}, equal)
    assert [point.coverage.mean for point in points] == [0.5, 1, 1]
    assert [point.majority.mean for point in points] == [0.5, 0.5, 0.5]
    assert [point.tokens for point in points] == [3, 6, 9]
    assert points[1].coverage.interval == mean_interval([1, 1], seed=0)
    assert [doubling(n) for n in (0, 1, 3, 8)] == [[], [1], [1, 2, 3], [1, 2, 4, 8]]
    result = Evaluation(0, {"t": [right, wrong] * 3, "u": [wrong] * 6}, similarity=equal)
    shown = [1, 2, 4, 6]
    assert [point.k for point in result.points if point.coverage.interval] == shown
    section = scaling_section(0, result, "exact match")
    assert [row[0] for row in section["rows"]] == [f"{k}" for k in shown]
    for chart, places in zip(section["charts"], (shown, [3, 7, 14, 21]), strict=True):
        assert chart["steps"] == [f"{place}" for place in places]
        assert [series["name"] for series in chart["series"]] == ["coverage", "majority"]
        assert all(len(series["high"]) == len(shown) for series in chart["series"])
    with pytest.raises(ValueError, match="equal numbers"):
        scaling({"t": [right], "u": [right, right]}, equal)


@pytest.mark.parametrize(
    "name, answer, other, alike",
    [("exchange", "Cat", "cat", 1), ("exchange", "cat", "cats", 0),
     ("gsm8k", "1,000", "1000.0", 1), ("gsm8k", "many", "few", 0), ("gsm8k", "many", "many", 1),
     ("hotpot_qa", "New York City", "New York", 0.8)],
)  # fmt: skip
def test_each_benchmark_compares_answers(name: str, answer: str, other: str, alike: float) -> None:
    environment = packaged_dialogue(name)
    assert environment.similarity(answer, other) == environment.similarity(other, answer)
    assert environment.similarity(answer, other) == pytest.approx(alike)


@pytest.mark.slow
def test_more_samples_go_on_from_fewer_and_the_plot_is_beside_the_store(cli: Cli) -> None:
    command = ("evaluate", "exchange", "policy=tiny-exchange", "tasks=6", "temperature=0.7",
               "engine.device=cpu", "max_tokens=96")  # fmt: skip
    few, many, single = (cli(*command, f"samples={n}") for n in (2, 5, 1))
    first, rows, (alone,) = (
        json.loads(e.out.splitlines()[-1])["rows"] for e in (few, many, single)
    )
    assert [row["k"] for row in rows] == [1, 2, 3, 4, 5] and rows[:2] == first
    assert "18/18" in many.err, "the rest only: 6 tasks, 3 new samples"
    assert all(row["majority"] <= row["coverage"] for row in rows)
    assert [row["coverage"] for row in rows] == sorted(row["coverage"] for row in rows)
    assert rows[0]["coverage"] == rows[0]["majority"]
    (store,) = Path("runs/evaluations").glob("*.sqlite")
    assert str(store.with_suffix(".html")) in many.out
    assert (alone["score"], alone["tokens"]) == (rows[0]["coverage"], rows[0]["tokens"])
