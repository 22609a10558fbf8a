"""Runs a small recipe in forked children and kills them, really, at a chosen write boundary.

    python -m tests.crash.zygote [RECIPE KEY=VALUE...]

Started by the crash tests as a process of its own, so that every child begins from warm imports and
an untouched torch. It reads lines ``FOLDER KILL_AT`` and answers one JSON line each:
``{"boundary", "killed", "digest", "steps"}``. A write boundary is the commit of a transaction, a
file opened for writing, a rename or a removal; they are seen through Python's audit hooks and
SQLite's statement trace, so nothing of the product is changed. ``KILL_AT`` 0 never kills; a name
of a stage with a number (``rollout:3``) counts boundaries from the beginning of that stage.
"""

import hashlib
import json
import os
import signal
import sqlite3
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from coterie.progress import Silent
from coterie.recipes.base import Recipe
from coterie.recipes.optima import Optima
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.rows import rows, view
from coterie.runs.loop import Stage, load_selections, run_stages
from coterie.runs.run import Run, open_run
from tests.helpers.separate_engines import use_separate_engines

WORDS = [
    "iterations=2", "rollout.tasks=3", "rollout.rollouts_per_task=2", "rollout.max_tokens=12",
    "evaluate.tasks=2", "select.threshold=-100", "select.top_share=1", "train.epochs=1",
    "train.batch_size=4", "train.save_every_steps=1", "engine.device=cpu",
]  # fmt: skip


class Killer:
    """Counts write boundaries below one folder and kills this process at one of them."""

    def __init__(self, folder: str, kill_at: str) -> None:
        self.folder = folder
        stage, _, number = kill_at.rpartition(":")
        self.stage, self.number = stage, int(number)
        self.counting = not stage
        self.count = 0
        self.connections: list[sqlite3.Connection] = []

    def watch_commits(self) -> None:
        """See the statements of the connections made so far."""
        for connection in self.connections:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                connection.set_trace_callback(self.statement)
        self.connections.clear()

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect/handle":
            self.connections.append(args[0])  # usable once its constructor has returned
        elif event == "open":
            writes = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
            if writes and self.folder in str(args[0]):
                self.boundary()
        elif event in ("os.rename", "os.remove", "os.rmdir") and self.folder in str(args[0]):
            self.boundary()

    def statement(self, sql: str) -> None:
        if sql.startswith("COMMIT"):
            self.boundary()

    def boundary(self) -> None:
        if not self.counting:
            return
        self.count += 1
        if self.count == self.number:
            os.kill(os.getpid(), signal.SIGKILL)

    def enter(self, stage: str) -> None:
        self.counting = self.counting or stage == self.stage


def watched(recipe: Recipe, killer: Killer) -> Recipe:
    """The recipe, telling the killer which stage begins."""

    def do(stage: Stage, run: Run, iteration: int, progress: Any) -> Any:
        killer.enter(stage.key.stage)
        return stage.do(run, iteration, progress)

    class Watched(type(recipe)):  # type: ignore[misc]
        def stages(self) -> list[Stage]:
            return [replace(stage, do=partial(do, stage)) for stage in super().stages()]

    made: Recipe = Watched(recipe.settings)
    return made


def digest(recipe: Recipe, run: Run) -> str:
    """Hash of all training rows, weights and held-out results: all that a run is for."""
    found: list[object] = []
    for stage in recipe.stages():
        i = stage.key.iteration
        if stage.trains:
            found += [sorted(trained_on(recipe, run, i)), run.metrics(stage.key)["weights"]]
        for tree in run.store.trees(i, "evaluate") if stage.key.stage == "evaluate" else ():
            found.append(
                [tree.task, sorted(tree.turns), [o.answer for o, _ in tree.trajectories()]]
            )
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def trained_on(recipe: Recipe, run: Run, i: int) -> list[list[object]]:
    """The training rows of an iteration."""
    if isinstance(recipe, Optima):
        found = recipe.rows(run, i)
    else:
        chosen = (view(tree, one.leaf, one.agent) for tree, one in load_selections(run, i))
        found = [row for shown in chosen for row in rows(shown)]
    return [[row.ids, [(t.start, t.stop) for t in row.targets], row.origin] for row in found]


def child(folder: Path, kill_at: str, answer: int) -> None:
    """The whole run, in a forked process."""
    torch.set_num_threads(1)
    name, *overrides = sys.argv[1:] or ["optima/isft", *WORDS]
    own, killer = settings(name, overrides), Killer(str(folder), kill_at)
    if own.engine.kind == "vllm":
        use_separate_engines([])
    recipe = watched(recipe_of(own), killer)
    sys.addaudithook(killer.audit)
    with open_run(folder, own.recipe, own) as run:
        killer.watch_commits()
        run_stages(recipe, run, Silent())
        counted = killer.count
        result = {"boundary": counted, "digest": digest(recipe, run)}
    os.write(answer, json.dumps(result).encode())


def serve() -> None:
    """Fork a child for every line on standard input."""
    for line in sys.stdin:
        folder, kill_at = line.split()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            status = 1
            try:
                child(Path(folder), kill_at, writer)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        failed = not killed and status != 0
        facts = json.loads(text) if text else {}
        print(json.dumps({**facts, "killed": killed, "failed": failed}), flush=True)


if __name__ == "__main__":
    serve()
