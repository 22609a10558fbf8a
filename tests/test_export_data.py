"""`coterie export data`: what is written is what was trained on, and other trainers take it."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from pyarrow.parquet import read_table
from trl.data_utils import apply_chat_template, is_conversational

from coterie.cli.export_data import export
from coterie.datasets.files import read_rows
from coterie.datasets.rows import AnswerRow
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.progress import Silent
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import run_steps
from tests.conftest import Cli, refused
from tests.test_sweet_offline import RIGHT, ROWS, WRONG, read, wrote

WORDS = (
    "iterations=2", "rollout.tasks=2", "rollout.samples=2", "rollout.max_tokens=48", "evaluate.tasks=2",
    "engine.device=cpu", "train.epochs=1", "select.threshold=-100", "select.top_share=1", "dpo.tasks=2", "dpo.probe=2",
    "dpo.search.searches=2", "dpo.search.rollouts=2", "dpo.train.epochs=1", "dpo.select.theta_filter=-100",
    "dpo.select.theta_diff=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an iteration of SFT on rows and one of DPO on pairs."""
    folder = tmp_path_factory.mktemp("idpo") / "run"
    recipe = recipe_of(settings("optima/idpo", WORDS))
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_steps(recipe, run, Silent(), [s for s in recipe.steps() if s.stage != "evaluate"])
    recipe.close()
    return folder


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_rows_have_the_tokens_and_masks_that_were_trained(run: Path, tmp_path: Path) -> None:
    export(run, "jsonl", tmp_path / "files")
    found = lines(tmp_path / "files/rows.jsonl")
    recipe = recipe_of(settings("optima/idpo", WORDS))
    with open_run(run, recipe.name, recipe.settings, write=False) as opened:
        trained = recipe.rows(opened, 0)
        assert len(trained) == opened.metrics(Step(0, "train"))["rows"]
    assert [(row["ids"], row["mask"]) for row in found] == [
        (list(row.ids), row.mask) for row in trained
    ]
    renderer, _ = load_renderer("tiny-exchange")
    for row in found:
        assert (row["role"], row["context"], row["logprobs"]) == ("policy", "drop_format", None)
        shown = renderer.tokenizer.apply_chat_template(
            row["prompt"] + row["completion"], tokenize=True, return_dict=False
        )
        assert shown == row["ids"], "what others make of the messages"
        target = [i for i, own in zip(row["ids"], row["mask"], strict=True) if own]
        own = [m["content"] for m in row["completion"] if m["role"] == "assistant"]
        assert [text.strip() for text in renderer.decode(target).split("<|end|>")[:-1]] == own


def test_trl_takes_rows_and_pairs(run: Path, tmp_path: Path) -> None:
    export(run, "trl", tmp_path / "files")
    tokenizer = load_renderer("tiny-exchange")[0].tokenizer
    for name, sides in (("rows", ("completion",)), ("pairs", ("chosen", "rejected"))):
        file = str(tmp_path / f"files/{name}.jsonl")
        data = load_dataset("json", data_files=file, split="train", cache_dir=str(tmp_path / "c"))
        assert data.column_names == ["prompt", *sides] and len(data)
        for row in data:
            assert is_conversational(row)
            text = apply_chat_template(row, tokenizer)
            assert text["prompt"].endswith("<|assistant|>")
            for side in sides:
                assert text[side].startswith(row[side][0]["content"])


def test_llama_factory_has_its_entries(run: Path, tmp_path: Path) -> None:
    export(run, "llamafactory", tmp_path / "files")
    info = json.loads((tmp_path / "files/dataset_info.json").read_text())
    rows, pairs = info["coterie_rows"], info["coterie_pairs"]
    assert rows["columns"] == {"messages": "messages"} and rows["tags"]["role_tag"] == "role"
    assert pairs["ranking"] and pairs["columns"]["messages"] == "conversations"
    for row in lines(tmp_path / "files" / rows["file_name"]):
        roles = [message["role"] for message in row["messages"]]
        assert roles[-2:] == ["user", "assistant"] and roles[roles[0] == "system"] == "user"
    for row in lines(tmp_path / "files" / pairs["file_name"]):
        assert row["chosen"]["role"] == "assistant" != row["conversations"][-1]["role"]


def test_right_answers_are_in_verls_tasks_alone(run: Path, tmp_path: Path) -> None:
    for form in ("jsonl", "trl", "llamafactory", "verl"):
        export(run, form, tmp_path / form)
    (row, *more) = read_table(tmp_path / "verl/train.parquet").to_pylist()
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert row["data_source"] == "exchange" and row["reward_model"]["style"] == "rule" and more
    assert row["extra_info"]["question"] in row["prompt"][-1]["content"]
    assert row["prompt"][-1]["role"] == "user"
    questions = list(read_rows(tmp_path / "verl/train.parquet", AnswerRow, Silent()))
    assert questions[0].answer == row["reward_model"]["ground_truth"]
    lines = (tmp_path / "jsonl/trajectories.jsonl").read_text().splitlines()
    tasks = [line for line in map(json.loads, lines) if line["kind"] == "task"]
    assert row["extra_info"]["index"] in {task["id"] for task in tasks}
    assert not any("secrets" in task for task in tasks)
    export(run, "jsonl", tmp_path / "all", secrets=True)
    truth = row["reward_model"]["ground_truth"]
    assert f'"text":"{truth}"' in (tmp_path / "all/trajectories.jsonl").read_text()


def test_an_iteration_or_a_role_alone(run: Path, tmp_path: Path, cli: Cli) -> None:
    assert export(run, "trl", tmp_path / "a", iteration=0)[1].keys() == {"rows"}
    assert export(run, "trl", tmp_path / "b", iteration=1)[1]["pairs"] > 0
    said = refused(cli, "export", "data", run, "--to", "trl", "--role", "polcy")
    assert "did you mean 'policy'?" in said
    said = refused(cli, "export", "data", run, "--to", "trl", "--iteration", "7")
    assert "no finished stage in iteration 7" in said
    done = cli("export", "data", run, "--to", "jsonl")
    assert done.out.strip() == str(run / "export/jsonl") and "pairs" in done.err
    assert "already exists" in refused(cli, "export", "data", run, "--to", "jsonl")


def test_what_only_a_critic_may_read_is_in_no_chat(tmp_path: Path) -> None:
    with read(wrote(tmp_path / "theirs.jsonl", ROWS)) as (recipe, run):
        run_steps(recipe, run, Silent(), [Step(0, "select")])
        _, counts = export(run.folder, "trl", tmp_path / "files", role="critic")
        assert counts == {"pairs": 2}
        with pytest.raises(UserError, match=r"any of the 2 pairs .* are whole dialogues"):
            export(run.folder, "llamafactory", tmp_path / "whole")
    pairs = lines(tmp_path / "files/pairs.jsonl")
    assert not any("boxes * 12" in json.dumps(pair) for pair in pairs)
    for pair in pairs:
        assert pair["prompt"][-1]["role"] == "user"
        assert pair["chosen"][-1]["content"] == RIGHT and pair["rejected"][-1]["content"] == WRONG
