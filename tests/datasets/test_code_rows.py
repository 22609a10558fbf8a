"""Rows with code: ColBench, HumanEval, and programming contests, whose private tests are never unpickled."""

import asyncio
import base64
import json
import pickle
import pickletools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.data_rows import Finding, check_rows
from coterie.datasets import code_rows
from coterie.datasets.catalogue import SPLITS, find
from coterie.datasets.code_rows import (
    SEALED,
    CodeRow,
    HumanEvalRow,
    LiveCodeRow,
)
from coterie.datasets.files import read_rows
from coterie.datasets.load import CatalogueSet, SourceSettings, load_rows
from coterie.datasets.rows import question_key
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from tests.conftest import Cli, refused
from tests.helpers.program_rows import CODEFORCES, HUMANEVAL
from tests.helpers.serve_hub import stub_hub
from tests.helpers.write_rows import write_jsonl, write_parquet

REFERENCE = "def fee(days):\n    return 5 + max(0, days - 3) * 2"
CALLS = {f"test{n}": f"fee({n})" for n in range(1, 11)}


def task(text: str = "What do I owe?", **change: Any) -> dict[str, Any]:
    """A row in upstream's form."""
    row = {
        "problem_description": f"{text}The signature of the function is: def fee(days)",
        "ground_truth": REFERENCE,
        "test_cases": CALLS,
        "hidden_information": REFERENCE,
    }
    return row | change


def checked(rows: Sequence[CodeRow]) -> list[Finding | None]:
    async def run() -> list[Finding | None]:
        limits = SandboxSettings(workers=2, wall_seconds=1.0, cpu_seconds=0.5, total_seconds=3.0)
        async with Sandbox(limits) as sandbox:
            return await check_rows(rows, sandbox)

    return asyncio.run(run())


# Rows


