"""Tiny random models and rows for tests of training, also in processes of their own."""

import os
import random
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from coterie.progress import Silent
from coterie.record.rows import Pair, Row, Target
from coterie.training.losses import DPO, DPOSettings
from coterie.training.reference import with_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import train
from tests.helpers.fork_server import FORKS

SETTINGS = TrainingSettings(
    learning_rate=1e-2,
    batch_size=8,
    tokens_per_microbatch=128,
    max_length=64,
    epochs=2,
    weight_decay=0.1,
    save_every_seconds=None,
    mixed_precision="no",
    threads=1,
)


SHAPE: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}


def tiny_llama(seed: int = 0, **config: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**SHAPE, "tie_word_embeddings": True, **config}))


LOW = TrainingSettings(**{**SETTINGS.model_dump(), "dtype": "bfloat16"})


def start_model(method: str) -> tuple[LlamaForCausalLM, TrainingSettings]:
    """A model and the settings of a training: ``full``, ``lora`` or ``bfloat16``."""
    if method == "bfloat16":
        return tiny_llama().bfloat16(), LOW
    lora = {"method": "lora", "lora_r": 4} if method == "lora" else {}
    return tiny_llama(), TrainingSettings(**{**SETTINGS.model_dump(), **lora})


def make_rows(count: int = 40, seed: int = 0, longest: int = 30) -> list[Row]:
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


def make_pairs(trees: int = 6, seed: int = 0, vocabulary: int = 32) -> list[Pair]:
    """Sibling pairs of dialogue trees: prompt, own turn, partner's turn, own turn, and so on.

    Three pairs a tree; their sides part at the first, second or third own turn, and differ in length.
    """
    rng = random.Random(seed)

    def some(least: int, most: int) -> list[int]:
        return [rng.randrange(2, vocabulary) for _ in range(rng.randint(least, most))]

    def grow(turns: list[list[int]], to: int) -> list[list[int]]:
        return turns + [some(2, 7) for _ in range(to - len(turns))]

    def side(prompt: list[int], turns: list[list[int]], name: str) -> Row:
        ids, targets = list(prompt), []
        for number, turn in enumerate(turns):
            ids += turn
            if number % 2 == 0:
                targets.append(Target(len(ids) - len(turn), len(ids), "policy@0"))
        return Row(tuple(ids), tuple(targets), origin=name)

    pairs = []
    for tree in range(trees):
        prompt, trunk = some(6, 12), [some(2, 6) for _ in range(4)]
        for number, parts in enumerate((0, 2, 4)):
            names = [f"tree{tree}/{number}/{which}" for which in ("chosen", "rejected")]
            sides = [side(prompt, grow(trunk[:parts], 5), name) for name in names]
            weight = rng.choice((0.5, 1.0))
            pairs.append(Pair((sides[0],), (sides[1],), None, weight, f"tree{tree}"))
    return pairs


def referenced_pairs() -> list[Pair]:
    """Return pairs with made-up reference log-probs."""
    return [replace(one, reference=(-20.0 - n, -21.0)) for n, one in enumerate(make_pairs())]


class Slow(Silent):
    """Progress that leaves time to be killed."""

    def advance(self, n: int, **fields: float) -> None:
        time.sleep(0.05)


def main(
    method: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    model: LlamaForCausalLM | None = None,
) -> None:
    """Train ``model`` on rows by SFT (``full``, ``lora``, ``bfloat16``), or on pairs (``dpo``)."""
    os.environ.update(variables or {})
    new_model, settings = start_model(method)
    model = model or new_model
    settings = settings.model_copy(update={"save_every_steps": 1})
    if method != "dpo":
        train(model, make_rows(), settings, folder, progress=Slow())
        return
    pairs = with_reference(model, make_pairs(), settings, folder / "reference", reduction="none")
    train(model, pairs, settings, folder, objective=DPO(DPOSettings(beta=0.5, nll_coef=0.2)))


def start_training(method: str, folder: Path, **variables: str) -> BaseProcess:
    """Start :func:`main` in a process with these variables."""
    process = FORKS.Process(target=main, args=(method, folder, variables))
    process.start()
    return process


def start_ranks(method: str, folder: Path) -> list[BaseProcess]:
    """Start :func:`main` on two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    shared |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    return [start_training(method, folder, **shared, RANK=rank, LOCAL_RANK=rank) for rank in "01"]


def statuses(processes: list[BaseProcess]) -> list[int | None]:
    """Wait for processes to end; their exit statuses."""
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes]
