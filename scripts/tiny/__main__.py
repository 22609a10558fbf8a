"""Pre-train the packaged tiny model of a micro-world, from a seed, on two CPU cores.

    python -m scripts.tiny exchange --out src/coterie/assets/tiny-exchange

The model is a Llama of about two million weights with a byte-level BPE of its micro-world. It learns from scripted
dialogues, in two phases: skills, from easy to hard, then the habits that post-training is to change, at a lower rate.
"""

import argparse
import copy
import math
import random
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from coterie.models.check import check
from coterie.record.rows import Row
from coterie.training.losses import SFT
from coterie.training.reference import LossModule
from scripts.tiny.world import load, tiny_model

NAMES = ("exchange", "persona", "problems", "acts", "encyclopedia", "pages", "textworld")
HABITS_SEED, HABITS_PEAK = 50_000, 0.4
"""What is added to the seed for the second phase, and its peak rate as a share of the first one's."""
WINDOW = 600
"""Rows that are sorted by length together, so that batches have little padding."""


def make_batches(rows: Iterator[Row], budget: int, window: int, seed: int) -> Iterator[list[Row]]:
    """Yield batches of at most `budget` padded tokens: rows sorted by length within a window, batches shuffled."""
    rng = random.Random(seed)
    while chunk := list(islice(rows, window)):
        chunk.sort(key=lambda row: len(row.ids))
        batches: list[list[Row]] = [[]]
        for row in chunk:
            if (len(batches[-1]) + 1) * len(row.ids) > budget:
                batches.append([])
            batches[-1].append(row)
        rng.shuffle(batches)
        yield from batches


def pretrain(
    model: LlamaForCausalLM, batches: Iterable[list[Row]], tokens: int, peak: float
) -> None:
    """Train on batches of `tokens` tokens in all: AdamW, warm-up over 2%, then a cosine to zero."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.02},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98))
    objective = SFT()
    module = LossModule(model, objective, check(model).packing("auto"))
    seen, start = 0, time.monotonic()
    losses: list[float] = []
    for batch in batches:
        done = min(seen / tokens, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = peak * min(done / 0.02 + 0.01, 0.5 + 0.5 * math.cos(math.pi * done))
        loss = module(batch).sum() / sum(map(objective.count, batch))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += sum(len(row.ids) for row in batch)
        losses.append(loss.item())
        if len(losses) == 50:
            _progress(seen, tokens, sum(losses) / len(losses), time.monotonic() - start)
            losses.clear()


def _progress(seen: int, tokens: int, loss: float, seconds: float) -> None:
    """Print one line: tokens so far, mean loss since the last line, speed, time left."""
    speed = seen / seconds
    left = max(tokens - seen, 0) / speed / 60
    line = f"{seen:>10,} tokens  loss {loss:.4f}  {speed:,.0f} tokens/s  {left:.1f} min left"
    print(line, flush=True)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write config, bfloat16 weights, tokenizer, chat template and generation settings."""
    out.mkdir(parents=True, exist_ok=True)
    shadow = copy.deepcopy(model).bfloat16()
    shadow.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    shadow.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Build the tokenizer, train and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("micro_world", choices=NAMES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, help="of the first phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=1200)
    parser.add_argument("--peak", type=float)
    parser.add_argument("--budget", type=int)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    world, seed = load(settings.micro_world), settings.seed
    tokens = settings.tokens or world.tokens
    budget, peak = settings.budget or world.budget, settings.peak or world.peak
    tokenizer = world.build_tokenizer(settings.vocabulary, seed)
    model = tiny_model(tokenizer, seed)
    weights = sum(p.numel() for p in model.parameters())
    print(f"{weights:,} weights, {len(tokenizer):,} pieces", flush=True)
    rows = world.skill_rows(tokenizer, tokens, seed)
    pretrain(model, make_batches(rows, budget, WINDOW, seed), tokens, peak)
    more = round(world.habits[0] * tokens)
    rows = world.habit_rows(tokenizer, more, seed + HABITS_SEED)
    pretrain(model, make_batches(rows, budget, WINDOW, seed), more, HABITS_PEAK * peak)
    save(model, tokenizer, settings.out)


if __name__ == "__main__":
    main()