@pytest.mark.parametrize(("source", "counts"), [("synthetic", [1600, 400]), ("easy", [120, 60])])
def test_synthetic_rows_are_without_fault_and_their_functions_are_in_one_split(
    source: str, counts: list[int]
) -> None:
    splits = [load_rows("colbench_code", source).rows[split] for split in SPLITS]
    assert list(map(len, splits)) == counts
    every = [row for rows in splits for row in rows if isinstance(row, CodeRow)]
    distinct = {(row.question, row.answer) for row in every}
    assert len({row.id for row in every}) == len(distinct) == sum(counts)
    names = [{row.answer.split("(")[0] for row in rows} for rows in splits]
    assert not names[0] & names[1]
    assert not any(checked(every[:: len(every) // 90]))
    if source == "synthetic":
        samples = [load_rows("colbench_code", "sample").rows[split] for split in SPLITS]
        assert samples == [
            rows[: len(sample)] for rows, sample in zip(splits, samples, strict=True)
        ]


def test_upstreams_row_and_the_canonical_one_are_the_same() -> None:
    row = CodeRow.model_validate(task())
    assert row.id == question_key(row.question) and row.answer == REFERENCE
    assert row.tests == tuple(CALLS.values()) and not row.flaw
    assert CodeRow.model_validate_json(row.model_dump_json()) == row
    listed = task(test_cases=list(CALLS.values()), id="b7")
    assert CodeRow.model_validate(listed) == row.model_copy(update={"id": "b7"})
    table = task(test_cases={"case1": None, **CALLS})  # so a column of structs has it
    assert CodeRow.model_validate(table) == row


# Checks

FAULTS: dict[str, dict[str, Any]] = {
    "": {},
    "fails, error": {"ground_truth": REFERENCE.replace("5 +", "5 // (days - 4) +")},
    "fails, no such name": {"test_cases": {**CALLS, "test3": "fees(3)"}},
    "fails, syntax": {"ground_truth": "def fee(days) return 5"},
    "fails, endless": {"ground_truth": "def fee(days):\n    while days > 9: pass\n    return days"},
    "random": {"ground_truth": "import random\ndef fee(days):\n    return random.random()"},
    "not plain, function": {"ground_truth": "def fee(days):\n    return lambda: days"},
    "not plain, nan": {"ground_truth": "def fee(days):\n    return {'a': [days, float('nan')]}"},
    "empty, reference": {"ground_truth": None},
    "empty, tests": {"test_cases": {}},
}


def test_each_fault_is_found() -> None:
    findings = checked([CodeRow.model_validate(task(**change)) for change in FAULTS.values()])
    by_fault = dict(zip(FAULTS, findings, strict=True))
    assert by_fault.pop("") is None
    why = {}
    for name, finding in by_fault.items():
        assert finding is not None and finding[0] == name.partition(",")[0]
        why[name] = finding[1]
    assert "ZeroDivisionError" in why["fails, error"] and "`fee(4)`" in why["fails, error"]
    assert "too long" in why["fails, endless"] and "nan" in why["not plain, nan"]


def test_check_lists_rows_by_finding_and_writes_the_others(cli: Cli, tmp_path: Path) -> None:
    """A reference that fails when it is run, and one whose value only a comparison hides."""
    hidden = {
        "ground_truth": "def fee(days):\n    return lambda: days",
        "test_cases": {name: f"{call} == 5" for name, call in CALLS.items()},
    }
    bad = [FAULTS["fails, error"], FAULTS["random"], FAULTS["empty, reference"], hidden]
    rows = [task(f"Bad {n}?", **change) for n, change in enumerate(bad)]
    few = task("Few?", test_cases=["fee(1)"])
    train = write_jsonl(tmp_path / "raw/train.jsonl", *rows, task("Train?"), few)
    write_jsonl(tmp_path / "raw/test.jsonl", task("Test?"), task("Train?"))
    for words, splits in (
        ((train,), [("train.jsonl", 6, {"empty": [3], "fails": [1], "random": [2], "not plain": [4]})]),
        (("raw", "--out", "checked"), [
            ("train", 4, {"fails": [1], "random": [2], "not plain": [3]}), ("heldout", 2, {})]),
    ):  # fmt: skip
        result = cli("data", "check", "colbench_code", "--source", *words)
        assert result.code == 0 and "does not run" in result.out, result.err
        reports = json.loads(result.out.splitlines()[-1])["splits"]
        assert [(one["name"], one["rows"], one["findings"]) for one in reports] == splits
    checked_rows = load_rows("colbench_code", tmp_path / "checked").rows
    assert [row.question[:4] for row in checked_rows["train"]] == ["Few?"]
    assert [row.question[:4] for row in checked_rows["heldout"]] == ["Test", "Trai"]
    assert "have no code to run" in refused(cli, "data", "check", "gsm8k", "--source", "sample")


# Loading


def test_rows_after_the_first_thousand_of_the_test_file_are_never_held_out(tmp_path: Path) -> None:
    rows = [task(f"Test {n}?") for n in range(1003)]
    write_jsonl(tmp_path / "test.jsonl", *rows)
    write_jsonl(tmp_path / "train.jsonl", task("Train?"))
    splits = load_rows("colbench_code", tmp_path).rows
    texts = [row["problem_description"] for row in rows[:1000]]
    assert [row.question for row in splits["heldout"]] == texts and len(splits["train"]) == 1


def test_a_revision_that_is_not_pinned_is_part_of_the_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        f"/main/backend_tasks/{name}.jsonl": write_jsonl(
            tmp_path / f"{name}.jsonl", *(task(f"{name} {n}?") for n in range(2))
        ).read_bytes()
        for name in ("train", "test")
    }
    with stub_hub(files, tmp_path / "cache", monkeypatch):
        assert [len(rows) for rows in load_rows("colbench_code").rows.values()] == [2, 2]
        assert (
            f"{'0' * 40}/backend_tasks/train.jsonl"
            in CatalogueSet(SourceSettings(name="colbench_code")).content()
        )


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


CONTEST = {
    "name": "1_A", "description": "Add one.", "difficulty": 7, "source": 2, "solutions": {"solution": ["no"]},
    "public_tests": {"input": ["1"], "output": ["2"]}, "private_tests": {"input": ["3"], "output": ["4"]},
    "generated_tests": {"input": ["5"], "output": ["6"]},
}  # fmt: skip


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
    return read("livecodebench", write_jsonl(folder / "a.jsonl", LIVE | change))


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


PICKLES = [pickle.dumps(json.dumps(PRIVATE), protocol) for protocol in range(6)]
"""As LiveCodeBench's files have them, in protocol 4."""


@pytest.mark.parametrize(
    "private",
    [json.dumps(PRIVATE), PRIVATE, *map(packed, (json.dumps(PRIVATE).encode(), *PICKLES))],
)
def test_private_tests_of_every_published_form_are_read(private: Any, tmp_path: Path) -> None:
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
    file = write_jsonl(tmp_path / "c.jsonl", LIVE, LIVE | {"public_test_cases": "[]"})
    assert len(load_rows("livecodebench", file).rows["heldout"]) == 1, "a problem without tests"


def test_a_pickled_text_of_any_length_is_read(tmp_path: Path) -> None:
    long = [{"input": "é" * 10**5, "output": "1" * 70_000}]
    row = live(tmp_path, private_test_cases=packed(pickle.dumps(json.dumps(long))))
    assert not row.lack and row.tests[1].input == "é" * 10**5


def test_any_other_pickle_is_not_read_and_rows_report_what_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, text = tmp_path / "ran", json.dumps(PRIVATE)
    bomb = pickle.dumps(Bomb(ran))
    after = pickle.dumps(text)[:-1] + bomb[2:]  # a text, and then what runs code
    hostile = [
        *(pickle.dumps(Bomb(ran), protocol) for protocol in range(6)), after, bomb[:-1] + pickle.dumps(text)[2:],
        pickle.dumps(text)[:-1], pickle.dumps(text) + b".", pickle.dumps((text, text)), pickle.dumps(PRIVATE),
        pickle.dumps(text.encode()), b"NaN", b"5", b"", b".", b"\x80\x04K\x01.", b"\x80\x04\x8d" + b"\xff" * 8,
    ]  # fmt: skip
    for data in hostile:
        row = live(tmp_path, private_test_cases=packed(data))
        assert len(row.tests) == 1 and row.sealed and row.lack == SEALED and not row.flaw, data
    assert not ran.exists()
    pickle.loads(bomb)
    assert ran.exists(), "the pickles do run code where they are loaded"
    monkeypatch.setattr(code_rows, "MOST_TESTS", 1000)
    big = packed(pickle.dumps(json.dumps(PRIVATE * 1000)))
    assert live(tmp_path, private_test_cases=big).lack == SEALED


def test_opcodes_after_the_first_that_is_not_of_a_text_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, genops = [], pickletools.genops

    def counted(data: bytes) -> Any:
        for one in genops(data):
            parsed.append(one)
            yield one

    monkeypatch.setattr(pickletools, "genops", counted)
    many = b"\x80\x04" + b"N0" * 10**6 + b"N."
    assert live(tmp_path, private_test_cases=packed(many)).lack == SEALED and len(parsed) == 2


def test_codeforces_has_its_statement_its_tests_and_its_checker(tmp_path: Path) -> None:
    row = read("codeforces", write_parquet(tmp_path / "test.parquet", CODEFORCES))
    assert row.question == (
        "Digits\n\nSplit it.\n\nInput\nA number.\n\nOutput\nTwo.\n\n"
        "Examples\nInput:\n4\n\nOutput:\n1 3\n\n\nNote\nAny two."
    )
    assert [(t.input, t.public) for t in row.tests] == [("4\n", True), ("2\n", False)]
    assert (row.id, row.flaw, row.lack) == ("852/A", "", "") and row.checker.startswith(
        "import sys"
    )
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read("codeforces", tmp_path / "b.jsonl") == row


@pytest.mark.parametrize(("change", "flaw", "lack"), [
    ({"interaction_format": "Print a query."}, "is interactive", ""),
    ({"input_mode": "file"}, "has programs that read and write files", ""),
    ({"official_tests": []}, "has no readable tests", ""),
    ({"official_tests": None}, "has no readable tests", ""),
    ({"generated_checker": '#include "testlib.h"\nint main() {}'}, "has a checker that is not Python", ""),
    ({"official_tests_complete": False}, "", "has only some of its official tests"),
])  # fmt: skip
def test_rows_of_codeforces_that_can_not_be_graded_are_left_out(
    change: dict[str, Any], flaw: str, lack: str, tmp_path: Path
) -> None:
    row = read("codeforces", write_jsonl(tmp_path / "a.jsonl", CODEFORCES | change))
    assert (row.flaw, row.lack) == (flaw, lack)


LEETCODE = {
    "prompt": [{"role": "user", "content": "Double it."}],
    "reward_model": {"ground_truth": json.dumps({
        "import_prefix": "import math\n", "entry_point": "Solution().twice",
        "test_code": "def check(candidate):\n    assert candidate(x = 2) == 4\n",
    })},
}  # fmt: skip


def test_humaneval_and_rows_of_its_form_have_a_check_and_what_stands_before_it(
    tmp_path: Path,
) -> None:
    row = read("humaneval", write_parquet(tmp_path / "test.parquet", HUMANEVAL))
    assert isinstance(row, HumanEvalRow) and HUMANEVAL["prompt"] in row.question
    assert (row.function, row.prelude) == ("twice", HUMANEVAL["prompt"])
    assert row.answer.endswith("    return 2 * x\n") and not row.flaw
    assert [(t.kind, t.input) for t in row.tests] == [("check", HUMANEVAL["test"])]
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read("humaneval", tmp_path / "b.jsonl") == row
    other = read("humaneval", write_jsonl(tmp_path / "c.jsonl", LEETCODE))
    assert (other.question, other.function, other.answer) == ("Double it.", "Solution().twice", "")
    broken = read(
        "humaneval", write_jsonl(tmp_path / "d.jsonl", HUMANEVAL | {"test": "def check("})
    )
    assert broken.flaw == "has a test that is not Python"
    unsolved = {one: text for one, text in HUMANEVAL.items() if one != "canonical_solution"}
    assert read("humaneval", write_jsonl(tmp_path / "e.jsonl", unsolved)).answer == ""


@pytest.mark.parametrize(
    "call", ["is_same_list(candidate(1), 1)", "candidate(tree_node([1])) == 1"]
)
def test_a_check_of_nodes_is_a_flaw(call: str, tmp_path: Path) -> None:
    test = f"def check(candidate):\n    assert {call}\n"
    row = read("humaneval", write_jsonl(tmp_path / "a.jsonl", HUMANEVAL | {"test": test}))
    assert row.flaw.startswith("has a test with lists or trees of nodes")


def test_code_contests_have_all_their_tests_and_no_solution(tmp_path: Path) -> None:
    row = read("code_contests", write_parquet(tmp_path / "test.parquet", CONTEST))
    assert (row.id, row.question, row.answer) == ("1_A", "Add one.", "")
    assert [(t.input, t.output, t.public) for t in row.tests] == [
        ("1", "2", True),
        ("3", "4", False),
        ("5", "6", False),
    ]
    (tmp_path / "b.jsonl").write_text(row.model_dump_json() + "\n")
    assert read("code_contests", tmp_path / "b.jsonl") == row
