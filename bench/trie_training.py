"""Training steps over shared beginnings: ours packed, ours flat, and TRL's, on the same rows.

    .venv/bin/python bench/trie_training.py

About five minutes on two quiet cores; needs ``trl`` (``pip install -e '.[dev]'``). SmolLM2-135M in
float32. After a round of each kind, another begins only if it would end within ``--seconds`` (300) for
all kinds together. The last line is one JSON object with four keys:

    tree_pairs   sibling pairs of a dialogue tree (DPO)
    pairs        pairs whose prompt is as long as an answer (DPO)
    rows         rows that share nothing (SFT)
    recorded     pairs of whole trajectories from a real run's store (DPO)

A step is forward, backward, clipping and AdamW; of ours also the building of tries, of TRL's not even
its collation. Reference log-probs are given to both. TRL runs at the batch sizes 1, 2, 4, 8 that divide the
step, in this order until one takes half as long again as the best before it, and then at the best of them (padded;
its padding-free mode needs flash attention, and is switched off for DPO in this version; all rows of a step
are one batch, so sorting by length changes nothing). The three sides alternate at most three times; figures
are ratios of medians, ``spread`` is the smallest and the largest ratio to TRL of one round. Memory is the
peak of one process for each side. ``loss_diff`` is the largest difference of ours to both others.
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import TrainerCallback

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.recorded import recorded_pairs
from bench.smollm2 import model as make_model
from bench.smollm2 import tokenizer
from bench.timing import Times, rounds
from bench.trl_side import arguments, dpo_trainer, sft_trainer
from coterie.models.prefix_trie import CostRule, Splitter
from coterie.record.rows import Pair, Row, Target
from coterie.training.losses import DPO, SFT, DPOSettings, Objective
from coterie.training.reference import LossModule

REPEATS = 3
BATCHES = (1, 2, 4, 8)
BUDGET = 4096
VOCABULARY = 49152
RATE = 0.0
"""All sides take their steps, and the weights stay, so that losses can be compared."""
DPO_SETTINGS = DPOSettings(beta=0.1)
Item = Row | Pair


def tokens(rng: random.Random, count: int) -> list[int]:
    """Random ids."""
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def answer(prompt: Sequence[int], rng: random.Random, length: int) -> Row:
    """A prompt with an answer, which is the target."""
    ids = (*prompt, *tokens(rng, length))
    return Row(ids, (Target(len(prompt), len(ids), "bench"),))


def pair(prompt: Sequence[int], rng: random.Random, length: int) -> Pair:
    """Two answers; the reference prefers one a little."""
    sides = [answer(prompt, rng, length) for _ in range(2)]
    sums = [-10.8 * length + rng.gauss(0, 5) for _ in range(2)]
    return Pair((sides[0],), (sides[1],), (sums[0], sums[1]), group="tree")


def tree_pairs() -> list[Pair]:
    """Four sibling pairs down the trunk of a dialogue tree."""
    rng = random.Random(0)
    trunk, found = tokens(rng, 64), []
    for _ in range(4):
        found.append(pair(trunk, rng, 16))
        trunk = trunk + tokens(rng, 24)
    return found


def half_shared_pairs() -> list[Pair]:
    """Four pairs, each of its own prompt, which is as long as an answer."""
    rng = random.Random(1)
    return [pair(tokens(rng, 64), rng, 64) for _ in range(4)]


def unshared_rows() -> list[Row]:
    """Eight rows of 64 to 192 tokens."""
    rng = random.Random(2)
    return [answer(tokens(rng, rng.randint(32, 96)), rng, rng.randint(32, 96)) for _ in range(8)]


KINDS: dict[str, Callable[[], Sequence[Item]]] = {
    "tree_pairs": tree_pairs,
    "pairs": half_shared_pairs,
    "rows": unshared_rows,
    "recorded": recorded_pairs,
}


class Ours:
    """Our step, packed or flat."""

    def __init__(
        self,
        policy: Any,
        items: Sequence[Item],
        rule: CostRule | None,
        objective: Objective[Any] | None = None,
    ) -> None:
        self.items, self.rule, self.policy = items, rule, policy
        usual = SFT() if isinstance(items[0], Row) else DPO(DPO_SETTINGS)
        self.objective: Objective[Any] = objective or usual
        self.module = LossModule(policy, self.objective, rule)
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, fused=True)
        make_state(policy, self.optimizer)

    def gradient(self) -> float:
        """Pack, forward and backward of all micro-batches; gives the loss."""
        self.optimizer.zero_grad()
        groups = [[row.ids for row in self.objective.rows(item)] for item in self.items]
        splitter = Splitter(groups, self.rule, BUDGET)
        families = splitter.families(range(len(self.items)))
        self.computed = sum(family.nodes for family in families)
        count, total = sum(map(self.objective.count, self.items)), 0.0
        for part in splitter.microbatches(families)[0]:
            loss = self.module([self.items[i] for i in part]).sum() / count
            loss.backward()
            total += float(loss.detach())
        self.module.tally.result()
        return total

    def update(self) -> None:
        """Clip and step."""
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()

    def step(self) -> tuple[float, float, torch.Tensor]:
        """(seconds, loss, gradient before clipping) of a whole step; copying the gradient is not timed."""
        began = time.perf_counter()
        loss = self.gradient()
        synchronise()
        seconds = time.perf_counter() - began
        gradient = gradient_of(self.policy)
        synchronise()
        began = time.perf_counter()
        self.update()
        synchronise()
        return seconds + time.perf_counter() - began, loss, gradient


def synchronise() -> None:
    """Wait for what a GPU still has to do; without one, for nothing."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def gradient_of(policy: Any) -> torch.Tensor:
    """All of it in one vector, a copy."""
    return torch.cat([w.grad.flatten() for w in policy.parameters() if w.grad is not None])


