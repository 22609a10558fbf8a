"""Supervised fine-tuning on dialogues: tokens per second of a step, ours against TRL's SFTTrainer at its fastest.

    .venv/bin/python bench/sft.py

About ten minutes on two quiet cores; needs ``trl``. SmolLM2-135M in float32 (random weights, unless ``--model``), rows
of at most 1,024 tokens, loss on the assistant's tokens. Two workloads:

    dialogues   8 dialogues of 2 to 5 rounds that share nothing
    shared      8 dialogues that begin with the same 600 tokens (a system prompt with tools)

TRL runs padded at the batch sizes 1, 2, 4, 8 and with dialogues packed into rows of 1,024 tokens (its fastest strategy
that needs no flash attention, ``wrapped``, without cutting a dialogue); the fastest of them counts. A step is
forward, backward, clipping and AdamW; of ours also the building of prefix tries. The sides take turns, at most three
times; figures are ratios of medians, ``spread`` the smallest and largest ratio of a round. The last line is a
JSON object; ``vs_trl`` is the ratio of dialogues, ``vs_trl_shared`` the ratio of shared.
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.smollm2 import model as make_model
from bench.timing import Times, rounds
from bench.trie_training import BATCHES, REPEATS, Ours, tokens, trl_step
from coterie.models.prefix_trie import CostRule
from coterie.record.rows import Row, Target

LONGEST = 1024
COUNT = 8


def dialogue(rng: random.Random, prefix: Sequence[int], rounds: int, length: int) -> Row:
    """Return a dialogue of rounds of a question and a reply of ``length`` tokens on average."""
    ids, targets = list(prefix), []
    for _ in range(rounds):
        ids += tokens(rng, rng.randint(length // 2, 3 * length // 2))
        start = len(ids)
        ids += tokens(rng, rng.randint(length // 2, 3 * length // 2))
        targets.append(Target(start, len(ids), "bench"))
    return Row(tuple(ids), tuple(targets))


def dialogues() -> list[Row]:
    """Return dialogues that share nothing."""
    rng = random.Random(0)
    rows = [dialogue(rng, (), rng.randint(2, 5), 75) for _ in range(COUNT)]
    assert max(len(row.ids) for row in rows) <= LONGEST
    return rows


def shared() -> list[Row]:
    """Return dialogues that begin with the same 600 tokens."""
    rng = random.Random(1)
    prefix = tokens(rng, 600)
    return [dialogue(rng, prefix, 2, 30) for _ in range(COUNT)]


KINDS: dict[str, Callable[[], list[Row]]] = {"dialogues": dialogues, "shared": shared}


def packed_rows(rows: Sequence[Row]) -> list[Row]:
    """Concatenate dialogues into rows of at most 1,024 tokens, longest first (first fit)."""
    bins: list[Row] = []
    for row in sorted(rows, key=lambda one: -len(one.ids)):
        at = next((n for n, one in enumerate(bins) if len(one.ids) + len(row.ids) <= LONGEST), None)
        if at is None:
            bins.append(row)
            continue
        before = len(bins[at].ids)
        moved = tuple(replace(t, start=t.start + before, stop=t.stop + before) for t in row.targets)
        bins[at] = Row(bins[at].ids + row.ids, bins[at].targets + moved)
    return bins


def compare(policy: Any, rows: list[Row], seconds: float) -> dict[str, Any]:
    """Return the figures of one workload."""
    began = time.monotonic()
    ours = Ours(policy, rows, CostRule.of(policy))
    packed = packed_rows(rows)
    ways = {f"batch {n}": (rows, n) for n in BATCHES}
    ways |= {f"packed, batch {n}": (packed, n) for n in BATCHES if len(packed) % n == 0}
    tried: dict[str, float] = {}
    for name, (items, batch) in ways.items():
        tried[name] = trl_step(policy, items, batch)[0]
    best = min(tried, key=tried.__getitem__)
    times, losses = Times(), {}
    for _ in rounds(REPEATS, seconds - (time.monotonic() - began)):
        policy.zero_grad()
        taken, losses["ours"], _ = ours.step()
        times.add("ours", taken)
        policy.zero_grad()
        taken, losses["trl"] = trl_step(policy, *ways[best])
        times.add("trl", taken)
    count = sum(len(row.ids) for row in rows)
    medians = times.medians()
    return {
        "tokens": count,
        "targets": sum(row.target_count for row in rows),
        "vs_trl": times.ratio("trl", "ours"),
        "spread": times.spread("trl", "ours"),
        "tokens_per_second": count / medians["ours"],
        "trl_tokens_per_second": count / medians["trl"],
        "trl_best": best,
        "trl_tried": {name: count / one for name, one in tried.items()},
        "loss_diff": abs(losses["ours"] - losses["trl"]),
        "rounds": times.rounds(),
    }


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of real weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="begin no round that ends later")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    policy = make_model(args.model).train()
    figures = {
        name: compare(policy, make(), args.seconds / len(KINDS)) for name, make in KINDS.items()
    }
    for name, one in figures.items():
        print(name, json.dumps(one))
    result = {
        "vs_trl": figures["dialogues"]["vs_trl"],
        "vs_trl_shared": figures["shared"]["vs_trl"],
        "tokens_per_second": figures["dialogues"]["tokens_per_second"],
        **figures,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
