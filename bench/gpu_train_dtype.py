"""A step of supervised training in float32, in bfloat16 autocast and in bfloat16 weights, against Transformers.

    .venv/bin/python bench/gpu_train_dtype.py
    .venv/bin/python bench/gpu_train_dtype.py --size tiny       # tries the script on a CPU, in seconds

Some minutes of one GPU; needs no model from anywhere. A random Llama of 0.5B weights, 16 rows of 1,024 random
tokens that share nothing, all of them targets. Both sides take the same optimizer step: forward and backward in
micro-batches of 8 rows, clipping, fused AdamW. Ours is ``Trainer.step``. The baseline is Transformers' own loss
(``model(..., labels=...)``), under ``torch.autocast`` for ``mixed``; its pure bfloat16 has moments in bfloat16 and
rounds to the nearest, ours has moments in float32 and rounds stochastically. ``--attention`` is passed to both; flash
attention needs its package. ``lora`` is ours alone: an adapter of all linear layers on a base of bfloat16.

The last line is one JSON object:

    device, weights, rows, length, attention
    ours, transformers     of each dtype: tokens_per_second (median step), step_seconds, peak_gib (of the whole step,
                           weights included; null on a CPU), first_loss, last_loss; or error (such as out of memory)
    speed                  our tokens per second over Transformers', by dtype
    memory                 our peak over Transformers', by dtype
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from coterie.record.rows import Row, Target
from coterie.training.losses import SFT
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer

SIZES = {
    "0.5b": {
        "vocab_size": 32_000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    "tiny": {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
}
KINDS = {
    "float32": ("float32", "no"),
    "mixed": ("float32", "bf16"),
    "bfloat16": ("bfloat16", "no"),
}
"""dtype of the weights, and mixed precision."""
RATE, NORM = 1e-4, 1.0


def made(size: str, dtype: str, attention: str, device: str) -> Any:
    """The model, with equal weights each time but for rounding."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES[size], max_position_embeddings=4096, tie_word_embeddings=False)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(config, attn_implementation=attention)
    return model.to(getattr(torch, dtype))


def ours(args: argparse.Namespace, kind: str, ids: torch.Tensor) -> dict[str, Any]:
    """Figures of our trainer."""
    dtype, mixed = KINDS["bfloat16" if kind == "lora" else kind]
    settings = TrainingSettings(
        dtype=dtype,
        mixed_precision="bf16" if kind == "lora" else mixed,
        method="lora" if kind == "lora" else "full",
        lora_targets=("all-linear",),
        learning_rate=RATE,
        schedule="constant",
        warmup_ratio=0,
        max_length=args.length,
        tokens_per_microbatch=args.length * args.micro,
        packing="flat",
        max_grad_norm=NORM,
        save_every_seconds=None,
    )
    rows = [Row(tuple(row), (Target(1, len(row), "policy@0"),)) for row in ids.tolist()]
    model = made(args.size, dtype, args.attention, args.device)
    with (
        TemporaryDirectory() as folder,
        Trainer(model, SFT(), settings, Path(folder)) as trainer,
    ):
        return timed(args, lambda: trainer.step(rows)["loss"])


def transformers(args: argparse.Namespace, kind: str, ids: torch.Tensor) -> dict[str, Any]:
    """Figures of Transformers' own loss."""
    dtype, mixed = KINDS[kind]
    model = made(args.size, dtype, args.attention, args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    parts = ids.to(args.device).split(args.micro)

    def step() -> float:
        total = 0.0
        for part in parts:
            with torch.autocast(ids_device, torch.bfloat16) if mixed == "bf16" else nullcontext():
                loss = model(input_ids=part, labels=part, use_cache=False).loss / len(parts)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        optimizer.zero_grad()
        return total

    ids_device = args.device.partition(":")[0]
    return timed(args, step)


def timed(args: argparse.Namespace, step: Callable[[], float]) -> dict[str, Any]:
    """Median of steps after two that are not counted, and the most memory at any time."""
    on_gpu = args.device.startswith("cuda")
    losses, seconds = [], []
    for _ in range(2 + args.steps):
        began = time.monotonic()
        losses.append(step())
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
    median = statistics.median(seconds[2:])
    return {
        "tokens_per_second": round(args.rows * args.length / median, 1),
        "step_seconds": round(median, 4),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3) if on_gpu else None,
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
    }


def tried(side: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """What a side comes to, or why it came to nothing; with the device's memory to itself."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        found = side(*given)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    print(side.__name__, given[1], found, flush=True)
    return found


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="0.5b")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--micro", type=int, default=8, help="rows of a micro-batch")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.size == "tiny":
        args.rows, args.length, args.micro, args.steps = 4, 64, 2, 3
    generator = torch.Generator().manual_seed(0)
    vocabulary = SIZES[args.size]["vocab_size"]
    ids = torch.randint(0, vocabulary, (args.rows, args.length), generator=generator)
    mine = {kind: tried(ours, args, kind, ids) for kind in (*KINDS, "lora")}
    theirs = {kind: tried(transformers, args, kind, ids) for kind in KINDS}
    both = [kind for kind in KINDS if "error" not in mine[kind] and "error" not in theirs[kind]]

    def ratio(name: str) -> dict[str, float]:
        known = [kind for kind in both if theirs[kind][name]]
        return {kind: round(mine[kind][name] / theirs[kind][name], 3) for kind in known}

    on_gpu = args.device.startswith("cuda")
    weights = sum(one.numel() for one in made(args.size, "bfloat16", "sdpa", "meta").parameters())
    report = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "weights": weights,
        "rows": args.rows,
        "length": args.length,
        "attention": args.attention,
        "ours": mine,
        "transformers": theirs,
        "speed": ratio("tokens_per_second"),
        "memory": ratio("peak_gib"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
