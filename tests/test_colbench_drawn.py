"""Rows of ColBench's form that a seed draws, of which the packaged sample are the first."""

import asyncio
import random
from pathlib import Path
from typing import get_args

import pytest

from coterie.datasets.catalogue import SPLITS, Split
from coterie.datasets.code_rows import SENTENCE, CodeRow, signature
from coterie.datasets.finding import Rows
from coterie.datasets.local import rows_file
from coterie.datasets.settings import SourceSettings
from coterie.errors import UserError
from coterie.generators.colbench.drawn import draw_rows, kinds_of
from coterie.generators.colbench.kinds import KINDS, Level
from coterie.progress import Silent
from coterie.tools.sandbox.pool import Sandbox
from tests.conftest import Cli
from tests.test_colbench_rows import checked


def drawn(split: Split, level: Level, count: int, seed: int = 0) -> list[CodeRow]:
    async def run() -> list[CodeRow]:
        async with Sandbox() as sandbox:
            return await draw_rows(split, level, count, seed, sandbox, Silent())

    return asyncio.run(run())


@pytest.mark.parametrize("level", ["easy", "personal"])
def test_drawn_rows_are_without_fault_and_differ_by_seed(level: Level) -> None:
    rows = drawn("train", level, 48)
    for one in checked(rows):
        told = signature(one.row.question)
        assert not one.findings and told and told.text == one.row.answer.splitlines()[0][:-1]
    assert len({row.id for row in rows}) == 48
    assert len({(row.question, row.answer) for row in rows}) == 48
    assert drawn("train", level, 20) == rows[:20] != drawn("train", level, 20, seed=1)


def test_a_row_that_a_constant_passes_is_left_out() -> None:
    """This seed draws one: `length`, where no word of its calls is shorter than the limit."""
    rows = drawn("heldout", "easy", 15, seed=24)
    assert [one.findings for one in checked(rows)] == [()] * 15


def test_every_value_of_every_choice_makes_a_function_that_runs() -> None:
    rows = []
    for kind in KINDS:
        rng = random.Random(kind.name)
        question = f"{kind.asked(kind.abouts[0])}{SENTENCE} def {kind.signature}"
        for place in range(max(map(len, kind.choices.values()))):
            chosen = {name: values[place % len(values)] for name, values in kind.choices.items()}
            calls = tuple(kind.call(rng) for _ in range(30))
            id_ = f"{kind.name}-{place}"
            rows.append(CodeRow(id=id_, question=question, answer=kind.source(chosen), tests=calls))
    for one in checked(rows):
        assert {finding.kind for finding in one.findings} <= {"duplicate", "count"}, one


def test_kinds_of_function_are_not_in_both_splits() -> None:
    for level in get_args(Level):
        train, heldout = ({kind.name for kind in kinds_of(split, level)} for split in SPLITS)
        assert train and heldout and not train & heldout
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_the_sample_is_what_the_command_draws(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "tasks"
    words = ["colbench-code", "--out", str(out), "--train", "48", "--heldout", "36"]
    assert cli("data", "draw", *words).code == 0
    for split in SPLITS:
        packaged = rows_file("colbench_code", split, "sample").read_text()
        assert (out / f"{split}.jsonl").read_text() == packaged
    rows = Rows(SourceSettings(name="colbench_code", source=str(out)))
    assert [len(rows.split(split)) for split in SPLITS] == [48, 36]
    again = cli("data", "draw", *words)
    assert again.code == 2 and "exists already" in again.err


def test_more_rows_than_there_are_is_an_error() -> None:
    assert len(drawn("heldout", "easy", 120)) == 120
    with pytest.raises(UserError, match=r"more than can be drawn of the 5 easy kinds"):
        drawn("heldout", "easy", 200)
