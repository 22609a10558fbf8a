"""The loaders of TRL, verl, OpenRLHF and LLaMA-Factory read exports with the run's loss masks, pairs and tasks."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from datasets import load_dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from coterie.cli.export import _write_chats, export_data
from coterie.models.loading import load_renderer, resolve
from coterie.record.export import TrainedSelection
from coterie.record.tree import Selection
from tests.cli.test_export import lines, trained  # noqa: F401
from tests.helpers import native_templates
from tests.helpers.play_native_calls import (
    WRITE,
    Played,
    Prepared,
    Said,
    Things,
    play_calls,
    syntax_of,
)

pytestmark = pytest.mark.skipif(find_spec("verl") is None, reason="see make test-exports")
MODEL = "tiny-exchange"
END = "<|end|>"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_renderer(MODEL)[0].tokenizer


@pytest.fixture(scope="module")
def files(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The exports of a run with an iteration of rows and one of pairs, by format."""
    folder = tmp_path_factory.mktemp("exports")
    for form in ("jsonl", "trl", "llamafactory", "verl"):
        export_data(trained, form, folder / form)
    return folder


def replies(messages: list[Row]) -> list[str]:
    return [one["content"] for one in messages if one["role"] == "assistant"]


def learned(
    ids: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase, end: str = END
) -> list[str]:
    """Return the texts of the spans with loss, without the token that ends a message."""
    spans, before = list[list[int]](), False
    for id_, label in zip(ids, labels, strict=True):
        if label != -100:
            assert label == id_
            spans += [] if before else [[]]
            spans[-1].append(id_)
        before = label != -100
    texts = [tokenizer.decode(span).strip() for span in spans]
    assert all(text.endswith(end) for text in texts)
    return [text.removesuffix(end).strip() for text in texts]


def masked(ids: Any, mask: Any) -> tuple[list[int], list[int]]:
    return ids.tolist(), [int(id_) if own else -100 for id_, own in zip(ids, mask, strict=True)]


# -- TRL ------------------------------------------------------------------------------------------


def sft_trainer(file: Path, folder: Path, model: Any = None, tokenizer: Any = None) -> Any:
    from trl import SFTConfig, SFTTrainer

    data = load_dataset("json", data_files=str(file), split="train", cache_dir=str(folder / "hf"))
    config = SFTConfig(str(folder / "out"), max_length=None, report_to="none", use_cpu=True)
    model = model or AutoModelForCausalLM.from_pretrained(resolve(MODEL))
    tokenizer = tokenizer or load_renderer(MODEL)[0].tokenizer
    return SFTTrainer(model, config, train_dataset=data, processing_class=tokenizer)


