"""What it costs to record the tokens of optimizer steps: part of bench/viewer.py, on a tiny ``rl/grpo``."""

import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import Times, rounds
from coterie.progress import Silent
from coterie.recipes import registry
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey, new_run

TINY = (
    "rollout.tasks=6", "rollout.rollouts_per_task=4", "steps.count=4", "evaluate.tasks=2", "engine.device=cpu",
    "train.threads=1",
)  # fmt: skip


def bytes_per_token(file: Path) -> float:
    """Return the bytes of the tables of trained rows and their indices over the number of trained tokens."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as db:
        find = (
            "SELECT sum(pgsize) FROM dbstat JOIN sqlite_master m USING (name) "
            "WHERE m.tbl_name IN ('trained', 'optimizer_step')"
        )
        size, tokens = (
            db.execute(find).fetchone()[0],
            db.execute("SELECT sum(tokens) FROM trained").fetchone()[0],
        )
    return float(size / tokens)


def train(folder: Path, facts: str) -> float:
    """Train a tiny policy by GRPO, and return the processor seconds of its steps."""
    settings = registry.settings("rl/grpo", [*TINY, f"train.token_facts={facts}"])
    recipe = registry.recipe(settings)
    with new_run(folder, "rl/grpo", settings, "") as run:
        start = time.process_time()
        run_stages(recipe, run, Silent(), [StageKey(0, "reinforce")])
        return time.process_time() - start


def recording(folder: Path, seconds: float) -> dict[str, Any]:
    """Return size and cost of recording the tokens of a real run."""
    times = Times()
    train(folder / "warm", "all")
    for number in rounds(8, seconds):
        # The side that comes first changes, since the machine may become faster or slower meanwhile.
        for facts in ("all", "none")[:: 1 if number % 2 else -1]:
            times.add(facts, train(folder / f"{facts}-{number}", facts))
    return {
        "bytes_per_token": bytes_per_token(folder / "warm" / "store.sqlite"),
        "step_overhead": times.ratio("all", "none") - 1,
        "step_overhead_spread": [ratio - 1 for ratio in times.spread("all", "none")],
        "step_seconds": times.medians(),
        "step_rounds": times.rounds(),
    }
