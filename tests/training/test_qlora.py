"""LoRA adapters on a base in 4 bits (QLoRA), by bitsandbytes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from coterie.cli.export import export_model
from coterie.errors import UserError
from coterie.models.adapters import ALL_LINEAR, add_lora, load_adapter
from coterie.models.loading import load
from coterie.record.rows import Row, Target
from coterie.training.checkpoint import hash_tensors, weight_hash
from coterie.training.losses import SFT
from coterie.training.memory import ModelShape
from coterie.training.reference import row_logprobs, with_row_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer, train
from tests.helpers.run_rl import SMALL, make_recipe, run_to_end

pytest.importorskip("bitsandbytes")

SETTINGS = TrainingSettings(method="lora", load_in_4bit=True, learning_rate=1e-2)
ROWS = [Row(tuple(range(n, n + 12)), (Target(4, 12, "policy"),)) for n in (20, 60, 100, 140)]
RUN = ("train.method=lora", "train.load_in_4bit=true", "engine.device=cpu")


def quantized() -> Any:
    return load("tiny-exchange", load_in_4bit=True).model


def test_a_training_resumes_bitwise_and_its_adapter_fits_the_full_base(tmp_path: Path) -> None:
    model, finals = quantized(), []
    for name in ("whole", "killed"):
        with Trainer(model, SFT(), SETTINGS, tmp_path / name, steps=2) as trainer:
            trainer.step(ROWS[:2])
            trainer.save()
            if name == "whole":
                trainer.step(ROWS[2:])
                finals.append(trainer.finish().final)
    with Trainer(quantized(), SFT(), SETTINGS, tmp_path / "killed", steps=2) as trainer:
        assert trainer.done == 1
        trainer.step(ROWS[2:])
        finals.append(trainer.finish().final)
    assert weight_hash(finals[0]) == weight_hash(finals[1])

    full = load("tiny-exchange").model
    for base in (full, model):
        assert isinstance(load_adapter(base, finals[0]), PeftModel)
    full.get_input_embeddings().weight.data[0] += 1
    with pytest.raises(UserError, match="a different base"):
        load_adapter(full, finals[0])


def test_only_the_adapter_is_trained_and_the_reference_is_the_base(tmp_path: Path) -> None:
    model = quantized()
    before = hash_tensors(model.state_dict().items())
    with torch.no_grad():
        base, full = (row_logprobs(each, ROWS) for each in (model, load("tiny-exchange").model))
    assert 0 < (torch.cat(base) - torch.cat(full)).abs().median() < 0.5, "NF4 is close to float32"
    with Trainer(model, SFT(), SETTINGS, tmp_path, steps=1) as trainer:
        trainer.step(ROWS)
        rows = with_row_reference(trainer.model, ROWS, SETTINGS, temperature=1.0)
        with torch.no_grad():
            moved = row_logprobs(trainer.model, ROWS)
    for row, logprobs, trained in zip(rows, base, moved, strict=True):
        assert row.reference == pytest.approx(logprobs.tolist(), abs=1e-5)
        assert (trained - logprobs).abs().max() > 0.1
    assert hash_tensors(model.state_dict().items()) == before


def test_evaluation_does_not_rewrite_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a CPU with AVX512-BF16, for which bitsandbytes packs the weights when they are first used.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    model = quantized()
    weights = [weight.data_ptr() for weight in model.parameters()]
    with torch.no_grad():
        model(torch.tensor([ROWS[0].ids]))
    assert [weight.data_ptr() for weight in model.parameters()] == weights


def test_the_memory_plan_counts_the_bytes_of_4_bits() -> None:
    model, skeleton = quantized(), load("tiny-exchange").model
    constants = ("quant_map", "nested_quant_map", "bitsandbytes__nf4")  # the same for all sizes
    state = {id(w): (name, w) for name, w in model.state_dict(keep_vars=True).items()}.values()
    size = sum(weight.nbytes for name, weight in state if not name.endswith(constants))
    shape = ModelShape.of(skeleton, load_in_4bit=True)
    assert shape.weight_memory(4) == pytest.approx(size, rel=0.002)
    assert not shape.compiled, "the compiled loops read weights in full"


def test_reinforcement_learning_and_its_merged_policy(tmp_path: Path) -> None:
    short = ("steps.count=1", "rollout.max_tokens=16", "evaluate.tasks=1")
    overrides = (*SMALL, *RUN, *short, "loss.kl_coef=0.1")
    records = run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    assert records[0]["policy/reference_kl"] == pytest.approx(0, abs=1e-5)
    assert records[0]["policy/ratio_max"] == pytest.approx(1, abs=1e-3)
    export_model(tmp_path / "run", tmp_path / "merged", merge=True)
    config = tmp_path / "merged/config.json"
    assert config.is_file() and "quantization_config" not in config.read_text()
    merged, base = load(tmp_path / "merged").model, load("tiny-exchange").model
    for name, weight in base.named_parameters():
        # NF4 alone moves weights further than the adapter of one step.
        assert (merged.get_parameter(name) - weight).abs().max() < 0.01, name


def test_a_model_that_was_loaded_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="load_in_4bit=True, but the model was loaded otherwise"):
        train(load("tiny-exchange").model, ROWS, SETTINGS, tmp_path)
    lora = add_lora(quantized(), r=2, alpha=4, target_modules=[ALL_LINEAR])
    with pytest.raises(UserError, match="load_in_4bit=False, but the model was loaded otherwise"):
        train(lora, ROWS, TrainingSettings(method="lora"), tmp_path)
