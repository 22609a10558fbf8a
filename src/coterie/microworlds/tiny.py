"""Pre-train a tiny talker for a micro-world, from a seed, on two CPU cores.

    python -m coterie.microworlds.tiny --micro-world exchange --out src/coterie/assets/tiny-exchange

The model is a Llama of about two million weights with a byte-level BPE of its micro-world. It learns from scripted
dialogues, in two phases: skills, from easy to hard, then the habits that post-training is to change, at a lower rate.
What a micro-world gives is a `MicroWorld` (`exchange`, `persona`).
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

from coterie.microworlds.acts import ACTS
from coterie.microworlds.encyclopedia import ENCYCLOPEDIA
from coterie.microworlds.exchange import EXCHANGE
from coterie.microworlds.model import MicroWorld, tiny_model
from coterie.microworlds.persona import PERSONA
from coterie.microworlds.problems import PROBLEMS
from coterie.models.check import check
from coterie.training.forward import LossModule
from coterie.training.sft import SFT
from coterie.trajectories.row import Row

MICRO_WORLDS: dict[str, MicroWorld] = {
    "exchange": EXCHANGE,
    "persona": PERSONA,
    "problems": PROBLEMS,
    "acts": ACTS,
    "encyclopedia": ENCYCLOPEDIA,
}
HABITS_SEED, HABITS_PEAK = 50_000, 0.4
"""What is added to the seed for the second phase, and its peak rate as a share of the first one's."""
WINDOW = 600
"""Rows that are sorted by length together, so that batches have little padding."""


def batches(rows: Iterator[Row], budget: int, window: int, seed: int) -> Iterator[list[Row]]:
    """Batches of at most `budget` padded tokens; rows are sorted by length within a window, batches shuffled."""
    rng = random.Random(seed)
    while chunk := list(islice(rows, window)):
        chunk.sort(key=lambda row: len(row.ids))
        found: list[list[Row]] = [[]]
        for row in chunk:
            if (len(found[-1]) + 1) * len(row.ids) > budget:
                found.append([])
            found[-1].append(row)
        rng.shuffle(found)
        yield from found


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
    parser.add_argument("--micro-world", choices=list(MICRO_WORLDS), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, help="of the first phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=1200)
    parser.add_argument("--peak", type=float)
    parser.add_argument("--budget", type=int)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    micro_world, seed = MICRO_WORLDS[settings.micro_world], settings.seed
    tokens = settings.tokens or micro_world.tokens
    budget, peak = settings.budget or micro_world.budget, settings.peak or micro_world.peak
    tokenizer = micro_world.tokenizer(settings.vocabulary, seed)
    model = tiny_model(tokenizer, seed)
    weights = sum(p.numel() for p in model.parameters())
    print(f"{weights:,} weights, {len(tokenizer):,} pieces", flush=True)
    rows = micro_world.skills(tokenizer, tokens, seed)
    pretrain(model, batches(rows, budget, WINDOW, seed), tokens, peak)
    more = round(micro_world.habits_share * tokens)
    rows = micro_world.habits(tokenizer, more, seed + HABITS_SEED)
    pretrain(model, batches(rows, budget, WINDOW, seed), more, HABITS_PEAK * peak)
    save(model, tokenizer, settings.out)


if __name__ == "__main__":
    main()
