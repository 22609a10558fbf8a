"""Rows of ColBench: upstream's form, what is wrong with them, loading them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.code_rows import Finding, check_rows
from coterie.datasets.catalogue import SPLITS
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.load import content, load, load_rows
from coterie.datasets.rows import question_key
from coterie.errors import UserError
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from tests.conftest import Cli
from tests.hub import stub_hub
from tests.row_files import jsonl

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


def checked(rows: Sequence[CodeRow]) -> list[list[Finding]]:
    async def run() -> list[list[Finding]]:
        limits = SandboxSettings(workers=2, wall_seconds=1.0, cpu_seconds=0.5, total_seconds=3.0)
        async with Sandbox(limits) as sandbox:
            return await check_rows(rows, sandbox)

    return asyncio.run(run())


# Rows


@pytest.mark.parametrize(("source", "counts"), [("synthetic", [1600, 400]), ("easy", [120, 60])])
def test_synthetic_rows_are_without_fault_and_their_functions_are_in_one_split(
    source: str, counts: list[int]
) -> None:
    splits = [load_rows("colbench_code", split, source) for split in SPLITS]
    assert list(map(len, splits)) == counts
    every = [row for rows in splits for row in rows if isinstance(row, CodeRow)]
    distinct = {(row.question, row.answer) for row in every}
    assert len({row.id for row in every}) == len(distinct) == sum(counts)
    names = [{row.answer.split("(")[0] for row in rows} for rows in splits]
    assert not names[0] & names[1]
    assert not any(checked(every[:: len(every) // 90]))


def test_the_sample_is_the_first_of_the_synthetic_rows() -> None:
    for split in SPLITS:
        sample = load_rows("colbench_code", split, "sample")
        assert sample == load_rows("colbench_code", split, "synthetic")[: len(sample)]


def test_upstreams_row_and_the_canonical_one_are_the_same() -> None:
    row = CodeRow.model_validate(task())
    assert row.id == question_key(row.question) and row.answer == REFERENCE
    assert row.tests == tuple(CALLS.values()) and row.usable
    assert CodeRow.model_validate_json(row.model_dump_json()) == row
    listed = task(test_cases=list(CALLS.values()), id="b7")
    assert CodeRow.model_validate(listed) == row.model_copy(update={"id": "b7"})
    table = task(test_cases={"case1": None, **CALLS})  # so a column of structs has it
    assert CodeRow.model_validate(table) == row


@pytest.mark.parametrize(
    "change, said",
    [
        ({"problem_description": None}, "question"), ({"problem_description": " "}, "some text"),
        ({"test_cases": "fee(1)"}, "tests"), ({"test_cases": {"a": 1}}, "tests.0"),
        ({"ground_truth": 3}, "answer"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named_by_its_line(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = jsonl(tmp_path / "rows.jsonl", task(), task(**change))
    with pytest.raises(UserError, match=r"line 2 is broken") as error:
        load("colbench_code", file)
    assert said in error.value.what


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
    "constant": {"ground_truth": "def fee(days):\n    return 'five'"},
    "none": {"ground_truth": "def fee(days):\n    return days if days > 1 else None"},
    "empty, reference": {"ground_truth": None},
    "empty, tests": {"test_cases": {}},
}


def test_each_fault_is_found() -> None:
    findings = checked([CodeRow.model_validate(task(**change)) for change in FAULTS.values()])
    found = dict(zip(FAULTS, findings, strict=True))
    for name, some in found.items():
        assert [kind for kind, _ in some] == ([name.partition(",")[0]] if name else []), name
    why = {name: some[0][1] for name, some in found.items() if name}
    assert "ZeroDivisionError" in why["fails, error"] and "`fee(4)`" in why["fails, error"]
    assert "too long" in why["fails, endless"] and why["constant"] == "all give 'five'"
    assert "nan" in why["not plain, nan"]


def test_the_command_lists_rows_by_finding(cli: Cli, tmp_path: Path) -> None:
    constant = task("Two?", ground_truth="def fee(days):\n    return 5")
    file = jsonl(tmp_path / "rows.jsonl", task("One?"), constant, task("Three?", ground_truth=""))
    said = cli("data", "check", "colbench_code", "--source", file)
    assert said.code == 0 and "constant passes" in said.out
    told = json.loads(said.out.splitlines()[-1])
    [split] = told["splits"]
    assert (split["rows"], split["unusable"]) == (3, 1)
    assert split["findings"] == {"empty": [3], "constant": [2]}
    assert "rows.jsonl: 3 rows, 2 with findings, 1 can't be tasks" in said.out
    said = cli("data", "check", "gsm8k", "--source", "sample")
    assert said.code == 2 and "have no code to run" in said.err


# Loading


def test_rows_without_fault_are_written_and_can_be_loaded(cli: Cli, tmp_path: Path) -> None:
    """A reference that fails when it is run, and one whose value only a comparison hides."""
    hidden = {
        "ground_truth": "def fee(days):\n    return lambda: days",
        "test_cases": {name: f"{call} == 5" for name, call in CALLS.items()},
    }
    bad = [FAULTS["fails, error"], FAULTS["random"], FAULTS["empty, reference"], hidden]
    rows = [task(f"Bad {n}?", **change) for n, change in enumerate(bad)]
    few = task("Few?", test_cases=["fee(1)"])
    jsonl(tmp_path / "raw/train.jsonl", *rows, task("Train?"), few)
    jsonl(tmp_path / "raw/test.jsonl", task("Test?"), task("Train?"))
    said = cli("data", "check", "colbench_code", "--source", "raw", "--out", "checked")
    assert said.code == 0, said.err
    told = json.loads(said.out.splitlines()[-1])["splits"]
    assert [(one["name"], one["rows"], one["unusable"]) for one in told] == [
        ("train", 4, 3),
        ("heldout", 2, 0),
    ]
    found = load("colbench_code", tmp_path / "checked").rows
    assert [row.question[:4] for row in found["train"]] == ["Few?"]
    assert [row.question[:4] for row in found["heldout"]] == ["Test", "Trai"]


def test_rows_after_the_first_thousand_of_the_test_file_are_never_held_out(tmp_path: Path) -> None:
    rows = [task(f"Test {n}?") for n in range(1003)]
    jsonl(tmp_path / "test.jsonl", *rows)
    jsonl(tmp_path / "train.jsonl", task("Train?"))
    found = load("colbench_code", tmp_path).rows
    texts = [row["problem_description"] for row in rows[:1000]]
    assert [row.question for row in found["heldout"]] == texts and len(found["train"]) == 1


def test_a_revision_that_is_not_pinned_is_part_of_the_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        f"/main/backend_tasks/{name}.jsonl": jsonl(
            tmp_path / f"{name}.jsonl", *(task(f"{name} {n}?") for n in range(2))
        ).read_bytes()
        for name in ("train", "test")
    }
    with stub_hub(files, tmp_path / "cache", monkeypatch):
        assert [len(rows) for rows in load("colbench_code").rows.values()] == [2, 2]
        assert f"{'0' * 40}/backend_tasks/train.jsonl" in content("colbench_code", "hub", 0.1)
