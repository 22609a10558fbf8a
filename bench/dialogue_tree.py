"""Trees of dialogues grown together against one tree, and one rollout, at a time.

    .venv/bin/python bench/dialogue_tree.py
    .venv/bin/python bench/dialogue_tree.py --model smollm2 --tasks 8 --searches 1 --repeats 1

The same trees (tasks, seeds, choices; compared at the end) are grown three ways on the in-process engine,
rewards by the frozen base included, with an empty prefix cache each time:

    together      all trees at once, the rollouts of a search as a group (coterie)
    one tree      one tree after another, the rollouts of a search as a group
    one rollout   one tree after another, one rollout of a search after another

A first growth that is not counted (it loads the compiled loops and finds the slots' size), then alternating
repeats, medians; two minutes. The last line is one JSON object:

    vs_one_rollout        time of the last over that of the first
    vs_one_tree           time of the second over that of the first
    shared_prompt_share   share of prompt tokens that were not computed again, of those that a driver
                          computes which shares nothing among rollouts but keeps each one's earlier
                          turns (a rollout reads all that came before its first turn, and from then on
                          what is new to each agent)
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.registry import environment
from coterie.models.loading import LoadedModel, load
from coterie.recipes.optima_settings import OptimaDPOSettings
from coterie.recipes.optima_trees import TreeJudge
from coterie.recipes.registry import settings
from coterie.rollout.dialogue_tree import DialogueTree
from coterie.rollout.flight import in_flight
from coterie.rollout.search import Rollout
from coterie.rollout.voices import TokenVoice
from coterie.trajectories.credit import Credit
from coterie.trajectories.tree import Tree
from coterie.trajectories.view import view

SEED = 5
MOST = 120
"""What the token term is relative to."""


class OneByOne(DialogueTree):
    """Plays the rollouts of a search one after another."""

    async def _roll(self, node: str, group: Sequence[Rollout]) -> list[Rollout]:
        found = []
        for rollout in group:
            found += await super()._roll(node, [rollout])
        return found


class Bench:
    """The engine, and the trees that were grown last."""

    def __init__(
        self, loaded: LoadedModel, base: LoadedModel, told: OptimaDPOSettings, tasks: int
    ) -> None:
        self.engine = InProcessEngine(loaded, policy="bench", version="0")
        self.base = InProcessEngine(base, policy="base", version="0")
        self.loaded = loaded
        self.told, self.tasks = told, tasks
        self.world = environment("exchange")
        self.trees: list[DialogueTree] = []

    async def grow(self, kind: type[DialogueTree], at_a_time: int) -> float:
        """Grow all trees with an empty prefix cache; returns seconds."""
        self.engine.forget()
        self.base.forget()
        s = self.told
        sampling = Sampling(s.dpo.temperature, 1.0, s.rollout.max_tokens)
        context = self.loaded.context_length
        voice = TokenVoice(self.engine, self.loaded.renderer.render, sampling, context)
        judge = TreeJudge(s.dpo.reward, MOST, self.base, self.world.agents, settings="bench")
        self.trees = [
            kind(self.world, voice, judge, s.dpo.search, task, Tree(task.id, "rollout", 0))
            for task in self.world.tasks("train", self.tasks, SEED)
        ]
        began = time.perf_counter()
        async with in_flight((tree.grow(_forget) for tree in self.trees), at_a_time) as grown:
            async for _ in grown:
                pass
        return time.perf_counter() - began

    def alone(self) -> int:
        """Prompt tokens that the rollouts read if none shares anything with another."""
        return sum(_alone(tree, rollout) for tree in self.trees for rollout in tree.rollouts)


def _forget(tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
    """Nothing is written: a benchmark has no store."""


def _alone(tree: DialogueTree, rollout: Rollout) -> int:
    """Prompt tokens of one rollout: each agent's first prompt whole, later ones what is new."""
    assert rollout.leaf is not None, rollout.failure
    path = [turn.id for turn in tree.tree.path(rollout.leaf)]
    before = path.index(rollout.start) + 1 if rollout.start in path else 0
    total = 0
    for agent in tree.environment.agents:
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
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    told = settings("optima/idpo")
    assert isinstance(told, OptimaDPOSettings)
    if options.searches:
        search = told.dpo.search.model_copy(update={"searches": options.searches})
        told = told.model_copy(update={"dpo": told.dpo.model_copy(update={"search": search})})
    bench = Bench(load(options.model), load(options.model), told, options.tasks)
    sides: dict[str, Callable[[], tuple[type[DialogueTree], int]]] = {
        "together": lambda: (DialogueTree, options.tasks),
        "one tree": lambda: (DialogueTree, 1),
        "one rollout": lambda: (OneByOne, 1),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    leaves: dict[str, list[list[str | None]]] = {}
    share = 0.0
    await bench.grow(*sides["together"]())
    for _ in range(options.repeats):
        for side, way in sides.items():
            before = replace(bench.engine.stats)
            seconds[side].append(await bench.grow(*way()))
            stats = bench.engine.stats
            read = stats.prompt_tokens - before.prompt_tokens
            computed = read - (stats.cached_tokens - before.cached_tokens)
            leaves[side] = [[r.leaf for r in tree.rollouts] for tree in bench.trees]
            if side == "together":
                share = 1 - computed / bench.alone()
            print(f"{side}: {seconds[side][-1]:.1f} s, {computed:,} prompt tokens computed")
    assert leaves["together"] == leaves["one tree"] == leaves["one rollout"], "other trees"
    medians = {side: statistics.median(found) for side, found in seconds.items()}
    found = {
        "vs_one_rollout": medians["one rollout"] / medians["together"],
        "vs_one_tree": medians["one tree"] / medians["together"],
        "shared_prompt_share": share,
        "seconds": medians,
        "rollouts": options.tasks * told.dpo.search.searches * told.dpo.search.rollouts,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
