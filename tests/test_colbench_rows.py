"""Rows of ColBench: upstream's form, signatures, what is wrong with them, preparing them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coterie.cli.code_rows import CheckedRow, check_rows, is_verdict
from coterie.datasets.catalogue import SPLITS, find
from coterie.datasets.code_rows import SENTENCE, CodeRow, Signature, signature
from coterie.datasets.download import download
from coterie.datasets.local import load_rows, rows_file
from coterie.datasets.prepared import folder_of, read_manifest
from coterie.datasets.preparing import prepare
from coterie.datasets.rows import question_key
from coterie.errors import UserError
from coterie.progress import Silent
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings
from tests.conftest import Cli
from tests.hub import Hub, point_hub_at, serve

pytestmark = pytest.mark.usefixtures("own_home")

REFERENCE = "def fee(days):\n    return 5 + max(0, days - 3) * 2"
CALLS = {f"test{n}": f"fee({n})" for n in range(1, 11)}


def task(text: str = "What do I owe?", **change: Any) -> dict[str, Any]:
    """A row in upstream's form."""
    row = {
        "problem_description": f"{text}{SENTENCE} def fee(days)",
        "ground_truth": REFERENCE,
        "test_cases": CALLS,
        "hidden_information": REFERENCE,
    }
    return row | change


