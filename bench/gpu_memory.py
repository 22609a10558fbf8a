"""Peak memory of real training steps on a GPU, against the plan of :mod:`coterie.training.memory`.

    .venv/bin/python bench/gpu_memory.py
    .venv/bin/python bench/gpu_memory.py --size tiny       # tries the script on a CPU, in seconds

Under 90 s on one H100; needs no model from anywhere. Random Llamas of 0.45B and 1.2B weights take two optimizer steps
of four rows of random tokens in micro-batches of two rows; the second step, which has AdamW's moments, is measured by
``torch.cuda.max_memory_allocated``. Before the others, a small model takes steps, so that what libraries allocate once
is not counted in the first setting.

The last line is one JSON object:

    device      name of the GPU
    settings    a list of: name, weights, length, planned_gib, measured_gib, ratio (measured over planned; null on a
                CPU), terms_gib; or error
    ratios      least and greatest ratio
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import gc
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from coterie.record.rows import Row, Target
from coterie.training.losses import SFT
from coterie.training.memory import LIBRARIES, ModelShape, TrainedModel, training_memory
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer

SIZES = {
    "tiny": (300, 64, 128, 2, 2, 2),
    "0.45b": (32_000, 1024, 4096, 24, 16, 8),
    "1.2b": (128_256, 2048, 8192, 12, 32, 8),
}
"""Vocabulary, hidden and inner width, layers, heads, key heads."""
ROWS = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """One measured training."""

    name: str
    size: str
    length: int
    own: dict[str, Any] = field(default_factory=dict)


SETTINGS = (
    Setting("float32", "0.45b", 1024, {"mixed_precision": "no"}),
    Setting("float32 weights, bfloat16 autocast", "0.45b", 2048),
    Setting("bfloat16", "1.2b", 1024, {"dtype": "bfloat16"}),
    Setting(
        "bfloat16, checkpointing",
        "1.2b",
        4096,
        {"dtype": "bfloat16", "gradient_checkpointing": True},
    ),
    Setting(
        "LoRA on bfloat16",
        "1.2b",
        2048,
        {"dtype": "bfloat16", "method": "lora", "lora_targets": ("all-linear",)},
    ),
)


def made(size: str, dtype: str, device: str) -> Any:
    vocabulary, hidden, inner, layers, heads, kv_heads = SIZES[size]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=False,
        max_position_embeddings=8192,
    )
    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM._from_config(
            config, attn_implementation="sdpa", dtype=getattr(torch, dtype)
        )


def measure(one: Setting, device: str) -> dict[str, Any]:
    """Return the planned and the measured peak of a training."""
    on_gpu = device.startswith("cuda")
    settings = TrainingSettings(
        max_length=one.length,
        tokens_per_microbatch=2 * one.length,
        packing="flat",
        schedule="constant",
        warmup_ratio=0,
        save_every_seconds=None,
        **one.own,
    )
    model = made(one.size, settings.dtype, device)
    trained = TrainedModel(ModelShape.of(model), settings)
    plan = training_memory("train", [trained], device=device)
    planned = plan.total - LIBRARIES  # the allocator of PyTorch does not count them
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, trained.shape.vocabulary, (ROWS, one.length), generator=generator)
    rows = [Row(tuple(row), (Target(1, len(row), "policy@0"),)) for row in ids.tolist()]
    with TemporaryDirectory() as folder, Trainer(model, SFT(), settings, Path(folder)) as trainer:
        trainer.step(rows)
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        trainer.step(rows)
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    return {
        "name": one.name,
        "weights": trained.shape.weights,
        "length": one.length,
        "planned_gib": round(planned / 2**30, 3),
        "measured_gib": peak and round(peak / 2**30, 3),
        "ratio": peak and round(peak / planned, 3),
        "terms_gib": {name: round(size / 2**30, 3) for name, size in plan.terms.items()},
    }


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, help="of all models, in rows of 64 tokens")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    results = []
    for one in (Setting("warm-up", "tiny", 64), *SETTINGS):
        if args.size:
            one = Setting(one.name, args.size, 64, one.own)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        began = time.monotonic()
        try:
            found = measure(one, args.device)
        except Exception as error:
            found = {"name": one.name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(f"{time.monotonic() - began:.1f} s", found, flush=True)
        results.append(found)
    ratios = [found["ratio"] for found in results[1:] if found.get("ratio")]
    report = {
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else "cpu",
        "settings": results[1:],
        "ratios": [min(ratios), max(ratios)] if ratios else None,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
