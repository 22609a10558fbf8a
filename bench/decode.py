"""Decoding by the in-process engine: against Transformers' ``generate``, and under one prefix.

    .venv/bin/python bench/decode.py

About two minutes on two quiet cores, at most ``--seconds`` (150) and a round for each figure. The last
line is one JSON object:

    vs_generate             tiny-exchange, 32 prompts of its environment, 128 forced new tokens each:
                            tokens/s over those of ``generate`` (sampling, left-padded, in float32)
    shared_prefix_speedup   SmolLM2-135M, 16 candidates of 16 tokens under one prefix of 512 tokens:
                            seconds of 16 separate prompts of 512 tokens over theirs, by the same engine
    rounds, spread          of each: counted repeats, and the smallest and largest ratio of one of them

Alternating repeats, medians. Ends are off on both sides, so that all lengths are equal.
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import random
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.smollm2 import loaded
from bench.timing import alternate
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.exchange import Exchange
from coterie.models.loading import LoadedModel, load
from coterie.rollout.episodes import first_prompts

BATCH, NEW = 32, 128
PREFIX, CANDIDATES, CANDIDATE_TOKENS = 512, 16, 16
REPEATS = 5


def endless(model: LoadedModel) -> LoadedModel:
    """The model with no token that ends a turn."""
    model.renderer.end_ids = frozenset()
    return model


def environment_prompts(model: LoadedModel) -> list[list[int]]:
    """First prompts of held-out tasks."""
    environment = Exchange()
    found = []
    for task in environment.tasks("heldout", BATCH, 0):
        agent, first = next(iter(first_prompts(environment, task).items()))
        found.append(list(model.renderer.render(first.messages, first.tree, agent)))
    return found


def generate(model: LoadedModel, prompts: list[list[int]]) -> None:
    """By Transformers."""
    width = max(map(len, prompts))
    pad = model.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        model.model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            min_new_tokens=NEW,
            max_new_tokens=NEW,
            eos_token_id=None,
            pad_token_id=pad,
        )


def sample(engine: InProcessEngine, prompts: list[list[int]], count: int, new: int) -> None:
    """``count`` completions of each prompt by the engine."""

    async def all_of_them() -> None:
        sampling = Sampling(max_tokens=new)
        calls = (
            engine.sample(p, list(range(n, n + count)), sampling) for n, p in enumerate(prompts)
        )
        found = [one for ones in await asyncio.gather(*calls) for one in ones]
        assert [len(one.ids) for one in found] == [new] * count * len(prompts)

    engine.forget()
    asyncio.run(all_of_them())


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of real weights for the second figure")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=150, help="begin no round that ends later")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tiny = endless(load("tiny-exchange"))
    prompts = environment_prompts(tiny)
    engine = InProcessEngine(endless(load("tiny-exchange")), policy="bench", version="0")
    sides = {
        "generate": lambda: generate(tiny, prompts),
        "engine": lambda: sample(engine, prompts, 1, NEW),
    }
    first = alternate(sides, REPEATS, args.seconds)
    for name, seconds in first.medians().items():
        print(f"tiny, batch {BATCH}, {name}: {BATCH * NEW / seconds:,.0f} tokens/s")
    rng = random.Random(0)
    apart = [[rng.randrange(49152) for _ in range(PREFIX)] for _ in range(CANDIDATES)]
    large = InProcessEngine(endless(loaded(args.model)), policy="bench", version="0")
    sides = {
        "separate prompts": lambda: sample(large, apart, 1, CANDIDATE_TOKENS),
        "one prefix": lambda: sample(large, apart[:1], CANDIDATES, CANDIDATE_TOKENS),
    }
    second = alternate(sides, REPEATS, args.seconds)
    for name, seconds in second.medians().items():
        print(f"SmolLM2, {CANDIDATES} x {CANDIDATE_TOKENS}, {name}: {seconds:.2f} s")
    apart_to_one = ("separate prompts", "one prefix")
    print(json.dumps({
        "vs_generate": first.ratio("generate", "engine"),
        "shared_prefix_speedup": second.ratio(*apart_to_one),
        "engine_tokens_per_second": BATCH * NEW / first.medians()["engine"],
        "rounds": [first.rounds(), second.rounds()],
        "spread": [first.spread("generate", "engine"), second.spread(*apart_to_one)],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
