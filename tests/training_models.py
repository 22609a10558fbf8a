"""Tiny random models and rows for tests of training; run as a script, it trains (to be killed)."""

import random
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from coterie.training.loop import train
from coterie.training.settings import TrainingSettings
from coterie.trajectories.row import Row, Target

SETTINGS = TrainingSettings(
    learning_rate=1e-2,
    batch_rows=8,
    tokens_per_microbatch=128,
    max_length=64,
    epochs=2,
    weight_decay=0.1,
    save_every_seconds=None,
    mixed_precision="no",
    threads=1,
)


def tiny_llama(seed: int = 0, **config: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    return LlamaForCausalLM(LlamaConfig(**{**shape, **config}))


def some_rows(count: int = 40, seed: int = 0, longest: int = 30) -> list[Row]:
    """Random prompts, each followed by its first tokens again (what there is to learn), twice."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        prompt = [rng.randrange(2, 32) for _ in range(rng.randint(4, longest // 2))]
        ids = (*prompt, 0, *prompt[:3], 1, *prompt[:2], 0, *prompt[:3], 1)
        first, second = len(prompt) + 1, len(prompt) + 8
        targets = (Target(first, first + 4, "script"), Target(second, second + 3, "script"))
        rows.append(Row(ids, targets, weight=rng.choice((0.5, 1.0, 2.0)), origin=f"row{number}"))
    return rows


class Slow:
    """Progress that leaves time to be killed."""

    def start(self, total: int, description: str) -> None:
        pass

    def advance(self, n: int, **fields: float) -> None:
        time.sleep(0.05)

    def close(self) -> None:
        pass


if __name__ == "__main__":
    method, folder = sys.argv[1:]
    settings = SETTINGS.model_copy(update={"save_every_steps": 1})
    if method == "lora":
        settings = TrainingSettings(**{**settings.model_dump(), "method": "lora", "lora_r": 4})
    train(tiny_llama(), some_rows(), settings, Path(folder), progress=Slow())
