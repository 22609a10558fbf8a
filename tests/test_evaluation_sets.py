"""Sets that agents are tested on alone: rows in upstream's formats, encrypted ones, tests of programs."""

import base64
import csv
import hashlib
import json
import pickle
import zlib
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from coterie.datasets import code_rows as contest_rows
from coterie.datasets.answers import IMAGE, ExamRow, WebRow
from coterie.datasets.catalogue import find
from coterie.datasets.code_rows import SEALED, ContestRow, LiveCodeRow
from coterie.datasets.files import read_rows
from coterie.datasets.load import load_rows
from coterie.datasets.problems import MathRow
from coterie.datasets.rows import QuestionRow
from coterie.errors import UserError
from tests.row_files import jsonl
from tests.test_data import SHARED, real_rows

CANARY = "a canary of these tests: 3f"


def read(name: str, file: Path) -> Any:
    [row] = read_rows(file, find(name).row)
    return row


def sealed(text: str, canary: str = CANARY) -> str:
    key = cycle(hashlib.sha256(canary.encode()).digest())
    return base64.b64encode(bytes(a ^ b for a, b in zip(text.encode(), key, strict=False))).decode()


PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "math500": (
        {
            "problem": "1/2?",
            "answer": r"\frac12",
            "solution": "So.",
            "subject": "Algebra",
            "level": 2,
            "unique_id": "test/a/7.json",
        },
        {
            "id": "test/a/7.json",
            "question": "1/2?",
            "answer": r"\frac12",
            "solution": "So.",
            "subject": "Algebra",
            "level": "2",
        },
    ),
    "aime24": (
        {"id": 60, "problem": "P?", "solution": "S", "answer": "204", "url": "u", "year": "2024"},
        {"id": "60", "answer": "204"},
    ),
    "aime25": ({"problem": "P?", "answer": 70, "id": "0"}, {"id": "0", "answer": "70"}),
    "amc23": (
        {"id": 3, "question": "P?", "answer": 27.0, "url": "u"},
        {"question": "P?", "answer": "27"},
    ),
    "webwalkerqa": (
        {
            "question": "W?",
            "answer": "A",
            "root_url": "https://a.org",
            "info": {
                "domain": "conference",
                "type": "multi_source",
                "Level": "hard",
                "lang": "en",
                "source_website": ["https://a.org/b"],
                "golden_path": ["root->b"],
            },
        },
        {
            "pages": ("https://a.org", "https://a.org/b"),
            "subject": "conference",
            "kind": "multi_source",
            "level": "hard",
        },
    ),
    "gaia": (
        {
            "task_id": "c61",
            "Question": "G?",
            "Level": 2,
            "Final answer": "egalitarian",
            "file_name": "a.xlsx",
            "Annotator Metadata": {"Steps": "1"},
        },
        {"id": "c61", "question": "G?", "answer": "egalitarian", "level": "2", "file": "a.xlsx"},
    ),
    "hle": (
        {
            "id": "h1",
            "question": "H?",
            "image": "",
            "answer": "C",
            "answer_type": "multipleChoice",
            "category": "Physics",
            "canary": "x",
            "rationale": "r",
        },
        {"id": "h1", "answer": "C", "kind": "multipleChoice", "subject": "Physics", "image": False},
    ),
    "browsecomp": (
        {
            "problem": sealed("Which Müller?"),
            "answer": sealed("Gerd"),
            "problem_topic": "Sports",
            "canary": CANARY,
        },
        {"question": "Which Müller?", "answer": "Gerd", "subject": "Sports"},
    ),
    "olympiadbench": (
        {
            "id": 1606,
            "question": "O?",
            "solution": ["S1", "S2"],
            "final_answer": ["1", "2"],
            "subfield": "Algebra",
            "difficulty": "Competition",
            "image_1": None,
        },
        {
            "id": "1606",
            "answer": "1, 2",
            "solution": "S1",
            "subject": "Algebra",
            "level": "Competition",
            "aliases": (),
            "image": False,
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_row_is_read_and_its_canonical_form_is_the_same(
    name: str, tmp_path: Path
) -> None:
    raw, expected = PUBLISHED[name]
    row = read(name, jsonl(tmp_path / "a.jsonl", raw))
    assert {key: getattr(row, key) for key in expected} == expected
    assert row.usable and row.question
    parquet.write_table(pyarrow.Table.from_pylist([raw]), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read(name, tmp_path / "a.parquet") == read(name, tmp_path / "b.jsonl") == row


@pytest.mark.parametrize("name", ["math500", "aime24", "aime25", "amc23", "olympiadbench"])
def test_sets_of_mathematics_are_compared_as_mathematics(name: str) -> None:
    assert issubclass(find(name).row, MathRow) and issubclass(find(name).row, ExamRow)


@pytest.mark.parametrize(
    "name, change, flaw",
    [
        ("gaia", {"Final answer": "?"}, "has no public answer"),
        ("hle", {"image": "data:image/png;base64,AA"}, IMAGE),
        ("olympiadbench", {"image_1": {"bytes": "x"}}, IMAGE),
        ("math500", {"answer": " "}, "its answer is empty"),
    ],
)
def test_what_can_not_be_asked_or_graded_is_left_out_with_its_reason(
    name: str, change: dict[str, Any], flaw: str, tmp_path: Path
) -> None:
    raw = PUBLISHED[name][0]
    file = jsonl(
        tmp_path / "test.jsonl", raw, raw | change | {"question": "Other?", "problem": "Other?"}
    )
    assert len(load_rows(name, "heldout", file)) == 1
    assert [row.flaw for row in read_rows(file, find(name).row)] == ["", flaw]


def test_browsecomp_is_read_as_the_table_that_is_published(tmp_path: Path) -> None:
    raw = PUBLISHED["browsecomp"][0]
    with (tmp_path / "browse_comp_test_set.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, raw)
        table.writeheader()
        table.writerow(raw)
    row = read("browsecomp", tmp_path / "browse_comp_test_set.csv")
    assert isinstance(row, WebRow) and (row.question, row.answer) == ("Which Müller?", "Gerd")


@pytest.mark.parametrize(
    "answer", ["not base64", sealed("Gerd, ein Müller, und andere", "another")]
)
def test_what_its_canary_does_not_open_is_refused(answer: str, tmp_path: Path) -> None:
    raw = PUBLISHED["browsecomp"][0]
    file = jsonl(tmp_path / "a.jsonl", raw, raw | {"answer": answer})
    with pytest.raises(UserError, match=r"line 2 is broken: .*can't be decrypted"):
        list(read_rows(file, find("browsecomp").row))


# Programs


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


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "private", [json.dumps(PRIVATE), packed(json.dumps(PRIVATE).encode()), PRIVATE]
)
def test_private_tests_that_are_json_are_read(private: Any, tmp_path: Path) -> None:
    row = read("livecodebench", jsonl(tmp_path / "a.jsonl", LIVE | {"private_test_cases": private}))
    assert isinstance(row, LiveCodeRow) and not row.lack
    assert [(t.input, t.output, t.kind, t.public) for t in row.tests] == [
        ("3\n", "4\n", "stdin", True),
        ("5\n", "6\n", "stdin", False),
        ("[5]", "6", "functional", False),
    ]
    assert (row.id, row.question, row.function) == ("abc_1", "Add one.", "add")
    assert (row.platform, row.level, row.date) == ("atcoder", "easy", "2023-08-21T00:00:00")
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read("livecodebench", tmp_path / "b.jsonl") == row


def test_a_pickle_is_never_read_and_it_is_said_what_is_lacking(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for number, content in enumerate((Bomb(ran), json.dumps(PRIVATE))):
        file = jsonl(
            tmp_path / "test.jsonl",
            LIVE
            | {"private_test_cases": packed(pickle.dumps(content)), "question_id": f"q{number}"},
        )
        row = read("livecodebench", file)
        assert len(row.tests) == 1 and row.sealed and row.lack == SEALED and row.usable
    assert not ran.exists()


def test_packed_tests_larger_than_the_limit_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest_rows, "MOST_TESTS", 1000)
    big = packed(json.dumps(PRIVATE * 1000).encode())
    row = read("livecodebench", jsonl(tmp_path / "a.jsonl", LIVE | {"private_test_cases": big}))
    assert row.sealed and len(row.tests) == 1


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
    parquet.write_table(pyarrow.Table.from_pylist([raw]), tmp_path / "test.parquet")
    row = read("code_contests", tmp_path / "test.parquet")
    assert isinstance(row, ContestRow) and (row.id, row.question, row.answer) == (
        "1_A",
        "Add one.",
        "",
    )
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


@real_rows
@pytest.mark.parametrize(
    "name, file, count",
    [
        ("math500", "math/math500_test.jsonl", 400),
        ("webwalkerqa", "webwalkerqa/webwalker_main_680.jsonl", 600),
    ],
)
def test_real_rows_are_read(name: str, file: str, count: int) -> None:
    rows: list[QuestionRow] = load_rows(name, "heldout", SHARED / file)
    assert len(rows) == count
