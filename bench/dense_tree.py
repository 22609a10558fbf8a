"""Dense trees of games against batched ``generate``, and training on their pairs against TRL.

    .venv/bin/python bench/dense_tree.py
    .venv/bin/python bench/dense_tree.py --only trees

Trees: 4 games of BabyAI with the packaged tiny model, 16 rollouts each, grown together on the in-process engine with an
empty prefix cache. The same turns are sampled once more, with as many tokens, by Transformers in lock-step
(`bench/lockstep.py`): all rollouts of a search a batch a turn, whole prompts read again each turn; what a label of a
node said is sampled once there, too. Forks are measured by growing the same trees with sessions that can't be copied.

Training: 8 pairs of siblings of such trees, as long as those of the packaged recipe (a prompt of 192 tokens that grows
by 24 a step, answers of 8), with SmolLM2-135M's shape in float32, as one step of DPO: by tries, and by TRL at its best
batch size (`bench/trie_training.py`).

About six minutes on two quiet cores. A first round is not counted; then alternating repeats, medians. The last line is
one JSON object:

    vs_batched_generate   time of ``generate`` over that of the trees
    shared_prompt_share   share of prompt tokens that were not computed again, of those that a driver computes which
                          shares nothing among rollouts but keeps each one's earlier turns
    fork_vs_replay        time with replays over that with forks; reported
    train_vs_trl          time of TRL's step over that of ours
    loss_diff             difference of the two losses
    rounds, spread        counted repeats, and the smallest and largest ``vs_batched_generate`` of one
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.lockstep import Turns, generate
from bench.smollm2 import model as make_model
from bench.timing import Times, rounds
from bench.trie_training import Ours, best_batch, tokens, trl_step
from bench.trie_training import pair as made_pair
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.games.babyai import BabyAI, Game
from coterie.environments.protocol import Shared
from coterie.models.loading import load
from coterie.models.prefix_trie import CostRule
from coterie.recipes.dense_tree import by_score
from coterie.recipes.dense_tree_settings import DenseTreeSettings
from coterie.recipes.registry import settings
from coterie.record.rows import Pair, prompts
from coterie.record.tree import Credit, Tree
from coterie.rollout.dense_search import DenseSearch
from coterie.rollout.episodes import Driver, bounded_gather
from coterie.rollout.samplers import TokenSampler
from coterie.rollout.tree_search import Rollout
from coterie.selection import count_pairs

TASKS, RUNS, BASE, WINDOW = 4, 16, 4, 4
PROMPT, STEP, ANSWER, PAIRS = 192, 24, 8, 8
REPEATS = 3


class Unforked(BabyAI):
    """The same games, of which none can be copied: branches are replayed."""

    def open(self, task: Any, seed: int, shared: Shared) -> Any:
        """A game without ``fork``."""
        return _Alone(super().open(task, seed, shared))


@dataclass
class _Alone:
    """A session's context, of a session that can't be copied."""

    inner: Any

    async def __aenter__(self) -> Game:
        game: Game = await self.inner.__aenter__()
        return NoFork(game.level)

    async def __aexit__(self, *error: Any) -> None:
        await self.inner.__aexit__(*error)


class NoFork(Game):
    """A game that is never copied."""

    def fork(self) -> Any:
        """There is none."""
        return None


class Trees:
    """The engine, and the trees that were grown last."""

    def __init__(self) -> None:
        chosen = settings("dense_tree/tiny", [])
        assert isinstance(chosen, DenseTreeSettings)
        self.settings = chosen
        self.loaded = load(chosen.model)
        self.engine = InProcessEngine(self.loaded, policy="bench", version="0")
        self.trees: list[DenseSearch] = []

    async def grow(self, kind: type[BabyAI]) -> float:
        """Grow all trees with an empty prefix cache; returns seconds."""
        self.engine.forget()
        s, environment = self.settings, kind(self.settings.environment)  # type: ignore[arg-type]
        sampling = Sampling(0.0, 1.0, s.rollout.max_tokens)
        context = self.loaded.context_length
        sampler = TokenSampler(self.engine, self.loaded.renderer.render, sampling, context)
        search = s.search.model_copy(
            update={
                "max_children": BASE,
                "rollouts_per_search": WINDOW,
                "rollouts_per_task": RUNS,
                "pairs": 10**6,
            }
        )
        speakers = [sampler.at(search.temperature(label)) for label in range(BASE)]
        driver = Driver(environment, {"agent": sampler}, seed=0, shared=Shared())
        self.trees = []
        async with driver.sessions() as sessions:
            for task in environment.tasks("train", TASKS, 0):
                branches = driver.branches(task, Tree(task.id, "rollout", 0), sessions)
                tree = DenseSearch(
                    branches,
                    by_score,
                    "agent",
                    speakers,
                    search,
                    lambda values: count_pairs(values, s.pairs),
                    environment.limits["turns"],
                )
                self.trees.append(tree)
            began = time.perf_counter()
            async with bounded_gather((tree.grow(_forget) for tree in self.trees), TASKS) as grown:
                async for _ in grown:
                    pass
            return time.perf_counter() - began

    def batched(self) -> float:
        """Seconds of Transformers for the rollouts of the trees that were grown last."""
        batches = [batch for search in range(RUNS) for batch in self.lockstep(search)]
        began = time.perf_counter()
        generate(self.loaded, batches)
        return time.perf_counter() - began

    def lockstep(self, search: int) -> list[Turns]:
        """The batches of one search: the rollouts of all trees, turn by turn. None samples what another has."""
        found = []
        for tree in self.trees:
            seen = {n for one in tree.rollouts if one.search < search for n in _asked(tree, one)}
            for one in tree.rollouts:
                if one.search == search:
                    new = {n: turn for n, turn in _asked(tree, one).items() if n not in seen}
                    seen |= new.keys()
                    found.append(list(new.values()))
        steps = range(max(map(len, found), default=0))
        rows = [[turns[step] for turns in found if step < len(turns)] for step in steps]
        return [Turns([p for p, _ in now], max(count for _, count in now)) for now in rows]

    def alone(self) -> int:
        """Prompt tokens that rollouts read if none shares anything with another: each its last prompt, once."""
        total = 0
        for tree in self.trees:
            for rollout in tree.rollouts:
                assert rollout.leaf is not None, rollout.failure
                asked = prompts(tree.tree, rollout.leaf, "agent")
                own = sum(len(turn.ids) for _, turn in asked[:-1])
                path = [turn.id for turn in tree.tree.path(rollout.leaf)]
                before = path.index(rollout.start) + 1 if rollout.start in path else 0
                said = sum(len(tree.tree.turns[node].ids) for node in path[:before])
                total += len(asked[-1][0]) - own + said
        return total


def _asked(tree: DenseSearch, rollout: Rollout) -> dict[str, tuple[list[int], int]]:
    """By turn of a rollout: its prompt, and how many tokens were sampled."""
    assert rollout.leaf is not None, rollout.failure
    found = prompts(tree.tree, rollout.leaf, "agent")
    return {turn.id: (list(prompt), len(turn.ids)) for prompt, turn in found}


def _forget(tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
    """Nothing is written: a benchmark has no store."""


async def grown(repeats: int, seconds: float) -> dict[str, object]:
    """The figures of trees."""
    bench, times, share = Trees(), Times(), 0.0
    for number in rounds(repeats + 1, seconds):
        if number == 1:
            times = Times()  # the first round warms up, unless it is the only one
        times.add("replay", await bench.grow(Unforked))
        leaves = [[r.leaf for r in tree.rollouts] for tree in bench.trees]
        before = replace(bench.engine.stats)
        times.add("trees", await bench.grow(BabyAI))
        assert leaves == [[r.leaf for r in tree.rollouts] for tree in bench.trees], "other trees"
        stats = bench.engine.stats
        read = stats.prompt_tokens - before.prompt_tokens
        share = 1 - (read - (stats.cached_tokens - before.cached_tokens)) / bench.alone()
        times.add("generate", bench.batched())
        print({side: round(found[-1], 2) for side, found in times.seconds.items()}, flush=True)
    return {
        "vs_batched_generate": times.ratio("generate", "trees"),
        "shared_prompt_share": share,
        "fork_vs_replay": times.ratio("replay", "trees"),
        "rounds": times.rounds(),
        "spread": times.spread("generate", "trees"),
        "rollouts": sum(len(tree.rollouts) for tree in bench.trees),
    }


def sibling_pairs() -> list[Pair]:
    """Pairs of siblings at the steps of one tree: half of them two at one node."""
    rng, found = random.Random(0), list[Pair]()
    prompt = tokens(rng, PROMPT)
    for _ in range(PAIRS // 2):
        found += [made_pair(prompt, rng, ANSWER) for _ in range(2)]
        prompt = prompt + tokens(rng, STEP)
    return found


def trained(repeats: int, seconds: float) -> dict[str, object]:
    """The figures of training."""
    items, policy = sibling_pairs(), make_model()
    batch, _ = best_batch(policy, items)
    ours, times, losses = Ours(policy, items, CostRule.of(policy)), Times(), [0.0, 0.0]
    for number in rounds(repeats + 1, seconds):
        if number == 1:
            times = Times()
        took, losses[0], _ = ours.step()
        times.add("ours", took)
        took, losses[1] = trl_step(policy, items, batch)
        times.add("trl", took)
        print({side: round(found[-1], 2) for side, found in times.seconds.items()}, flush=True)
    return {
        "train_vs_trl": times.ratio("trl", "ours"),
        "trl_batch": batch,
        "loss_diff": abs(losses[0] - losses[1]),
    }


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--seconds", type=float, default=150, help="of each part")
    parser.add_argument("--only", choices=["trees", "training"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, object] = {}
    if options.only != "training":
        found |= asyncio.run(grown(options.repeats, options.seconds))
    if options.only != "trees":
        found |= trained(options.repeats, options.seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
