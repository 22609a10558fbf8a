"""The recipe ``gap/code``: traces of a file, what is trained of them, held-out programs in the sandbox, exports."""

import json
from pathlib import Path

import pytest
from pyarrow.parquet import read_table

from coterie.cli.export import export_data as export
from coterie.environments.workflow_code import tests_of as all_tests_of
from coterie.progress import Silent
from coterie.recipes.gap import Gap
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import run_steps
from tests.row_files import jsonl
from tests.row_programs import LIVE
from tests.test_gap import bracketed

pytestmark = pytest.mark.usefixtures("own_home")
FENCE = "```"
PROGRAM = f"{FENCE}py\na, b = map(int, input().split())\nprint(a * b)\n{FENCE}"
TRACE = (
    f"<plan>T1: multiply\n- Dependencies: none</plan><think>Try.</think>\n<code>\n{PROGRAM}\n{FENCE}sh\n6 7\n{FENCE}\n"
    "</code>\n\n<observation>\n[EXECUTED] Code exited with status 0.\n[STDOUT:BEGIN]\n42\n[STDOUT:END]\n"
    f"</observation>\n\n<reflection>Right.</reflection><think>Done.</think><answer>\n{PROGRAM}\n</answer>"
)
QUESTION = "Read two numbers. Print their product."
WORDS = [
    "model=tiny-exchange", "traces.min_calls=1", "evaluate.tasks=1", "rollout.max_tokens=16",
    "environment.prompt=short", "train.max_length=1024", "traces.max_truncated=1", "train.epochs=1",
    "train.max_steps=1", "train.batch_rows=2", "train.tokens_per_microbatch=2048",
]  # fmt: skip


def made(folder: Path, *words: str, source: str = "", traces: str = "") -> Gap:
    source = source or str(jsonl(folder / "test.jsonl", LIVE))
    if not traces:
        asked = (
            (QUESTION, TRACE),
            (LIVE["question_content"], TRACE),
            ("Nothing to run.", "<answer>x</answer>"),
        )
        given = [
            {"instruction": f"Code.\n\nQuestion: {q}", "input": "", "output": out}
            for q, out in asked
        ]
        (folder / "traces.json").write_text(json.dumps(given))
        traces = str(folder / "traces.json")
    found = recipe_of(
        settings("gap/code", [*WORDS, f"dataset.source={source}", f"traces={traces}", *words])
    )
    assert isinstance(found, Gap)
    return found


def test_a_policy_learns_the_traces_of_a_file_and_its_programs_are_run(tmp_path: Path) -> None:
    recipe = made(tmp_path)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent())
        rollout, select = (run.metrics(Step(0, name)) for name in ("rollout", "select"))
        assert (rollout["n"], rollout["left out: ask held-out questions"]) == (2, 1)
        assert (select["selected"], select["left out: too few calls"]) == (1, 1)
        assert run.metrics(Step(0, "train"))["steps"] == 1
        after = run.metrics(Step(1, "evaluate"))
        assert (after["n"], after["failed"], after["score"]) == (1, 0, 0.0)
        text = bracketed(recipe, run)
        own = "".join(part.partition("]]")[2] for part in text.split("[["))
        assert "<code>" in own and "<answer>" in own and "42" not in own
        export(run.folder, "llamafactory", tmp_path / "files")
    recipe.close()
    _, asked, trace = json.loads((tmp_path / "files/rows.jsonl").read_text())["messages"]
    assert trace["content"].count("<observation>") == 1 and QUESTION in asked["content"]


PLUGIN = """
from coterie.datasets.code_rows import CodeContestsRow

class Mine:
    row = CodeContestsRow
    environment = "code"

    def rows(self, split):
        tests = [{"input": "1 2", "output": "3"}]
        called = [{"input": "[1]", "output": "1", "kind": "functional"}]
        row = CodeContestsRow(id=split, question=f"Add {split}.", tests=tests)
        other = CodeContestsRow(id=f"{split}2", question=f"Call {split}.", tests=called, function="f")
        return [row, other]
"""


def test_own_problems_with_a_training_split_are_exported_with_their_tests(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    asked = {"instruction": f"Code.\n\nQuestion: {QUESTION}", "input": "", "output": TRACE}
    (tmp_path / "traces.json").write_text(json.dumps([asked]))
    words = [*WORDS, f"dataset={tmp_path / 'mine.py'}:Mine", f"traces={tmp_path / 'traces.json'}"]
    recipe = recipe_of(settings("gap/code", words))
    assert isinstance(recipe, Gap)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), recipe.steps()[1:3])
        run.store.put_tasks(recipe.environment.tasks("train", 2, 0))
        _, counts = export(run.folder, "verl", tmp_path / "files")
    recipe.close()
    assert counts["train"] == 1, "tests that call a function have no place in the file"
    (prompt,) = read_table(tmp_path / "files/train.parquet").to_pylist()
    assert json.loads(prompt["reward_model"]["ground_truth"])["outputs"] == ["3"]
    assert prompt["ability"] == "code" and "Add train." in prompt["prompt"][-1]["content"]
    tasks = recipe.environment.tasks("train", 2, 0)
    assert sorted(all_tests_of(task)[0].output for task in tasks) == ["1", "3"]
