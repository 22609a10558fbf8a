"""Files of SWEET-RL's released code: read and written without loss, broken lines named, repeats grouped."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.recipes.sweet_rl.files.records import (
    PreferenceRow,
    Trajectories,
    TrajectoryRow,
    blocks,
    read_lines,
    write_lines,
)

CALLS = {f"test{n}": f"f({n})" for n in range(1, 11)}


def trajectory(number: int = 0, repeat: int = 0, **change: Any) -> dict[str, Any]:
    """A row in the released form, with a field that we don't know."""
    row = {
        "task": {
            "problem_description": f"Task {number}?The signature of the function is: def f(x)",
            "ground_truth": "def f(x):\n    return x", "test_cases": CALLS,
            "hidden_information": "def f(x):\n    return x", "source": "web",
        },
        "dialogue_history": [
            {"role": "user", "content": f"Task {number}?"},
            {"role": "assistant", "content": "Which x?", "input": "<|begin|>", "output": "OUTPUT: Which x?"},
            {"role": "user", "content": "Any, naïvely."},
            {"role": "assistant", "content": "I WANT TO ANSWER: def f(x): return x", "input": "a", "output": "b"},
        ],
        "answer": "def f(x): return x", "reward": repeat / 2,
    }  # fmt: skip
    return row | change


def jsonl(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


ROWS: list[tuple[Any, dict[str, Any]]] = [
    (TrajectoryRow, trajectory()),
    (TrajectoryRow, {k: v for k, v in trajectory(answer=None).items() if k != "reward"}),
    (PreferenceRow, {"chosen": "good", "rejected": "bad"}),
    (PreferenceRow, {"prompt": "p", "chosen": "good", "rejected": "bad"}),
    (
        PreferenceRow,
        {"chosen": {"input": "p", "output": "g"}, "rejected": {"input": "p", "output": "b"}},
    ),
]


@pytest.mark.parametrize("kind, row", ROWS)
def test_a_line_that_is_read_and_written_says_the_same(
    kind: Any, row: dict[str, Any], tmp_path: Path
) -> None:
    [(number, read)] = read_lines(jsonl(tmp_path / "a.jsonl", [row]), kind)
    assert number == 1
    write_lines(tmp_path / "b.jsonl", [read])
    assert json.loads((tmp_path / "b.jsonl").read_text()) == row
    with pytest.raises(UserError, match="exists already"):
        write_lines(tmp_path / "b.jsonl", [read])


def test_a_trajectory_has_its_task_and_may_lack_its_reward(tmp_path: Path) -> None:
    lacking = {k: v for k, v in trajectory().items() if k != "reward"}
    file = jsonl(tmp_path / "a.jsonl", [trajectory(repeat=1), lacking])
    (_, first), (_, second) = read_lines(file, TrajectoryRow)
    assert first.reward == 0.5 and second.reward is None
    row = first.task.code_row()
    assert row.tests == tuple(CALLS.values()) and row.question.startswith("Task 0?")
    assert first.dialogue_history[1].output == "OUTPUT: Which x?"
    assert first.dialogue_history[2].input is None


TURNS = trajectory()["dialogue_history"]


@pytest.mark.parametrize(
    "kind, row, said",
    [
        (TrajectoryRow, trajectory(task={"problem_description": "x"}), "task.ground_truth"),
        (TrajectoryRow, trajectory(dialogue_history=[]), "dialogue_history"),
        (TrajectoryRow, trajectory(dialogue_history=TURNS[:3]), "doesn't end with a turn of the agent"),
        (TrajectoryRow, trajectory(dialogue_history=TURNS[1:3]), "turn 1 of the dialogue is of assistant"),
        (TrajectoryRow, trajectory(reward=float("nan")), "reward"),
        (TrajectoryRow, trajectory(answer=3), "answer"),
        (PreferenceRow, {"chosen": "same", "rejected": "same"}, "are equal"),
        (PreferenceRow, {"chosen": "a"}, "rejected"),
        (PreferenceRow, {"chosen": "a", "rejected": {"input": "", "output": "b"}}, "one side is a text"),
    ],
)  # fmt: skip
def test_a_broken_line_is_named(kind: Any, row: dict[str, Any], said: str, tmp_path: Path) -> None:
    good = next(fields for name, fields in ROWS if name is kind)
    with pytest.raises(UserError, match="line 2: ") as error:
        list(read_lines(jsonl(tmp_path / "a.jsonl", [good, row]), kind))
    assert said in error.value.what


def test_files_that_hold_no_lines_of_objects_are_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", [trajectory(0), trajectory(1)])
    file.write_text(file.read_text()[:-20])
    with pytest.raises(UserError, match="line 2: not JSON"):
        list(read_lines(file, TrajectoryRow))
    rows = Trajectories(file)
    assert len(rows) == 2 and rows[0].reward == 0
    with pytest.raises(UserError, match="line 2: not JSON"):
        rows[1]
    with pytest.raises(UserError, match="can't be read"):
        len(Trajectories(tmp_path / "none.jsonl"))


def test_repeats_of_a_task_are_grouped(tmp_path: Path) -> None:
    """Repeat j of task i is row j * tasks + i."""
    rows = [trajectory(task, repeat) for repeat in range(3) for task in range(4)]
    file = jsonl(tmp_path / "a.jsonl", rows)
    file.write_text(file.read_text().replace("\n", "\n\n", 2), encoding="utf-8")  # blank lines
    read = Trajectories(file)
    assert len(read) == 12 and read[-1] == read[11] and len(read[2:5]) == 3
    found = list(blocks(read, 3))
    assert [[row.reward for row in block] for block in found] == [[0, 0.5, 1]] * 4
    assert [block[0].task.problem_description[:6] for block in found] == [
        f"Task {n}" for n in range(4)
    ]
    assert list(blocks(list(read), 3)) == found and len(list(blocks(read, 1))) == 12
    for repeats, said in [
        (5, "12 rows, which are not 5 repeats"),
        (2, "rows 1, 7 of"),
        (13, "not 13"),
    ]:
        with pytest.raises(UserError, match=said):
            list(blocks(read, repeats))
