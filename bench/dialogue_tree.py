"""Trees of dialogues grown together against batched ``generate``, and against one tree or rollout at a time.

    .venv/bin/python bench/dialogue_tree.py
    .venv/bin/python bench/dialogue_tree.py --model smollm2 --tasks 8 --searches 1 --repeats 1

The same trees (tasks, seeds, choices; compared at the end) are grown three ways on the in-process engine,
rewards by the frozen base included, with an empty prefix cache each time:

    together      all trees at once, the rollouts of a search as a group (coterie)
    one tree      one tree after another, the rollouts of a search as a group
    one rollout   one tree after another, one rollout of a search after another

and then their rollouts are sampled once more, with as many tokens, by Transformers (`bench/lockstep.py`):

    generate      all rollouts of a search in lock-step, a batch a turn, prompts read again each turn

A first round is not counted (it loads the compiled loops and finds the slots' size), then alternating
repeats, medians; about three minutes, at most ``--seconds`` (300) and a round. The last line is one JSON object:

    vs_batched_generate   time of ``generate`` over that of the first
    shared_prompt_share   share of prompt tokens that were not computed again, of those that a driver
                          computes which shares nothing among rollouts but keeps each one's earlier
                          turns (a rollout reads all that came before its first turn, and from then on
                          what is new to each agent)
    vs_one_rollout        time of the third over that of the first; the same engine, so it has no target
    vs_one_tree           time of the second over that of the first, likewise
    rounds, spread        counted repeats, and the smallest and largest ``vs_batched_generate`` of one
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.lockstep import generate, lockstep, score, scored
from bench.timing import Times, rounds
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import Shared, agents_of
from coterie.models.loading import LoadedModel, load
from coterie.recipes.optima import TreeJudge
from coterie.recipes.optima_settings import OptimaDPOSettings
from coterie.recipes.registry import settings
from coterie.record.rows import view
from coterie.record.tree import Credit, Tree
from coterie.rollout.episodes import Driver, bounded_gather
from coterie.rollout.samplers import TokenSampler
from coterie.rollout.tree_search import Rollout, TreeGrower, TreeSearch

SEED = 5
MAX_TOKENS = 120
"""What the token term is relative to."""


class OneByOne(TreeGrower):
    """Plays the rollouts of a search one after another."""

    async def play(self, node: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """As any other grower, with one rollout at a time."""
        found = []
        for rollout in rollouts:
            found += await super().play(node, [rollout])
        return found


class Bench:
    """The engine, and the trees that were grown last."""

    def __init__(
        self, loaded: LoadedModel, base: LoadedModel, settings: OptimaDPOSettings, tasks: int
    ) -> None:
        self.engine = InProcessEngine(loaded, policy="bench", version="0")
        self.base = InProcessEngine(base, policy="base", version="0")
        self.loaded, self.frozen = loaded, base
        self.settings, self.tasks = settings, tasks
        self.environment = Exchange()
        self.trees: list[TreeSearch] = []

    async def grow(self, kind: type[TreeGrower], at_a_time: int) -> float:
        """Grow all trees with an empty prefix cache; returns seconds."""
        self.engine.forget()
        self.base.forget()
        s = self.settings
        sampling = Sampling(s.dpo.temperature, 1.0, s.rollout.max_tokens)
        context = self.loaded.context_length
        sampler = TokenSampler(self.engine, self.loaded.renderer.render, sampling, context)
        agents = agents_of(self.environment)
        judge = TreeJudge(s.dpo.reward, MAX_TOKENS, self.base, agents, settings="bench")
        samplers = dict.fromkeys(agents, sampler)
        driver = Driver(self.environment, samplers, seed=0, shared=Shared())
        self.trees = []
        async with driver.sessions() as sessions:
            for task in self.environment.tasks("train", self.tasks, SEED):
                branches = driver.branches(task, Tree(task.id, "rollout", 0), sessions)
                tree = TreeSearch(branches, judge, samplers, s.dpo.search)
                old = tree.grower
                tree.grower = kind(branches, old.samplers, old.seed, old.merge, old.known)
                self.trees.append(tree)
            began = time.perf_counter()
            async with bounded_gather(
                (tree.grow(_forget) for tree in self.trees), at_a_time
            ) as grown:
                async for _ in grown:
                    pass
            return time.perf_counter() - began

    def batched(self) -> float:
        """Seconds of Transformers for the rollouts of the trees that were grown last."""
        batches = lockstep(self.trees, self.settings.dpo.search.searches)
        sequences = scored(self.trees)
        began = time.perf_counter()
        generate(self.loaded, batches)
        score(self.frozen, sequences)
        return time.perf_counter() - began

    def alone(self) -> int:
        """Prompt tokens that the rollouts read if none shares anything with another."""
        return sum(_alone(tree, rollout) for tree in self.trees for rollout in tree.rollouts)


def _forget(tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
    """Nothing is written: a benchmark has no store."""


def _alone(tree: TreeSearch, rollout: Rollout) -> int:
    """Prompt tokens of one rollout: each agent's first prompt whole, later ones what is new."""
    assert rollout.leaf is not None, rollout.failure
    path = [turn.id for turn in tree.tree.path(rollout.leaf)]
    before = path.index(rollout.start) + 1 if rollout.start in path else 0
    total = 0
    for agent in agents_of(tree.branches.environment):
        first = True
        for segment in view(tree.tree, rollout.leaf, agent).segments:
            history = 0
            for piece in segment.pieces:
                if piece.turn is None:
                    prompt = len(piece.ids)
                elif piece.turn.id in path[:before]:
                    history += prompt + len(piece.ids)  # read with the first prompt that is new
                else:
                    total += prompt + (history if first else 0)
                    first = False
    return total


