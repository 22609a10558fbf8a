"""`coterie export`: rows are what was trained on, other trainers take them, and a model has a card."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import load_dataset
from pyarrow.parquet import read_table
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.data_utils import apply_chat_template, is_conversational

import coterie
from coterie.cli.arguments import read_arguments
from coterie.cli.export import export_data as export
from coterie.datasets.files import read_rows
from coterie.datasets.rows import AnswerRow
from coterie.errors import UserError
from coterie.models.adapters import add_lora
from coterie.models.loading import load, load_renderer, resolve
from coterie.progress import Silent
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.export import TrainedSelection, export_pair, export_rows
from coterie.record.tree import Selection, Tree
from coterie.record.turn import Finish, Message, Part, Request, Sample, Speaker, Tool, make_turn
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey, open_run
from tests.conftest import FEW, Cli, refused
from tests.recipes.test_sweet_offline import RIGHT, ROWS, WRONG, read, wrote

WORDS = (
    "iterations=2", "rollout.tasks=2", "rollout.rollouts_per_task=2", "rollout.max_tokens=48", "evaluate.tasks=2",
    "engine.device=cpu", "train.epochs=1", "select.threshold=-100", "select.top_share=1", "dpo.tasks=2",
    "dpo.probe_dialogues=2", "dpo.search.searches=2",
    "dpo.search.rollouts_per_search=2", "dpo.train.epochs=1", "dpo.select.theta_filter=-100",
    "dpo.select.theta_diff=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an iteration of SFT on rows and one of DPO on pairs."""
    folder = tmp_path_factory.mktemp("idpo") / "run"
    recipe = recipe_of(settings("optima/idpo", WORDS))
    with open_run(folder, recipe.name, recipe.settings) as run:
        run_stages(recipe, run, Silent(), [s for s in recipe.stage_keys() if s.stage != "evaluate"])
    recipe.close()
    return folder


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def weights(source: object) -> dict[str, torch.Tensor]:
    return load(source).model.state_dict()  # type: ignore[arg-type]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_rows_have_the_tokens_and_masks_that_were_trained(trained: Path, tmp_path: Path) -> None:
    export(trained, "jsonl", tmp_path / "files")
    exported = lines(tmp_path / "files/rows.jsonl")
    recipe = recipe_of(settings("optima/idpo", WORDS))
    with open_run(trained, recipe.name, recipe.settings, write=False) as opened:
        rows = recipe.rows(opened, 0)
        assert len(rows) == opened.metrics(StageKey(0, "train"))["rows"]
    tokens = [(list(row.ids), row.mask) for row in rows]
    masks = [[label != -100 for label in row["labels"]] for row in exported]
    ids = [row["input_ids"] for row in exported]
    assert list(zip(ids, masks, strict=True)) == tokens
    renderer, _ = load_renderer("tiny-exchange")
    for row in exported:
        assert (row["role"], row["context"], row["logprobs"]) == ("policy", "drop_format", None)
        messages = row["prompt"] + row["completion"]
        template = renderer.tokenizer.apply_chat_template
        assert template(messages, tokenize=True, return_dict=False) == row["input_ids"]
        target = [label for label in row["labels"] if label != -100]
        own = [m["content"] for m in row["completion"] if m["role"] == "assistant"]
        assert [text.strip() for text in renderer.decode(target).split("<|end|>")[:-1]] == own


def test_trl_and_llama_factory_take_rows_and_pairs(trained: Path, tmp_path: Path) -> None:
    export(trained, "trl", tmp_path / "trl")
    tokenizer = load_renderer("tiny-exchange")[0].tokenizer
    for name, sides in (("rows", ("completion",)), ("pairs", ("chosen", "rejected"))):
        file = str(tmp_path / f"trl/{name}.jsonl")
        data = load_dataset("json", data_files=file, split="train", cache_dir=str(tmp_path / "c"))
        assert data.column_names == ["prompt", *sides] and len(data)
        for row in data:
            assert is_conversational(row)
            text = apply_chat_template(row, tokenizer)
            assert text["prompt"].endswith("<|assistant|>")
            assert all(text[side].startswith(row[side][0]["content"]) for side in sides)
    export(trained, "llamafactory", tmp_path / "lf")
    info = json.loads((tmp_path / "lf/dataset_info.json").read_text())
    rows, pairs = info["coterie_rows"], info["coterie_pairs"]
    assert rows["columns"] == {"messages": "messages"} and rows["tags"]["role_tag"] == "role"
    assert pairs["ranking"] and pairs["columns"]["messages"] == "conversations"
    for row in lines(tmp_path / "lf" / rows["file_name"]):
        roles = [message["role"] for message in row["messages"]]
        assert roles[-2:] == ["user", "assistant"] and roles[roles[0] == "system"] == "user"
    for row in lines(tmp_path / "lf" / pairs["file_name"]):
        assert row["chosen"]["role"] == "assistant" != row["conversations"][-1]["role"]


