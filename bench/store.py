"""How a store grows: what a turn costs to add and to keep, and what opening costs.

    .venv/bin/python bench/store.py

Takes about a minute on one core, and skips the largest store where it would take more than five. The last line is
one JSON object. Items are dialogues of ten
sampled turns of 48 tokens, each prompt a delta of 16 tokens, as in a two-agent rollout. Opening is
measured in a process of its own.
"""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from coterie.record.store import Store
from coterie.record.tree import Ending, ItemKey, Outcome, Tree
from coterie.record.turn import Message, Part, Request, Sample, Speaker, make_turn

SIZES = (1_000, 10_000, 100_000)
LENGTH = 10
"""Turns of a dialogue."""
SECONDS = 300
MEASURED = 50
"""Items over which the cost of a turn is averaged at each size."""


def dialogue(number: int) -> Tree:
    """A dialogue of two agents that share a task."""
    rng = random.Random(number)
    tree = Tree(f"task-{number:06}", "rollout", 0)
    node = tree.root
    last: list[str | None] = [None, None]
    running: list[tuple[int, ...]] = [(), ()]
    for index in range(LENGTH):
        who = index % 2
        name = ("Alice", "Bob")[who]
        message = Message.of("user", "what the other one said, some sixty characters of text it is")
        prompt = running[who] + tuple(rng.randrange(50_000) for _ in range(16))
        request = Request.make(name, node, last[who], prompt, (message,), running[who])
        ids = tuple(rng.randrange(50_000) for _ in range(48))
        logprobs = tuple(-rng.random() for _ in ids)
        sample = Sample(request.id, ids, logprobs, "end", "policy", "0", index, 1.0, 1.0)
        text = Part("words " * 32, span=(0, len(ids)))
        turn = make_turn(node, Speaker("agent", name), [text], sample=sample)
        tree.add(turn, request)
        node, last[who], running[who] = turn.id, turn.id, prompt + ids
    tree.end(Outcome(node, 0, Ending("agreed"), "42", 1.0))
    return tree


def grow(store: Store, start: int, stop: int) -> float:
    """Finish dialogues ``start`` to ``stop``; microseconds spent in the store for one turn."""
    spent = 0.0
    for number in range(start, stop):
        tree = dialogue(number)
        began = time.perf_counter()
        store.finish(ItemKey(0, "rollout", tree.task), tree=tree, metrics={"tokens": 480})
        spent += time.perf_counter() - began
    return spent / (stop - start) / LENGTH * 1e6


def opening(path: str) -> None:
    """Print the seconds to open a store and read one tree, and this process's peak memory."""
    before = peak_mib()
    began = time.perf_counter()
    with Store.open(path) as store:
        opened = time.perf_counter()
        store.tree(0, "rollout", "task-000500")
        read = time.perf_counter()
    peak = peak_mib()
    figures = {
        "open_seconds": opened - began,
        "read_tree_seconds": read - opened,
        "peak_rss_mib": peak,
        "peak_rss_of_store_mib": peak - before,
    }
    print(json.dumps(figures))


def peak_mib() -> float:
    """Most memory that this process has held (``getrusage`` would count its parent's, too)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    """Grow a store, measuring at each size."""
    result: dict[str, object] = {}
    with TemporaryDirectory() as folder:
        path, done, began = Path(folder) / "store.db", 0, time.monotonic()
        with Store.open(path) as store:
            for size in SIZES:
                items = size // LENGTH
                if (time.monotonic() - began) / max(done, 1) * items > SECONDS:
                    break
                grow(store, done, items - MEASURED)
                cost = grow(store, items - MEASURED, items)
                done = items
                result[f"microseconds_per_turn_at_{size}"] = round(cost, 1)
                print(f"{size:>7} turns: {cost:.0f} microseconds a turn", flush=True)
        result["bytes_per_turn"] = round(path.stat().st_size / (done * LENGTH))
        command = [sys.executable, __file__, "--open", str(path)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result |= {name: round(value, 4) for name, value in json.loads(told).items()}
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--open"]:
        opening(sys.argv[2])
    else:
        main()