async def measure(bench: Bench, repeats: int, seconds: float) -> dict[str, object]:
    """All figures."""
    sides: dict[str, tuple[type[TreeGrower], int]] = {
        "together": (TreeGrower, bench.tasks),
        "one tree": (TreeGrower, 1),
        "one rollout": (OneByOne, 1),
    }
    times = Times()
    leaves: dict[str, list[list[str | None]]] = {}
    share = 0.0
    for number in rounds(repeats + 1, seconds):
        if number == 1:
            times = Times()  # the first round warms up, unless it is the only one
        for side, (kind, at_a_time) in sides.items():
            before = replace(bench.engine.stats)
            times.add(side, await bench.grow(kind, at_a_time))
            stats = bench.engine.stats
            read = stats.prompt_tokens - before.prompt_tokens
            computed = read - (stats.cached_tokens - before.cached_tokens)
            leaves[side] = [[r.leaf for r in tree.rollouts] for tree in bench.trees]
            if side == "together":
                share = 1 - computed / bench.alone()
            print(f"{side}: {times.seconds[side][-1]:.1f} s, {computed:,} prompt tokens computed")
        times.add("generate", bench.batched())
        print(f"generate: {times.seconds['generate'][-1]:.1f} s", flush=True)
    assert leaves["together"] == leaves["one tree"] == leaves["one rollout"], "other trees"
    return {
        "vs_batched_generate": times.ratio("generate", "together"),
        "shared_prompt_share": share,
        "vs_one_rollout": times.ratio("one rollout", "together"),
        "vs_one_tree": times.ratio("one tree", "together"),
        "rounds": times.rounds(),
        "spread": times.spread("generate", "together"),
        "seconds": times.medians(),
        "rollouts": sum(len(tree.rollouts) for tree in bench.trees),
    }


async def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="tiny-exchange")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--searches", type=int, help="of a tree; default: the recipe's, 8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300, help="begin no round that ends later")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = settings("optima/idpo")
    assert isinstance(chosen, OptimaDPOSettings)
    if options.searches:
        search = chosen.dpo.search.model_copy(update={"searches": options.searches})
        chosen = chosen.model_copy(update={"dpo": chosen.dpo.model_copy(update={"search": search})})
    bench = Bench(load(options.model), load(options.model), chosen, options.tasks)
    print(json.dumps(await measure(bench, options.repeats, options.seconds)))


if __name__ == "__main__":
    asyncio.run(main())