def dialogue(
    *messages: Message, tools: tuple[Tool, ...] = (), finish: Finish = "end"
) -> TrainedSelection:
    """A selection of an agent's turn "right" after some messages."""
    tree = Tree("task", "rollout", 0)
    request = Request.make("agent", tree.root, None, (1,), messages, tools=tools)
    sample = Sample(request.id, (2,), (-1.0,), finish, "policy", "0", 1, 1.0, 1.0)
    turn = make_turn(tree.root, Speaker("agent", "agent"), [Part("right")], sample=sample)
    tree.add(turn, request)
    return TrainedSelection("policy", tree, Selection(turn.id, "agent"), lambda *_, **__: ())


@pytest.mark.parametrize(("messages", "forms"), [
    ("user assistant user", {"jsonl", "trl"}),
    ("user assistant inline", {"jsonl"}),
    ("tool user", {"jsonl", "trl", "verl"}),
    ("system user", {"jsonl", "trl", "llamafactory", "verl"}),
    ("system", {"jsonl", "trl", "llamafactory", "verl"}),
])  # fmt: skip
def test_a_row_that_a_program_would_train_other_tokens_of_is_left_out(
    messages: str, forms: set[str]
) -> None:
    one = dialogue(*(Message.of(role, role) for role in messages.split()))  # type: ignore[arg-type]
    rows = {form: list(export_rows(one, form)) for form in ("jsonl", "trl", "llamafactory", "verl")}
    assert {form for form, some in rows.items() if some != [None]} == forms
    for (row,) in rows.values():
        if row is not None:
            last = (row["messages"] if "messages" in row else row["completion"])[-1]
            assert last["role"] == "assistant" and last["content"].endswith("right")


def test_messages_that_were_cut_off_are_in_jsonl_alone() -> None:
    """A chat template ends them with a token that was not sampled."""
    one = dialogue(Message.of("user", "q"), finish="length")
    good = dialogue(Message.of("user", "q")).tree.turns.values()
    (chosen,) = (turn for turn in good if turn.sample)
    (cut,) = (turn for turn in one.tree.turns.values() if turn.sample)
    one.tree.add(replace(chosen, id="chosen", parts=(Part("better"),)))
    pair = replace(one, selection=Selection("chosen", "agent", rejected=cut.id))
    for form in ("trl", "llamafactory", "verl"):
        assert list(export_rows(one, form)) == [None]  # type: ignore[arg-type]
        assert export_pair(pair, form) is None  # type: ignore[arg-type]
    assert list(export_rows(one, "jsonl")) != [None] and export_pair(pair, "jsonl")


def test_verls_rows_are_those_of_llama_factory(trained: Path, tmp_path: Path) -> None:
    for form in ("llamafactory", "verl"):
        _, counts = export(trained, form, tmp_path / form)
    rows = read_table(tmp_path / "verl/rows.parquet").to_pylist()
    assert rows == lines(tmp_path / "llamafactory/rows.jsonl") and counts["rows"] == len(rows)
    export(trained, "trl", tmp_path / "trl")
    turns = [m["content"] for row in rows for m in row["messages"] if m["role"] == "assistant"]
    ends = [row["completion"] for row in lines(tmp_path / "trl/rows.jsonl")]
    assert [(one["role"], one["content"]) for (one,) in ends] == [("assistant", t) for t in turns]
    assert len(turns) > len(rows)


def test_right_answers_are_in_verls_tasks_alone(trained: Path, tmp_path: Path) -> None:
    for form in ("jsonl", "verl"):
        export(trained, form, tmp_path / form)
    (row, *more) = read_table(tmp_path / "verl/train.parquet").to_pylist()
    names = {"data_source", "prompt", "ability", "reward_model", "extra_info", "label"}
    assert set(row) == names and row["label"] == row["reward_model"]["ground_truth"]
    assert row["data_source"] == "exchange" and row["reward_model"]["style"] == "rule" and more
    assert row["extra_info"]["question"] in row["prompt"][-1]["content"]
    assert row["prompt"][-1]["role"] == "user"
    truth = row["reward_model"]["ground_truth"]
    questions = list(read_rows(tmp_path / "verl/train.parquet", AnswerRow, Silent()))
    assert questions[0].answer == truth
    tasks = [one for one in lines(tmp_path / "jsonl/trajectories.jsonl") if one["kind"] == "task"]
    assert row["extra_info"]["index"] in {task["id"] for task in tasks}
    assert not any("secrets" in task for task in tasks)
    export(trained, "jsonl", tmp_path / "all", secrets=True)
    assert f'"text":"{truth}"' in (tmp_path / "all/trajectories.jsonl").read_text()