def test_trl_trains_by_default_on_the_agents_turn_of_each_row(
    files: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    trainer, rows = sft_trainer(files / "trl/rows.jsonl", tmp_path), lines(files / "trl/rows.jsonl")
    assert len(trainer.train_dataset) == len(rows)
    for one, row in zip(trainer.train_dataset, rows, strict=True):
        assert learned(one["input_ids"], one["labels"], tokenizer) == replies(row["completion"])
    assert any(replies(row["prompt"]) for row in rows), "a row is not the first turn"
    dialogues = lines(files / "jsonl/rows.jsonl")
    turns = [text for row in dialogues for text in replies(row["completion"])]
    assert [text for row in rows for text in replies(row["completion"])] == turns


def test_trl_trains_on_the_exact_tokens_of_jsonl_rows(
    files: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    trainer = sft_trainer(files / "jsonl/rows.jsonl", tmp_path)
    rows = lines(files / "jsonl/rows.jsonl")
    assert any(len(replies(row["completion"])) > 1 for row in rows)
    batch = trainer.data_collator([trainer.train_dataset[at] for at in range(len(rows))])
    for ids, labels, row in zip(batch["input_ids"], batch["labels"], rows, strict=True):
        length = len(row["input_ids"])
        assert ids[:length].tolist() == row["input_ids"]
        assert labels[:length].tolist() == row["labels"]
        assert set(labels[length:].tolist()) <= {-100}
        assert learned(row["input_ids"], row["labels"], tokenizer) == replies(row["completion"])
    assert trainer.train().training_loss > 0


def test_trl_prefers_the_chosen_side(
    files: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    from trl import DPOConfig, DPOTrainer

    file, cache = str(files / "trl/pairs.jsonl"), str(tmp_path / "hf")
    data = load_dataset("json", data_files=file, split="train", cache_dir=cache)
    config = DPOConfig(str(tmp_path / "out"), max_length=None, report_to="none", use_cpu=True)
    model = AutoModelForCausalLM.from_pretrained(resolve(MODEL))
    trainer = DPOTrainer(model, None, config, train_dataset=data, processing_class=tokenizer)
    for one, row in zip(trainer.train_dataset, lines(Path(file)), strict=True):
        for side in ("chosen", "rejected"):
            ids = one[f"{side}_ids"]
            assert learned(ids, ids, tokenizer) == replies(row[side])


def test_trl_gives_tasks_to_a_reward_function(
    files: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    from trl import GRPOConfig, GRPOTrainer

    file, given = str(files / "verl/train.parquet"), list[tuple[str, str]]()
    data = load_dataset("parquet", data_files=file, split="train", cache_dir=str(tmp_path / "hf"))

    def reward(prompts: Any, completions: Any, label: list[str], **_: Any) -> list[float]:
        given.extend(
            (prompt[-1]["content"], one) for prompt, one in zip(prompts, label, strict=True)
        )
        return [float(len(one[0]["content"])) for one in completions]

    config = GRPOConfig(
        str(tmp_path / "out"), max_steps=1, num_generations=2, per_device_train_batch_size=2,
        max_completion_length=4, report_to="none", use_cpu=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(resolve(MODEL))
    GRPOTrainer(model, reward, config, train_dataset=data, processing_class=tokenizer).train()
    assert given and set(given) <= {(one["prompt"][-1]["content"], one["label"]) for one in data}


# -- verl -----------------------------------------------------------------------------------------


def test_verl_reads_tasks_and_rows(
    files: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    config = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts_workers": 1})
    for split in ("train", "heldout"):
        tasks = RLHFDataset(str(files / f"verl/{split}.parquet"), tokenizer, config)
        batch = collate_fn([tasks[at] for at in range(len(tasks))])
        assert set(batch["data_source"]) == {"exchange"}
        assert all(one["style"] == "rule" and one["ground_truth"] for one in batch["reward_model"])
        assert len(set(batch["index"])) == len(tasks)
    limits = OmegaConf.create({"pad_mode": "no_padding", "max_length": 4096})
    data = MultiTurnSFTDataset(str(files / "verl/rows.parquet"), tokenizer, limits)
    rows = lines(files / "jsonl/rows.jsonl")
    for one, row in zip(data, rows, strict=True):
        ids, labels = masked(one["input_ids"], one["loss_mask"])
        assert learned(ids, labels, tokenizer) == replies(row["completion"])
        assert ids[1:] == row["input_ids"][1:], "the same tokens, after the role of a system prompt"


# -- OpenRLHF -------------------------------------------------------------------------------------


def strategy(**data: Any) -> Any:
    """A stand-in for OpenRLHF's strategy, which needs DeepSpeed: its data sets read only settings."""
    args = SimpleNamespace(data=SimpleNamespace(apply_chat_template=True, **data))
    return SimpleNamespace(args=args, is_rank_0=lambda: True, print=print)


@pytest.fixture
def openrlhf(tmp_path: Path) -> Iterator[Any]:
    from openrlhf.datasets.utils import blending_datasets

    def read(file: Path) -> Any:
        return blending_datasets(str(file), None, strategy())

    return read


def test_openrlhf_reads_rows_dialogues_pairs_and_tasks(
    files: Path, openrlhf: Any, tokenizer: PreTrainedTokenizerBase
) -> None:
    from openrlhf.datasets import PromptDataset, RewardDataset, SFTDataset

    rows = openrlhf(files / "trl/rows.jsonl")
    keys = strategy(input_key="prompt", output_key="completion")
    data = SFTDataset(rows, tokenizer, 4096, keys, num_processors=1)
    for at, row in enumerate(rows):
        ids, _, mask = data[at]
        assert openrlhf_learned(ids[0], mask[0], tokenizer) == replies(row["completion"])
    dialogues = openrlhf(files / "llamafactory/rows.jsonl")
    data = SFTDataset(
        dialogues, tokenizer, 4096, strategy(input_key="messages"), num_processors=1, multiturn=True
    )
    for at, row in enumerate(dialogues):
        ids, _, mask = data[at]
        assert openrlhf_learned(ids[0], mask[0], tokenizer) == replies(row["messages"])
    pairs = openrlhf(files / "trl/pairs.jsonl")
    keys = strategy(prompt_key="prompt", chosen_key="chosen", rejected_key="rejected")
    data = RewardDataset(pairs, tokenizer, 4096, keys, is_dpo=True, num_processors=1)
    for at, row in enumerate(pairs):
        chosen, _, rejected, _, length = data[at]
        for ids, side in ((chosen, "chosen"), (rejected, "rejected")):
            own = ids[0][length:].tolist()
            assert learned(own, own, tokenizer) == replies(row[side])
    tasks = openrlhf(files / "verl/train.parquet")
    prompts = PromptDataset(tasks, tokenizer, strategy(input_key="prompt", label_key="label"))
    for at, task in enumerate(tasks):
        _, prompt, label, _ = prompts[at]
        assert task["prompt"][-1]["content"] in prompt and prompt.endswith("<|assistant|>")
        assert label == task["reward_model"]["ground_truth"]


def openrlhf_learned(ids: Any, mask: Any, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts with loss: OpenRLHF marks the token before each token that it predicts."""
    labels = [int(id_) if own else -100 for id_, own in zip(ids[1:], mask[:-1], strict=True)]
    return learned(ids[1:].tolist(), labels, tokenizer)


# -- native calls ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calls() -> Played:
    """A dialogue with two calls in Qwen2.5's own syntax and a second question."""
    renderer = native_templates.make_native_model("qwen2").renderer
    write = WRITE["qwen2"]
    texts = (write([("look", "1")]), "It is blue.", write([("look", "3")]), "It is tall.")
    engine = Prepared(renderer, [Said(text) for text in texts])
    played = play_calls(engine, renderer, Things(syntax_of("qwen2"), "blue"))
    assert [turn.text for turn in played.said] == list(texts)
    return played


def written(played: Played, form: Any, folder: Path) -> Path:
    folder.mkdir()
    selection = Selection(played.leaf, "agent")
    render = native_templates.make_native_model("qwen2").renderer.render
    _write_chats(iter([TrainedSelection("policy", played.tree, selection, render)]), form, folder)
    return folder


def test_trl_shows_tools_and_trains_on_native_calls(calls: Played, tmp_path: Path) -> None:
    loaded = native_templates.make_native_model("qwen2")
    file = written(calls, "trl", tmp_path / "trl") / "rows.jsonl"
    trainer = sft_trainer(file, tmp_path, loaded.model, loaded.renderer.tokenizer)
    decode = loaded.renderer.decode
    for one, (prompt, completion) in zip(trainer.train_dataset, calls.heard, strict=True):
        seen = [
            id_ for id_, label in zip(one["input_ids"], one["labels"], strict=True) if label < 0
        ]
        own = [label for label in one["labels"] if label >= 0]
        assert decode(seen) == decode(prompt), "what the engine read"
        assert decode(own).strip() == decode(completion.ids), "what it returned"


def test_llama_factory_shows_tools_and_trains_on_native_calls(
    calls: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(calls, "llamafactory", tmp_path / "files")
    tokenizer = native_templates.make_native_tokenizer("qwen2")
    (row,) = llama_factory(folder, "rows", "sft", tokenizer, tmp_path, monkeypatch, template="qwen")
    texts = learned(row["input_ids"], row["labels"], tokenizer, "<|im_end|>")
    assert texts == [turn.text for turn in calls.said]
    text = tokenizer.decode(row["input_ids"])
    assert '"name": "look"' in text.split("<|im_start|>user")[0]
    assert "<tool_response>\n1: blue\n</tool_response>" in text


# -- LLaMA-Factory --------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["sft", "rm"])
def test_llama_factory_reads_rows_and_pairs(
    stage: str,
    files: Path,
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "rows" if stage == "sft" else "pairs"
    folder = files / "llamafactory"
    data = llama_factory(folder, name, stage, tokenizer, tmp_path, monkeypatch)
    rows = lines(folder / f"{name}.jsonl")
    for one, row in zip(data, rows, strict=True):
        if stage == "sft":
            texts = learned(one["input_ids"], one["labels"], tokenizer)
            assert texts == replies(row["messages"])
            continue
        for side in ("chosen", "rejected"):
            ids, labels = one[f"{side}_input_ids"], one[f"{side}_labels"]
            assert learned(ids, labels, tokenizer) == [row[side]["content"]]
    assert rows


def llama_factory(
    folder: Path,
    name: str,
    stage: str,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    **more: str,
) -> Any:
    """Return what LLaMA-Factory reads from a folder for a training."""
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")  # its pins are older than the other packages
    monkeypatch.setitem(sys.modules, "torchaudio", ModuleType("torchaudio"))
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args

    values = {"dataset": f"coterie_{name}", "dataset_dir": str(folder), "cutoff_len": 4096}
    values |= {"model_name_or_path": str(resolve(MODEL)), "output_dir": str(out), "stage": stage}
    values |= {"do_train": True, "finetuning_type": "full", "preprocessing_num_workers": 1}
    words = {**values, **more, "use_cpu": True, "report_to": "none"}
    model, data, training, _, _ = get_train_args(words)
    template = get_template_and_fix_tokenizer(tokenizer, data)
    read = get_dataset(template, model, data, training, stage=stage, tokenizer=tokenizer)
    return read["train_dataset"]
