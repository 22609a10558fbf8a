"""GAP's SFT files: what is read of them, and which traces can't be trained on."""

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.recipes.gap_traces import flaw, observations, read_traces

TRACE = "<plan>\nT1: look\n</plan>\n<observation>\nÖslo\n</observation>\n\n<answer>Oslo</answer>"
ROWS = [
    {"instruction": "Use tools.\n\nQuestion: Where?", "input": "", "output": TRACE},
    {"instruction": "Use tools.", "input": "When?", "output": TRACE, "original_output": "old"},
]


def sft(file: Path, rows: Any) -> Path:
    file.write_text(json.dumps(rows, ensure_ascii=False))
    return file


def test_traces_are_read_with_their_questions(tmp_path: Path) -> None:
    rows, _ = read_traces(sft(tmp_path / "a.json", ROWS))
    assert {number: row.question for number, row in rows.items()} == {1: "Where?", 2: "When?"}
    assert rows[2].prompt == "Use tools.\nWhen?"
    assert rows[2].output == TRACE


@pytest.mark.parametrize(
    "said",
    [
        {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": TRACE}]},
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": TRACE}]},
    ],
)
def test_messages_are_read_as_the_same_row(said: dict[str, Any], tmp_path: Path) -> None:
    plain = read_traces(sft(tmp_path / "a.json", [{"instruction": "Q", "output": TRACE}]))
    assert read_traces(sft(tmp_path / "b.json", [said])) == plain


@pytest.mark.parametrize(
    "row, said",
    [
        ({"instruction": "Q"}, "output: is missing"),
        ({"instruction": " ", "output": TRACE}, "instruction"),
        ({"messages": [{"role": "user", "content": "Q"}]}, "one message of the user"),
        ({"messages": "Q"}, "not a list"),
        (7, "broken"),
    ],
)
def test_a_row_that_is_no_trace_is_named(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.json, row 3 is broken") as error:
        read_traces(sft(tmp_path / "a.json", [*ROWS, row]))
    assert said in error.value.what


@pytest.mark.parametrize(
    "trace, reason",
    [
        ("<observation>a<observation>b</observation></observation><answer>x</answer>", "nested or unopened"),
        ("<answer>x</answer><observation>a", "never closed"),
        ("a</observation><answer>x</answer>", "nested or unopened"),
        ("<observation>a</observation>", "has no answer"),
        ("<answer> </answer>", "has no answer"),
    ],
)  # fmt: skip
def test_traces_that_can_not_be_trained_on_are_told_with_their_numbers(
    trace: str, reason: str, tmp_path: Path
) -> None:
    broken = {"instruction": "Q", "output": trace}
    rows, left_out = read_traces(sft(tmp_path / "a.json", [ROWS[0], broken, ROWS[1]]))
    assert [*rows] == [1, 3] and [*left_out] == [2]
    assert reason in left_out[2] and reason in flaw(trace)
    with pytest.raises(UserError, match="no trace of"):
        read_traces(sft(tmp_path / "b.json", [broken]))


def test_observations_are_places_of_characters_with_their_tags() -> None:
    [(start, end)] = observations(TRACE)
    assert TRACE[start:end] == "<observation>\nÖslo\n</observation>"
    # An end that no blank line follows, which a scan of tokens would miss
    two = "a<observation>b</observation>c<observation>d</observation>"
    assert [two[a:b] for a, b in observations(two)] == [
        "<observation>b</observation>",
        "<observation>d</observation>",
    ]