def test_what_only_a_critic_may_read_is_in_no_chat(tmp_path: Path) -> None:
    with read(wrote(tmp_path / "theirs.jsonl", ROWS)) as (recipe, run):
        run_stages(recipe, run, Silent(), [StageKey(0, "select")])
        _, counts = export(run.folder, "trl", tmp_path / "files", role="critic")
        assert counts == {"pairs": 2}
        with pytest.raises(UserError, match=r"can't represent any of the 2 rows and pairs"):
            export(run.folder, "llamafactory", tmp_path / "whole")
    pairs = lines(tmp_path / "files/pairs.jsonl")
    assert not any("boxes * 12" in json.dumps(pair) for pair in pairs)
    for pair in pairs:
        assert pair["prompt"][-1]["role"] == "user"
        assert pair["chosen"][-1]["content"] == RIGHT and pair["rejected"][-1]["content"] == WRONG


def test_the_last_policy_is_written_with_its_tokenizer_and_a_card(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    written = cli("export", "model", "run", "--out", "mine")
    assert written.code == 0 and written.out.strip() == "mine", written.err
    theirs = AutoModelForCausalLM.from_pretrained("mine").state_dict()
    base = weights("tiny-exchange")
    assert equal(theirs, weights(run / "training/policy/iteration-00/final"))
    assert not equal(theirs, base)
    assert AutoTokenizer.from_pretrained("mine").chat_template
    card = (tmp_path / "mine/README.md").read_text()
    assert "# optima/isft on exchange" in card and "| 1 |" in card and "| 0 |" in card
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    (tmp_path / "again.yaml").write_text(card.split("```yaml\n")[1].split("```")[0])
    stored = read_arguments(None, [], run / "config.yaml").resolve()
    assert read_arguments(None, [], tmp_path / "again.yaml").resolve() == stored, "all settings"
    assert cli("evaluate", "exchange", "policy=mine", "tasks=2").code == 0
    assert cli("export", "model", "run", "--out", "base", "--iteration", 0).code == 0
    assert equal(weights("base"), base)


def test_an_adapter_is_written_as_it_is_or_merged(cli: Cli) -> None:
    lora = ("train.method=lora", "train.lora_r=4", "train.learning_rate=1e-2")
    assert cli("run", "optima/isft", *FEW, *lora, "--folder", "run").code == 0
    assert cli("export", "model", "run", "--out", "adapter").code == 0
    assert Path("adapter/adapter_config.json").is_file()
    assert Path("adapter/tokenizer.json").is_file()
    card = Path("adapter/README.md").read_text()
    assert "A LoRA adapter of" in card and "generation_config.json" in card
    assert cli("export", "model", "run", "--out", "merged", "--merge").code == 0
    merged, base = weights("merged"), weights("tiny-exchange")
    assert merged.keys() == base.keys() and not equal(merged, base)


@pytest.mark.parametrize("base", ["tiny-exchange", "base"])
def test_an_adapter_of_peft_is_merged_by_the_command_that_its_refusal_names(
    base: str, cli: Cli
) -> None:
    """The base is a name, or a folder inside the adapter's; its chat template may be the adapter's."""
    loaded = load("tiny-exchange")
    adapter = add_lora(loaded.model, r=2, alpha=4)
    for name, weight in adapter.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(0))
    adapter.save_pretrained("adapter")
    file = Path("adapter/adapter_config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base}))
    if base == "base":
        shutil.copytree(resolve("tiny-exchange"), "adapter/base")
    template = loaded.tokenizer.chat_template
    Path("adapter/chat_template.jinja").write_text(f"{template}{{# the adapter's #}}")
    for words in (("evaluate", "exchange", "policy=adapter"), ("run", "rl/grpo", "model=adapter")):
        problem = refused(cli, *words, "--dry-run" if words[0] == "run" else "tasks=1")
        command = re.search(r"coterie (export model \S*adapter --merge --out MERGED)", problem)
        assert command, problem
    assert "is a LoRA adapter, not a run" in refused(
        cli, "export", "model", "adapter", "--out", "x"
    )
    result = cli(*command[1].split())
    assert result.code == 0, result.err
    fresh, in_python = load("MERGED"), coterie.load("adapter")
    ids = torch.tensor([loaded.tokenizer.encode("Where does Nora live?")])
    with torch.no_grad():
        expected, found = adapter(ids).logits, fresh.model(ids).logits
        plain = load("tiny-exchange").model(ids).logits
        assert torch.equal(found, in_python.model(ids).logits)
    assert torch.allclose(expected, found, atol=1e-4) and not torch.allclose(
        expected, plain, atol=0.1
    )
    assert str(fresh.tokenizer.chat_template).endswith("{# the adapter's #}")
