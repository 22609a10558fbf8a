"""A step of reinforcement learning on paths that share their prompt: its update and its log-probs.

    .venv/bin/python bench/rl_step.py

About five minutes on two quiet cores; needs ``trl`` (``pip install -e '.[dev]'``). A group of 8 paths, 600 tokens of
prompt that they share and 200 of its own each, with SmolLM2-135M's shape in float32, or real weights (``--model``).

The update is that of ``rl/grpo``: GRPO's loss on advantages, old and reference log-probs that all sides are given.
Timed are forward, backward, the measures of a step, clipping and AdamW; of ours also the building of tries, of TRL's
not even its collation. Without a GPU TRL's head projects prompts to the vocabulary too, which ours never does; so ours
without packing is timed as well.

Log-probs are those under old or reference weights, without a gradient: ours by ``with_old``. The baseline is
Transformers: whole paths in batches, through ``model(..., logits_to_keep=...)``, which projects to the vocabulary only
where a log-prob is wanted.

TRL and Transformers run at the best of the batch sizes 1, 2, 4, 8, tried in this order until one takes half as long
again as the best before it; none but the first is begun after half of the time that the part has. Sides alternate at
most three times, and another round begins only if it would end within ``--seconds`` (300), of which the update has
three quarters. Figures are ratios of medians; a spread is the smallest and the largest ratio of one round. The last
line is one JSON object:

    update_vs_trl, update_spread         TRL's seconds over ours
    update_vs_flat                       ours without packing over ours
    logprobs_vs_flat, logprobs_spread    Transformers' seconds over ours
    logprobs_vs_own_flat                 ours without packing over ours
    loss_diff                            largest difference of our loss to TRL's and to ours without packing
    grad_rel_diff                        the same of gradients before clipping: norm of the difference over the norm
    logprob_diff                         largest difference of a log-prob to Transformers' (nats)
    tokens, computed_tokens              of all paths, and of their trie
    tokens_per_second                    tokens of all paths over the seconds of our update
    update_seconds, logprobs_seconds     medians of all sides
    update_rounds, logprobs_rounds       how many were counted
    trl_search, transformers_search      seconds at the batch sizes that were tried, each once
    trl_batch, transformers_batch        the best of them

Where there is a CUDA device the model is Llama 3.2's shape of 1B weights in bfloat16, and there is also ``mfu``:
floating point operations of the update over its seconds and over ``--peak`` (989e12: an H100, dense, bfloat16). They
are 6 a weight of the layers and token of the trie; 12 * heads * head width * layers a pair of tokens of which one
attends to the other; and 6 a weight of the head and log-prob. THE PART FOR CUDA WAS NOT RUN YET.
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
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.logprobs import padded
from bench.smollm2 import model as make_model
from bench.smollm2 import tokenizer
from bench.timing import Times, alternate, rounds
from bench.trie_training import (
    BATCHES,
    BUDGET,
    RATE,
    REPEATS,
    Ours,
    gradient_of,
    timed,
)
from bench.trl_grpo_side import grpo_trainer
from bench.trl_side import arguments
from coterie.models.logprobs import body
from coterie.models.prefix_trie import CostRule, build
from coterie.record.rows import Row, Target
from coterie.training.policy_gradient import PolicyGradient, PolicyGradientSettings
from coterie.training.reference import with_old
from coterie.training.settings import TrainingSettings

PATHS, PROMPT, OWN = 8, 600, 200
LOSS = PolicyGradientSettings(
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=3.0,
    aggregation="token",
    kl_coef=0.001,
    kl_estimator="k3_forward",
)
"""That of ``rl/grpo``."""
SETTINGS = TrainingSettings(tokens_per_microbatch=BUDGET)
FLAT = SETTINGS.model_copy(update={"packing": "flat"})
UPDATE_SHARE = 0.75
"""Of the time limit."""


def paths(policy: Any) -> list[Row]:
    """A group that a policy close to this one has sampled: each path with an advantage and its log-probs."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(policy.config.vocab_size) for _ in range(count)]

    prompt, target = ids(PROMPT), Target(PROMPT, PROMPT + OWN, "bench")
    found = [Row((*prompt, *ids(OWN)), (target,)) for _ in range(PATHS)]

    def near(values: Sequence[float] | None) -> tuple[float, ...]:
        return tuple(value + rng.gauss(0, 0.1) for value in values or ())

    return [
        replace(
            row,
            old=None,
            logprobs=near(row.old),
            reference=near(row.old),
            advantages=(rng.gauss(0, 1),) * OWN,
        )
        for row in with_old(policy, found, SETTINGS, temperature=1.0)
    ]


def search(step: Callable[[int], float], rows: int, seconds: float) -> dict[int, float]:
    """Seconds of the batch sizes that divide ``rows``, up to one that is clearly slower or begins too late."""
    began, found = time.monotonic(), dict[int, float]()
    for size in BATCHES:
        if rows % size == 0:
            found[size] = step(size)
            slow = found[size] > 1.5 * min(found.values())
            if slow or time.monotonic() - began > seconds:
                break
    return found