def make_state(policy: Any, optimizer: torch.optim.Optimizer) -> None:
    """Let the optimiser make its state, by a step of zero gradients."""
    for weight in policy.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()


class StepClock(TrainerCallback):
    """When TRL's steps begin and end, by its own account."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_train_begin(self, *_: Any, model: Any, optimizer: Any, **__: Any) -> None:
        """The optimiser's state is made before anything is timed, as ours is."""
        make_state(model, optimizer)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A step's first micro-batch is about to run."""
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimiser has stepped."""
        synchronise()
        self.seconds = time.perf_counter() - self.began


def trl_step(policy: Any, items: Sequence[Item], batch: int) -> tuple[float, float]:
    """(seconds, loss) of TRL's step at a batch size."""
    with TemporaryDirectory() as folder:
        options = arguments(Path(folder), batch, len(items) // batch, RATE, 1)
        if isinstance(items[0], Row):
            trainer: Any = sft_trainer(policy, tokenizer(), items, options)
        else:
            trainer = dpo_trainer(policy, tokenizer(), items, DPO_SETTINGS, options)
        seconds = timed(trainer)
        whole = isinstance(items[0], Row)  # SFT's micro-batches are divided by the step's tokens
        loss = sum(trainer.losses) / (1 if whole else len(trainer.losses))
    return seconds, loss


def timed(trainer: Any) -> float:
    """Seconds of the one step that a trainer of TRL takes."""
    clock = StepClock()
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds


def best_batch(policy: Any, items: Sequence[Item]) -> tuple[int, tuple[float, float]]:
    """TRL's fastest batch size, and the (seconds, loss) of its step."""
    steps: dict[int, tuple[float, float]] = {}
    for size in BATCHES:
        if len(items) % size == 0:
            steps[size] = trl_step(policy, items, size)
            if steps[size][0] > 1.5 * min(steps.values())[0]:
                break
    best = min(steps, key=lambda size: steps[size][0])
    return best, steps[best]


def compare(policy: Any, items: Sequence[Item], seconds: float) -> dict[str, Any]:
    """All figures of one kind but memory; another round begins if it ends within ``seconds``."""
    began = time.monotonic()
    packed, flat = Ours(policy, items, CostRule.of(policy)), Ours(policy, items, None)
    batch, first = best_batch(policy, items)
    times, losses = Times(), dict[str, float]()
    for number in rounds(REPEATS, seconds - (time.monotonic() - began)):
        found = {}
        for name, side in (("packed", packed), ("flat", flat)):
            policy.zero_grad()
            taken, losses[name], found[name] = side.step()
            times.add(name, taken)
        relative = float((found["packed"] - found["flat"]).norm() / found["flat"].norm())
        del found
        policy.zero_grad()
        taken, losses["trl"] = trl_step(policy, items, batch) if number else first
        times.add("trl", taken)
    return {
        "token_ratio": packed.computed / flat.computed,
        "tokens": flat.computed,
        "speedup_vs_flat": times.ratio("flat", "packed"),
        "speedup_vs_trl": times.ratio("trl", "packed"),
        "spread": times.spread("trl", "packed"),
        "rounds": times.rounds(),
        "seconds": times.medians()["packed"],
        "trl_batch": batch,
        "loss_diff": max(abs(losses["packed"] - losses[other]) for other in ("flat", "trl")),
        "grad_rel_diff": relative,
    }


def peak_memory(kind: str, side: str, batch: int, path: str | None) -> float:
    """GiB that a process of its own needed at most for a step of one side."""
    command = [sys.executable, __file__, "--kind", kind, "--side", side, "--batch", str(batch)]
    command += ["--model", path] if path else []
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(said.splitlines()[-1])


def one_side(policy: Any, items: Sequence[Item], side: str, batch: int) -> float:
    """Take a step and give this process's peak memory in GiB."""
    if side == "packed":
        ours = Ours(policy, items, CostRule.of(policy))
        ours.gradient()
        ours.update()
    else:
        trl_step(policy, items, batch)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 2**20


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, help="only this one")
    parser.add_argument("--model", help="folder of real weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="begin no round that ends later")
    parser.add_argument("--side", choices=["packed", "trl"], help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    policy = make_model(args.model).train()
    if args.side:
        print(one_side(policy, KINDS[args.kind](), args.side, args.batch))
        return
    found: dict[str, dict[str, Any]] = {}
    kinds = [args.kind] if args.kind else list(KINDS)
    for kind in kinds:
        items = [replace(item) for item in KINDS[kind]()]
        found[kind] = compare(policy, items, args.seconds / len(kinds))
        batch = int(found[kind]["trl_batch"])
        memory = {side: peak_memory(kind, side, batch, args.model) for side in ("packed", "trl")}
        found[kind]["peak_memory_ratio_vs_trl"] = memory["packed"] / memory["trl"]
        print(kind, json.dumps(found[kind]), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
