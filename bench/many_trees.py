"""How merging two parts of a run, and selecting from all their trees, take to 1,000 trees of about 512 pairs each.

    .venv/bin/python bench/many_trees.py

Takes about two minutes on one core, most of them to make the runs. A tree has 220 messages of 30 tokens, in groups of
ten siblings, and what the game said to them; about half of its 199 rollouts succeed. Merging and selecting are measured
in a process of their own, imports included: `coterie merge`, then what `coterie select` does (the values of all nodes,
all pairs, a budget of 22,331). The last line is one JSON object.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

TREES = 1_000
NODES, BRANCHES, LENGTH = 220, 10, 30
"""Messages of a tree, children of a node, tokens of a message."""
DEEPEST = 8
PAIRS = 22_331
WORDS = (
    "model=tiny-exchange", f"environment={Path(__file__).parents[1]}/examples/environment.py:Guess",
    f"rollout.tasks={TREES}", f"search.max_children={BRANCHES}", "pairs.margin=0.5", f"budget.pairs={PAIRS}",
    "engine.device=cpu",
)  # fmt: skip


def make_part(folder: Path, shard: tuple[int, int]) -> None:
    """A run that has sampled and value_tree its part of the trees."""
    from coterie.recipes.dense_tree import DenseTree
    from coterie.recipes.registry import recipe as recipe_of
    from coterie.recipes.registry import settings
    from coterie.record.tree import ItemKey
    from coterie.runs.run import StageKey, open_run, write_config

    own = settings("dense_tree/tiny", [*WORDS, f"rollout.shard={list(shard)}"])
    recipe = recipe_of(own)
    assert isinstance(recipe, DenseTree), "it is that recipe"
    with open_run(folder, recipe.name, own) as run:
        write_config(run)
        steps = [StageKey(0, "rollout"), StageKey(0, "reward")]
        for step in steps:
            run.begin(step, recipe.fingerprint(step))
        tasks = recipe.train_tasks(0)
        run.store.put_tasks(tasks)
        for task in tasks:
            tree, rollouts = grown(task.id)
            with run.store.together():
                for one in rollouts:
                    metrics = {
                        "start": tree.root,
                        "sampled": LENGTH,
                        "labels": ",".join(map(str, one.labels)),
                        "tokens": LENGTH * len(one.labels),
                        "leaf": one.leaf,
                        "reward": one.reward,
                    }
                    key = ItemKey(0, "rollout", task.id, f"{one.search:03d}/{one.number:02d}")
                    run.store.finish(key, tree=None if one.number else tree, metrics=metrics)
                run.store.finish(ItemKey(0, "grown", task.id), metrics={"rollouts": len(rollouts)})
                done = asyncio.run(recipe.value_tree(run, tree))
                run.store.finish(done.key, metrics=done.metrics, credit=done.credit)
        for step in steps:
            run.finish(step, recipe.fingerprint(step), {"seconds": 0.0})


def grown(task: str):
    """A tree, and the rollouts that made it."""
    from coterie.record.tree import Ending, Outcome, Tree
    from coterie.record.turn import Message, Part, Request, Sample, Speaker, make_turn
    from coterie.rollout.tree_search import Rollout

    rng = random.Random(task)
    tree = Tree(task, "rollout", 0)
    player, guess = Speaker("agent", "player"), Speaker("environment", "guess")
    waiting = [((), tree.root, None, ())]
    for _ in range(NODES // BRANCHES):
        labels, node, last, running = waiting.pop(rng.randrange(len(waiting)))
        prompt = running + tuple(rng.randrange(30_000) for _ in range(16))
        said = Message.of("user", "No. That was not it: try again.")
        request = Request.make("player", node, last, prompt, (said,), running)
        for label in range(BRANCHES):
            ids = tuple(rng.randrange(30_000) for _ in range(LENGTH))
            logprobs = tuple(-rng.random() for _ in ids)
            sample = Sample(
                request.id, ids, logprobs, "end", "policy", "0", rng.getrandbits(63), 1.0, 1.0
            )
            text = " ".join(f"{one:x}" for one in ids)
            turn = make_turn(
                node,
                player,
                [Part(text, source="sampled", span=(0, LENGTH))],
                sample=sample,
                draw=label,
            )
            tree.add(turn, request)
            no = make_turn(turn.id, guess, [Part("No.")], author="environment")
            tree.add(no)
            if len(labels) + 1 < DEEPEST:
                waiting.append(((*labels, label), no.id, turn.id, prompt + ids))
    rollouts = []
    for labels, node, *_ in waiting:
        score = float(rng.random() < 0.5)
        number = len(rollouts)
        tree.end(Outcome(node, number, Ending("turns", truncated=True), None, score))
        one = Rollout(0, number, tree.root, node, score, None, LENGTH, labels)
        rollouts.append(one)
    return tree, rollouts


def measure(folder: Path) -> None:
    """Merge, then select; print the seconds, and this process's peak memory."""
    began = time.perf_counter()
    from coterie.progress import Silent
    from coterie.recipes.base import recorded_run
    from coterie.recipes.dense_tree import DenseTree
    from coterie.recipes.sweep import merge

    imported = time.perf_counter()
    merge([folder / "0", folder / "1"], folder / "whole", lambda _: None, Silent())
    merged = time.perf_counter()
    with recorded_run(folder / "whole") as (recipe, run):
        assert isinstance(recipe, DenseTree), "it is that recipe"
        chosen, counts = recipe.select_pairs(run, 0)
    ended = time.perf_counter()
    status = Path("/proc/self/status").read_text()
    figures = {
        "trees": len(counts),
        "pairs_per_tree": round(sum(counts.values()) / len(counts), 1),
        "selected": len(chosen),
        "import_seconds": round(imported - began, 2),
        "merge_seconds": round(merged - imported, 2),
        "select_seconds": round(ended - merged, 2),
        "seconds": round(ended - began, 2),
        "peak_gb": round(int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9, 3),
    }
    print(json.dumps(figures))


def main() -> None:
    """Make two parts, then measure."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for place in range(2):
            began = time.perf_counter()
            make_part(folder / str(place), (place, 2))
            print(f"part {place} made in {time.perf_counter() - began:.0f} s", flush=True)
        size = sum((folder / str(n) / "store.sqlite").stat().st_size for n in range(2))
        command = [sys.executable, __file__, "--measure", str(folder)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(
            json.dumps(
                {"cores": os.cpu_count(), "store_gb": round(size / 1e9, 3)}
                | json.loads(told.splitlines()[-1])
            )
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
    else:
        main()