def trl_step(
    policy: Any, rows: Sequence[Row], batch: int, gradients: dict[str, torch.Tensor] | None = None
) -> tuple[float, float]:
    """(seconds, loss) of TRL's update at a batch size; its gradient before clipping is put into ``gradients``."""
    policy.zero_grad()
    with TemporaryDirectory() as folder:
        options = arguments(Path(folder), batch, len(rows) // batch, RATE, 1)
        trainer: Any = grpo_trainer(policy, tokenizer(), rows, LOSS, options, len(rows))
        clip = trainer._clip_grad_norm

        def keep_and_clip(model: Any) -> Any:
            if gradients is not None:
                gradients["trl"] = gradient_of(policy)
            return clip(model)

        trainer._clip_grad_norm = keep_and_clip
        seconds = timed(trainer)
    del policy.forward  # TRL has put its own head around the model's
    return seconds, sum(trainer.losses)


def update_figures(policy: Any, rows: Sequence[Row], seconds: float) -> dict[str, Any]:
    """What there is to say of the update; another round begins if it ends within ``seconds``."""
    began = time.monotonic()
    objective, rule = PolicyGradient(LOSS), CostRule.of(policy)
    sides = {
        "packed": Ours(policy, rows, rule, objective),
        "flat": Ours(policy, rows, None, objective),
    }
    gradients: dict[str, torch.Tensor] = {}
    tried = search(lambda size: trl_step(policy, rows, size, gradients)[0], len(rows), seconds / 2)
    batch = min(tried, key=lambda size: tried[size])
    times, losses = Times(), dict[str, float]()
    for _ in rounds(REPEATS, seconds - (time.monotonic() - began)):
        for name, side in sides.items():
            policy.zero_grad()
            taken, losses[name], gradients[name] = side.step()
            times.add(name, taken)
        taken, losses["trl"] = trl_step(policy, rows, batch)
        times.add("trl", taken)
    packed = gradients.pop("packed")
    apart = [float((packed - other).norm() / other.norm()) for other in gradients.values()]
    return {
        "update_vs_trl": times.ratio("trl", "packed"),
        "update_spread": times.spread("trl", "packed"),
        "update_vs_flat": times.ratio("flat", "packed"),
        "loss_diff": max(abs(losses["packed"] - losses[other]) for other in ("flat", "trl")),
        "grad_rel_diff": max(apart),
        "tokens": sides["flat"].computed,
        "computed_tokens": sides["packed"].computed,
        "tokens_per_second": sides["flat"].computed / times.medians()["packed"],
        "update_seconds": times.medians(),
        "update_rounds": times.rounds(),
        "trl_search": tried,
        "trl_batch": batch,
    }


def logprob_figures(policy: Any, rows: Sequence[Row], seconds: float) -> dict[str, Any]:
    """What there is to say of log-probs; another round begins if it ends within ``seconds``."""
    began = time.monotonic()
    prompt, own = rows[0].ids[:PROMPT], [row.ids[PROMPT:] for row in rows]

    def seconds_of(size: int) -> float:
        start = time.perf_counter()
        padded(policy, prompt, own, size)
        return time.perf_counter() - start

    tried = search(seconds_of, len(rows), seconds / 2)
    batch = min(tried, key=lambda size: tried[size])
    sides: dict[str, Callable[[], object]] = {
        "packed": lambda: with_old(policy, rows, SETTINGS, temperature=1.0),
        "flat": lambda: with_old(policy, rows, FLAT, temperature=1.0),
        "transformers": lambda: padded(policy, prompt, own, batch),
    }
    times = alternate(sides, REPEATS, seconds - (time.monotonic() - began), warm=False)
    ours = [row.old for row in with_old(policy, rows, SETTINGS, temperature=1.0)]
    apart = torch.tensor(ours) - torch.tensor(padded(policy, prompt, own, batch))
    return {
        "logprobs_vs_flat": times.ratio("transformers", "packed"),
        "logprobs_spread": times.spread("transformers", "packed"),
        "logprobs_vs_own_flat": times.ratio("flat", "packed"),
        "logprob_diff": float(apart.abs().max()),
        "logprobs_seconds": times.medians(),
        "logprobs_rounds": times.rounds(),
        "transformers_search": tried,
        "transformers_batch": batch,
    }


def measured(policy: Any, seconds: float) -> dict[str, Any]:
    """All figures of a model."""
    began = time.monotonic()
    rows = paths(policy)
    found = update_figures(policy, rows, seconds * UPDATE_SHARE)
    return {**found, **logprob_figures(policy, rows, seconds - (time.monotonic() - began))}


def gpu_model() -> Any:
    """Llama 3.2's shape of 1B weights, random ones in bfloat16."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(shape).to("cuda", torch.bfloat16)


def update_operations(policy: Any, rows: Sequence[Row]) -> float:
    """Floating point operations of forward and backward over the rows' trie, as the top of this file has them."""
    trie, config = build([row.ids for row in rows]), policy.config
    layers = sum(weight.numel() for weight in body(policy).parameters())
    layers -= policy.get_input_embeddings().weight.numel()
    attended = int((trie.depths + 1).sum())
    attention = 12 * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    head = config.hidden_size * config.vocab_size * sum(row.target_count for row in rows)
    return 6.0 * layers * len(trie) + attention * attended + 6.0 * head


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of real weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="begin no round that ends later")
    parser.add_argument("--peak", type=float, default=989e12, help="operations a second of the GPU")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    gpu = torch.cuda.is_available()
    policy = (gpu_model() if gpu and not args.model else make_model(args.model)).train()
    found = measured(policy, args.seconds)
    if gpu:
        operations = update_operations(policy, paths(policy))
        found["mfu"] = operations / found["update_seconds"]["packed"] / args.peak
    print(json.dumps(found))


if __name__ == "__main__":
    main()
