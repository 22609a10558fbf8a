"""Programming contests: tests in upstream's formats, private tests that are never unpickled."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from coterie.datasets import code_rows
from coterie.datasets.catalogue import find
from coterie.datasets.code_rows import SEALED, LiveCodeRow
from coterie.datasets.files import read_rows
from coterie.datasets.load import load_rows
from coterie.errors import UserError
from tests.row_files import jsonl, table

TESTS = [{"input": "3\n", "output": "4\n", "testtype": "stdin"}]
LIVE = {
    "question_content": "Add one.", "question_id": "abc_1", "platform": "atcoder", "difficulty": "easy",
    "contest_date": "2023-08-21T00:00:00", "starter_code": "", "metadata": json.dumps({"func_name": "add"}),
    "public_test_cases": json.dumps(TESTS),
}  # fmt: skip
PRIVATE = [
    {"input": "5\n", "output": "6\n", "testtype": "stdin"},
    {"input": "[5]", "output": "6", "testtype": "functional"},
]


class Bomb:
    """What runs code when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.write_text, (self.file, "it ran")


def read(name: str, file: Path) -> Any:
    [row] = read_rows(file, find(name).row)
    return row


def live(folder: Path, **change: Any) -> Any:
    return read("livecodebench", jsonl(folder / "a.jsonl", LIVE | change))


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "private", [json.dumps(PRIVATE), packed(json.dumps(PRIVATE).encode()), PRIVATE]
)
def test_private_tests_that_are_json_are_read(private: Any, tmp_path: Path) -> None:
    row = live(tmp_path, private_test_cases=private)
    assert isinstance(row, LiveCodeRow) and not row.lack
    assert [(t.input, t.output, t.kind, t.public) for t in row.tests] == [
        ("3\n", "4\n", "stdin", True),
        ("5\n", "6\n", "stdin", False),
        ("[5]", "6", "functional", False),
    ]
    assert (row.id, row.question, row.function) == ("abc_1", "Add one.", "add")
    assert row.date == "2023-08-21T00:00:00"
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read("livecodebench", tmp_path / "b.jsonl") == row


def test_a_pickle_is_never_read_and_it_is_said_what_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    big = json.dumps(PRIVATE * 1000).encode()
    monkeypatch.setattr(code_rows, "MOST_TESTS", 1000)
    for data in (pickle.dumps(Bomb(ran)), pickle.dumps(json.dumps(PRIVATE)), big):
        row = live(tmp_path, private_test_cases=packed(data))
        assert len(row.tests) == 1 and row.sealed and row.lack == SEALED and row.usable
    assert not ran.exists()


@pytest.mark.parametrize(
    "change, said",
    [
        ({"public_test_cases": "["}, "public_test_cases is a text, but not JSON"),
        ({"public_test_cases": "[1]"}, "a test is not an object"),
        ({"public_test_cases": '[{"input": "1"}]'}, "tests.0.output"),
        ({"public_test_cases": '[{"input": "1", "output": "2", "testtype": "odd"}]'}, "tests.0.kind"),
    ],
)  # fmt: skip
def test_broken_tests_are_named_by_their_line(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = jsonl(tmp_path / "a.jsonl", LIVE, LIVE | change)
    with pytest.raises(UserError, match="line 2 is broken") as error:
        list(read_rows(file, LiveCodeRow))
    assert said in error.value.what


def test_a_problem_without_tests_is_not_used(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", LIVE, LIVE | {"public_test_cases": "[]"})
    assert len(load_rows("livecodebench", "heldout", file)) == 1


def test_code_contests_have_all_their_tests_and_no_solution(tmp_path: Path) -> None:
    raw = {
        "name": "1_A", "description": "Add one.", "difficulty": 7, "source": 2, "solutions": {"solution": ["no"]},
        "public_tests": {"input": ["1"], "output": ["2"]}, "private_tests": {"input": ["3"], "output": ["4"]},
        "generated_tests": {"input": ["5"], "output": ["6"]},
    }  # fmt: skip
    row = read("code_contests", table(tmp_path / "test.parquet", raw))
    assert (row.id, row.question, row.answer) == ("1_A", "Add one.", "")
    assert [(t.input, t.output, t.public) for t in row.tests] == [
        ("1", "2", True),
        ("3", "4", False),
        ("5", "6", False),
    ]
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read("code_contests", tmp_path / "b.jsonl") == row
    broken = raw | {"private_tests": {"input": ["3"], "output": []}}
    with pytest.raises(UserError, match="private_tests has different numbers"):
        read("code_contests", jsonl(tmp_path / "c.jsonl", broken))
