"""Pre-train a tiny talker for a micro-world, from a seed, on two CPU cores.

    python -m coterie.recipes.tiny --world exchange --out src/coterie/assets/tiny-exchange

The model is a Llama of about two million weights with a byte-level BPE of about 1,100 pieces. It learns from
scripted dialogues; each gives two rows, one per agent's view, and only the agent's own turns are targets.
A curriculum goes from one fact and terse formats to the full mix.
"""

import argparse
import copy
import math
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from coterie.environments.exchange.lexicon import words
from coterie.environments.exchange.prompts import prompt_text
from coterie.environments.exchange.scripts import Dialogue, Mix, corpus
from coterie.environments.exchange.world import AGENTS
from coterie.models.packed import checked_rule
from coterie.recipes.tiny_model import OPENERS, build_tokenizer, scripted_prompt, tiny_model
from coterie.training.forward import LossModule
from coterie.training.sft import SFT
from coterie.trajectories.row import Row, Target

WINDOW = 600
"""Rows that are sorted by length together, so that batches have little padding."""
TERSE = ("arrow", "pairs", "call", "table")


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum."""

    share: float
    """Its share of the tokens that the drills leave."""
    mix: Mix
    """What its dialogues are drawn from."""


DRILL_TOKENS = 550_000
"""Tokens of copy drills before the dialogues: enough for copying to appear, with some to spare."""
CURRICULUM: tuple[Stage, ...] = (
    Stage(
        0.10,
        Mix(
            levels=(1,),
            facts_per_agent=(1, 3),
            hint_share=1.0,
            hint_styles=("list", *TERSE),
            deaf_share=0.0,
        ),
    ),
    Stage(
        0.15,
        Mix(
            levels=(1, 2, 2),
            facts_per_agent=(2, 3),
            hint_share=1.0,
            hint_styles=("list", "qa", *TERSE),
            deaf_share=0.0,
        ),
    ),
    Stage(
        0.25,
        Mix(
            levels=(1, 2, 2),
            facts_per_agent=(2, 4),
            guess_share=0.42,
            hint_share=0.8,
            deaf_share=0.0,
        ),
    ),
    Stage(0.40, Mix(guess_share=0.42, hint_share=0.4, deaf_share=0.0)),
)
"""First the skill: hints are obeyed, so that formats are learned well."""
HABITS = Stage(0.20, Mix())
"""Then the habits, at a lower rate: guesses come in spite of hints, and remain the commonest thing to do
without one, so that neither a hint nor training on whatever was sampled cures anybody."""


HABITS_SEED, HABITS_PEAK = 50_000, 0.4
"""Corpus seed of the habits, and their peak rate as a share of the first one."""


def pretraining_rows(dialogue: Dialogue, tokenizer: PreTrainedTokenizerBase) -> Iterator[Row]:
    """The two agents' views of a dialogue: ids as the chat template renders them, masked to the agent's own turns."""
    turns = [tokenizer.encode(text, add_special_tokens=False) for text in dialogue.utterances]
    end = tokenizer.eos_token_id
    system, user, assistant = (tokenizer.convert_tokens_to_ids(OPENERS[role]) for role in OPENERS)
    for me, agent in enumerate(AGENTS):
        prompt = tokenizer.encode(
            prompt_text(scripted_prompt(dialogue, agent)), add_special_tokens=False
        )
        ids, targets = [system, *prompt, end], []
        for number, turn in enumerate(turns):
            own = number % 2 == me
            ids += [assistant if own else user, *turn, end]
            if own:
                author = f"script:{dialogue.style}"
                targets.append(Target(len(ids) - len(turn) - 1, len(ids), author))
        yield Row(tuple(ids), tuple(targets), origin=f"{dialogue.task.task_id}/{agent}")


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Random words of the lexicon three times over, the repeats as targets: the quickest way to learn to copy."""
    chosen = " ".join(rng.sample(words(), rng.randint(5, 24)))
    ids = tokenizer.encode(chosen, add_special_tokens=False)
    return Row(tuple(ids * 3), (Target(len(ids), 3 * len(ids), "script:drill"),))


def curriculum_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of `tokens` tokens in all: copy drills, then dialogues, stage after stage."""
    rng = random.Random(f"drills/{seed}")
    left = float(min(DRILL_TOKENS, tokens))
    while left > 0:
        row = copy_drill(tokenizer, rng)
        left -= len(row.ids)
        yield row
    for number, stage in enumerate(CURRICULUM):
        share = stage.share * max(tokens - DRILL_TOKENS, 0)
        yield from stage_rows(tokenizer, stage.mix, share, seed + 1000 * number)


def stage_rows(
    tokenizer: PreTrainedTokenizerFast, mix: Mix, tokens: float, seed: int
) -> Iterator[Row]:
    """Rows of `tokens` tokens of dialogues of one mix, made in blocks."""
    left, block = tokens, 0
    while left > 0:
        block += 1
        for dialogue in corpus(seed + block, 1500, mix):
            for row in pretraining_rows(dialogue, tokenizer):
                left -= len(row.ids)
                yield row
            if left <= 0:
                break


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
    module = LossModule(model, objective, checked_rule(model))
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
    parser.add_argument("--world", choices=["exchange"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=1200)
    parser.add_argument("--peak", type=float, default=2.5e-3)
    parser.add_argument("--budget", type=int, default=1536)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    tokenizer = build_tokenizer(settings.vocabulary, settings.seed)
    model = tiny_model(tokenizer, settings.seed)
    weights = sum(p.numel() for p in model.parameters())
    print(f"{weights:,} weights, {len(tokenizer):,} pieces", flush=True)
    seed, tokens = settings.seed, settings.tokens
    rows = curriculum_rows(tokenizer, tokens, seed)
    pretrain(model, batches(rows, settings.budget, WINDOW, seed), tokens, settings.peak)
    more = round(HABITS.share * tokens)
    rows = stage_rows(tokenizer, HABITS.mix, more, seed + HABITS_SEED)
    pretrain(model, batches(rows, settings.budget, WINDOW, seed), more, HABITS_PEAK * settings.peak)
    save(model, tokenizer, settings.out)


if __name__ == "__main__":
    main()