def jsonl(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def checked(rows: Sequence[CodeRow]) -> list[CheckedRow]:
    async def run() -> list[CheckedRow]:
        limits = SandboxSettings(workers=2, wall_seconds=1.0, cpu_seconds=0.5, total_seconds=3.0)
        async with Sandbox(limits) as sandbox:
            return await check_rows(list(enumerate(rows, 1)), sandbox)

    return asyncio.run(run())


# Rows


@pytest.mark.parametrize(("source", "counts"), [("synthetic", [1600, 400]), ("easy", [120, 60])])
def test_synthetic_rows_are_without_fault_and_their_functions_are_in_one_split(
    source: str, counts: list[int]
) -> None:
    rows = [load_rows("colbench_code", split, source) for split in SPLITS]
    assert list(map(len, rows)) == counts
    every = [row for found in rows for row in found if isinstance(row, CodeRow)]
    assert (
        len({row.id for row in every})
        == len({(row.question, row.answer) for row in every})
        == sum(counts)
    )
    names = [
        {row.answer.split("(")[0] for row in found if isinstance(row, CodeRow)} for found in rows
    ]
    assert not names[0] & names[1]
    assert not [one for one in checked(every[:: len(every) // 90]) if one.findings]


def test_the_sample_is_the_first_of_the_synthetic_rows() -> None:
    for split in SPLITS:
        sample = load_rows("colbench_code", split, "sample")
        assert sample == load_rows("colbench_code", split, "synthetic")[: len(sample)]


def test_a_compressed_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    whole = rows_file("colbench_code", "train", "easy").read_bytes()
    (file := tmp_path / "rows.jsonl.gz").write_bytes(whole[:-40])
    with pytest.raises(UserError, match=r"rows\.jsonl\.gz is broken"):
        load_rows("colbench_code", "train", file)


def test_upstreams_row_and_the_canonical_one_are_the_same() -> None:
    row = CodeRow.model_validate(task())
    assert row.id == question_key(row.question) and row.answer == REFERENCE
    assert row.tests == tuple(CALLS.values()) and row.usable
    assert CodeRow.model_validate_json(row.model_dump_json()) == row
    assert CodeRow.model_validate(row.upstream()) == row
    assert row.upstream() == task()
    listed = task(test_cases=list(CALLS.values()), id="b7")
    assert CodeRow.model_validate(listed) == row.model_copy(update={"id": "b7"})
    table = task(test_cases={"case1": None, **CALLS})  # so a column of structs has it
    assert CodeRow.model_validate(table) == row


def test_signatures_are_found_and_cut_ones_known() -> None:
    def of(text: str) -> Signature | None:
        return signature(f"I need help.{SENTENCE} {text}")

    assert of("def f(a, b=(1, 2))") == Signature("def f(a, b=(1, 2))", "f", True)
    for whole in ("def f(x: int) -> list[int]", "def f(x, s=')(')", "def f(x, ...)", "def f():"):
        told = of(whole)
        assert told and told.whole and told.name == "f", whole
    for cut in (
        "def f(a",
        "def f(a, d={'x'",
        "def f(t='%H",
        "def f(a) ->",
        "fee(days)",
        "def f(a])",
    ):
        told = of(cut)
        assert told and not told.whole, cut
    assert of("") is None and signature("Help me, def f(a)") is None
    assert signature(f"{SENTENCE} def g(a){SENTENCE} def f(a)") == Signature("def f(a)", "f", True)


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
    file = jsonl(tmp_path / "rows.jsonl", [task(), task(**change)])
    with pytest.raises(UserError, match=r"line 2 is broken") as error:
        load_rows("colbench_code", "train", file)
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
    "duplicate": {"test_cases": {**CALLS, "test10": "fee( 9)".replace("( ", "(")}},
    "verdict": {"test_cases": {**CALLS, "test1": "fee(1) == 5"}},
    "signature, cut": {"problem_description": f"What?{SENTENCE} def fee(days={{'a'"},
    "signature, none": {"problem_description": "What do I owe?"},
    "count": {"test_cases": {name: CALLS[name] for name in ("test1", "test5")}},
    "empty, reference": {"ground_truth": None},
    "empty, tests": {"test_cases": {}},
}


def test_each_fault_is_found_and_says_whether_the_row_can_be_a_task() -> None:
    found = checked([CodeRow.model_validate(task(**change)) for change in FAULTS.values()])
    unusable = set()
    for (name, _), one in zip(FAULTS.items(), found, strict=True):
        kinds = [finding.kind for finding in one.findings]
        kind = name.partition(",")[0]
        also = ["count"] if name == "empty, tests" else []
        assert kinds == ([kind, *also] if kind else []), (name, one.findings)
        if not one.usable:
            unusable.add(kind)
    assert unusable == {"fails", "random", "not plain", "empty"}
    why = {name: one.findings[0].why for name, one in zip(FAULTS, found, strict=True) if name}
    assert "ZeroDivisionError" in why["fails, error"] and "`fee(4)`" in why["fails, error"]
    assert "too long" in why["fails, endless"] and why["constant"] == "all give 'five'"
    assert why["verdict"] == "`fee(1) == 5`" and "nan" in why["not plain, nan"]


@pytest.mark.parametrize(
    "call, verdict",
    [
        ("f(2) == 4", True), ("not f(2)", True), ("f(1) == 1 and f(2) == 2", True), (" 3 < f(1)", True),
        ("f(2)", False), ("f(lambda x: x > 2)", False), ("f([a == 1 for a in (1, 2)])", False),
        ("f(", False),
    ],
)  # fmt: skip
def test_a_test_that_holds_its_verdict_is_known(call: str, verdict: bool) -> None:
    assert is_verdict(call) == verdict


def test_the_command_lists_rows_by_finding(cli: Cli, tmp_path: Path) -> None:
    bad = [
        task("One?"),
        task("Two?", ground_truth="def fee(days):\n    return 5"),
        task("Three?", ground_truth=""),
    ]
    said = cli("data", "check", "colbench_code", "--source", jsonl(tmp_path / "rows.jsonl", bad))
    assert said.code == 0 and "constant passes" in said.out
    told = json.loads(said.out.splitlines()[-1])
    [file] = told["files"]
    assert (file["rows"], file["unusable"]) == (3, 1)
    assert file["findings"] == {"empty": [3], "constant": [2]}
    assert "rows.jsonl: 3 rows, 2 with findings, 1 can't be tasks" in said.out
    said = cli("data", "check", "gsm8k", "--source", "sample")
    assert said.code == 2 and "have no code to run" in said.err
    said = cli("data", "check", "colbench_code")
    assert said.code == 2 and "coterie data download colbench_code" in said.err


# Preparing


def test_upstreams_files_are_prepared_and_bad_rows_reported(cli: Cli) -> None:
    train = [task(f"Train {n}?") for n in range(4)]
    jsonl(
        Path("tasks/train.jsonl"),
        [*train, task("Bad?", ground_truth=None), task("Few?", test_cases=["fee(1)"])],
    )
    jsonl(Path("tasks/test.jsonl"), [task("Test?"), task("Train 3?")])
    said = cli("data", "prepare", "colbench_code", "--from", "tasks")
    assert said.code == 0, said.err
    assert "train: 4 rows (2 dropped" in said.err and "heldout: 2 rows" in said.err
    assert "train.jsonl: 6 rows, 2 with findings, 1 can't be tasks" in said.err
    manifest = read_manifest(Path(said.out.strip()))
    assert "CC-BY-NC" in manifest.licence and "test is its first 1,000 rows" in manifest.split
    assert {row.question[:6] for row in load_rows("colbench_code", "train")} == {"Train ", "Few?Th"}
    said = cli("data", "check", "colbench_code")
    told = json.loads(said.out.splitlines()[-1])
    assert [file["findings"] for file in told["files"]] == [{"count": [4]}, {}]


def test_preparing_leaves_out_what_checking_calls_unusable(cli: Cli, tmp_path: Path) -> None:
    """Rows that fail when they are run too, and one whose value only a comparison hides."""
    faults = FAULTS | {
        "not plain, compared": {
            "ground_truth": "def fee(days):\n    return lambda: days",
            "test_cases": {name: f"{call} == 5" for name, call in CALLS.items()},
        },
        "fails, two lines": {"ground_truth": "def fee(days):\n    raise ValueError('one\\ntwo')"},
    }
    del faults["fails, endless"]  # takes its time, and fails as the others do
    rows = [task(f"Task {n}?", **{k: v for k, v in change.items() if k != "problem_description"})
            for n, change in enumerate(faults.values())]  # fmt: skip
    train = jsonl(tmp_path / "raw/train.jsonl", rows)
    jsonl(tmp_path / "raw/test.jsonl", [task("Test?")])

    def unusable(source: object) -> int:
        said = cli("data", "check", "colbench_code", "--source", source)
        assert said.code == 0, said.err
        return int(sum(file["unusable"] for file in json.loads(said.out.splitlines()[-1])["files"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_HOME", str(train))
        refused = cli("data", "prepare", "colbench_code", "--from", tmp_path / "raw")
        assert refused.code == 2 and "check" not in refused.err, "no place, so nothing is run"
    bad = unusable(train)
    assert bad == sum(name.startswith(("fails", "random", "not plain", "empty")) for name in faults)
    said = cli("data", "prepare", "colbench_code", "--from", tmp_path / "raw")
    assert f"{len(rows)} rows" in said.err and f"{bad} can't be tasks" in said.err
    assert read_manifest(Path(said.out.strip())).train.dropped == bad
    assert unusable("prepared") == 0


def test_rows_after_the_first_thousand_of_the_test_file_are_never_held_out(tmp_path: Path) -> None:
    entry = find("colbench_code")
    test = jsonl(tmp_path / "test.jsonl", [task(f"Test {n}?") for n in range(1003)])
    train = jsonl(tmp_path / "train.jsonl", [task("Train?")])
    manifest = prepare(entry, [train, test], folder_of(entry), Silent())
    assert (manifest.heldout.rows, manifest.heldout.dropped) == (1000, 0)
    questions = {row.question for row in load_rows("colbench_code", "heldout")}
    assert questions == {
        row["problem_description"] for row in map(task, (f"Test {n}?" for n in range(1000)))
    }
    manifest = prepare(entry, [test], folder_of(entry), Silent(), heldout=0.5)
    assert manifest.heldout.rows + manifest.train.rows == 1000


def test_upstreams_files_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        f"/main/backend_tasks/{name}.jsonl": jsonl(
            tmp_path / f"{name}.jsonl", [task(f"{name} {n}?") for n in range(2)]
        ).read_bytes()
        for name in ("train", "test")
    }
    server = serve(Hub(files))
    point_hub_at(server, monkeypatch)
    try:
        manifest = download(find("colbench_code"), Silent())
    finally:
        server.shutdown()
        server.server_close()
    assert (manifest.train.rows, manifest.heldout.rows) == (2, 2)
    assert "revision main" in manifest.source
