"""The memory plan against the peak of live tensors in real steps, and what it refuses."""

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from coterie.engines.settings import EngineSettings
from coterie.errors import UserError
from coterie.recipes import plan as plan_of_run
from coterie.record.rows import Row, Target
from coterie.training.losses import SFT, Objective
from coterie.training.memory import (
    LIBRARIES,
    ModelShape,
    TrainedModel,
    cache_memory,
    training_memory,
)
from coterie.training.policy_gradient import PolicyGradient
from coterie.training.reference import LossModule
from coterie.training.settings import PolicyGradientSettings, TrainingSettings
from coterie.training.trainer import Trainer, make_optimizer
from tests.conftest import Cli, refused
from tests.helpers.write_rows import write_jsonl
from tests.project.test_first_hour import TINY

CARD = 80 * 10**9
QWEN3_8B = Qwen3Config(
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40_960,
    tie_word_embeddings=False,
    architectures=["Qwen3ForCausalLM"],
)
LLAMA_8B = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that were made in the block and are alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def row(length: int, vocabulary: int) -> Row:
    ids = tuple(torch.randint(0, vocabulary, (length,)).tolist())
    known = {"logprobs": (-1.0,) * (length - 1), "advantages": (1.0,) * (length - 1)}
    return Row(ids, (Target(1, length, "policy@0"),), **known)


SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads", "num_key_value_heads")  # fmt: skip
SMOLLM2, LONG = (16_384, 576, 1536, 2, 9, 3), (500, 64, 192, 2, 4, 2)
WIDE = (500, 128, 512, 3, 4, 2)
LORA = {"method": "lora", "lora_targets": ("all-linear",), "dtype": "bfloat16"}
POLICY = PolicyGradient(PolicyGradientSettings(entropy_coef=0.1))


@pytest.mark.parametrize(
    ("sizes", "length", "objective", "own"),
    [
        pytest.param(SMOLLM2, 128, SFT(), {}, id="SmolLM2's widths"),
        pytest.param(LONG, 2048, SFT(), {}, id="long rows"),
        pytest.param(WIDE, 256, SFT(), LORA, id="LoRA in bfloat16"),
        pytest.param(WIDE, 256, SFT(), {"gradient_checkpointing": True}, id="checkpointing"),
        pytest.param(WIDE, 256, POLICY, {"mixed_precision": "bf16"}, id="entropies in autocast"),
    ],
)
def test_a_step_peaks_within_a_quarter_of_the_plan(
    sizes: tuple[int, ...], length: int, objective: Objective[Row], own: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    own_sizes: dict[str, Any] = dict(zip(SIZES, sizes, strict=True))
    config = LlamaConfig(**own_sizes, tie_word_embeddings=True, max_position_embeddings=8192)
    rows = [row(length, config.vocab_size) for _ in range(4)]
    settings = TrainingSettings(
        max_length=length,
        tokens_per_microbatch=2 * length,
        packing="flat",
        schedule="constant",
        warmup_ratio=0,
        save_every_seconds=None,
        **own,
    )
    with LiveBytes() as live:
        model = AutoModelForCausalLM.from_config(config).to(getattr(torch, settings.dtype))
        shape = ModelShape.of(model)
        with Trainer(model, objective, settings, tmp_path) as trainer:
            trainer.step(rows)
            live.peak = live.now
            trainer.step(rows)
    trained = TrainedModel(shape, settings, reads=objective.reads)
    plan = training_memory("train", [trained], device="cpu")
    assert 0.8 < live.peak / (plan.total - LIBRARIES) < 1.25


def test_the_plan_of_an_8b_model_is_the_peak_of_fake_tensors() -> None:
    settings = TrainingSettings(dtype="bfloat16", max_length=4096)
    config = LlamaConfig(**LLAMA_8B, num_hidden_layers=2)
    with FakeTensorMode(), LiveBytes() as live:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        module = LossModule(model, SFT())
        optimizer = make_optimizer(dict(model.named_parameters()), settings)
        for _ in range(2):
            for _ in range(2):
                module([Row((5,) * 4096, (Target(1, 4096, "policy@0"),))]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    plan = training_memory("train", [TrainedModel(ModelShape.of(model), settings)], device="cpu")
    assert 0.9 < live.peak / (plan.total - LIBRARIES) < 1.1


@pytest.mark.parametrize(
    ("rows", "items", "batch", "tokens"),
    [
        (1, 27, 32, 27 * 9),  # all rows of a small file
        (2, 27, 8, 8 * 2 * 9),  # the pairs of a step
        (1, 27_000, 2048, 8192),  # a micro-batch of many rows
        (1, None, 1, 8192),  # unknown
    ],
)
def test_a_micro_batch_has_no_more_rows_than_a_step_of_the_file(
    rows: int, items: int | None, batch: int, tokens: int
) -> None:
    with torch.device("meta"):
        shape = ModelShape.of(AutoModelForCausalLM.from_config(QWEN3_8B))
    settings = TrainingSettings(batch_size=batch, tokens_per_microbatch=8192)
    assert TrainedModel(shape, settings, 9, rows, items).tokens == tokens


def test_a_process_needs_memory_for_its_libraries(cli: Cli, tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "sums.jsonl",
        *[{"prompt": f"{n}+1?", "completion": f"{n + 1}"} for n in range(30)],
    )
    said = cli("run", "sft", file, "model=tiny-acts", "engine.device=cpu", "--dry-run")
    text = " ".join(said.out.split())
    assert "memory of train up to 0.5" in text and "libraries 0.50, " in text


def qwen3_8b(update: TrainingSettings, ranks: int = 1, *, sharded: bool = False) -> Any:
    """The plan of GRPO with 8 groups of 8 dialogues of 1,024 tokens, which ranks share."""
    with torch.device("meta"):
        shape = ModelShape.of(AutoModelForCausalLM.from_config(QWEN3_8B))
    assert shape.weights == 8_190_735_360
    size = 2 if update.dtype == "bfloat16" else 4
    cache = cache_memory(shape, EngineSettings(device="cuda"), size, 64 // ranks, 1024)
    model = TrainedModel(shape, update, reads="entropies_no_grad")
    more: dict[str, Any] = {"ranks": ranks, "sharded": sharded, "sampling": cache}
    references = int(update.method == "full")
    return training_memory("train", [model], device="cuda", references=references, **more)


def test_8b_weights_learn_on_eight_sharded_ranks_or_by_an_adapter_and_not_on_one_card() -> None:
    whole = TrainingSettings()
    with pytest.raises(UserError, match=r"optimizer state 61\.0, .*weights 30\.5") as error:
        qwen3_8b(whole).check(CARD, "cuda", "Qwen/Qwen3-8B")
    assert "train.method=lora, train.dtype=bfloat16" in error.value.todo
    assert qwen3_8b(whole, ranks=8, sharded=True).total < CARD
    assert qwen3_8b(whole, ranks=8).certain > CARD, "copies"
    adapter = TrainingSettings(method="lora", dtype="bfloat16", gradient_checkpointing=True)
    assert qwen3_8b(adapter).total < CARD


def test_a_run_of_8b_weights_is_refused_before_they_are_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(TINY, tmp_path / "8b")
    (tmp_path / "8b/config.json").write_text(json.dumps(QWEN3_8B.to_dict()))
    monkeypatch.setattr(plan_of_run, "device_memory", lambda device: (CARD, CARD))
    overrides = ("environment=exchange", "model=8b", "engine.device=cpu")
    said = refused(cli, "run", "rl/grpo", *overrides)
    assert "8b needs" in said and "which has 74.5 GiB" in said
