"""One iteration of ``optima/isft`` against a plain script on Transformers' ``generate`` and TRL's SFTTrainer.

    .venv/bin/python bench/loop.py

About ten minutes on two quiet cores; needs ``trl`` (``pip install -e '.[dev]'``). The quickstart's iteration: 1,024
dialogues of 128 tasks of ``exchange``, rewards with the base's likelihoods, selection, SFT, and 500 held-out tasks.

The plain script does the same work: the same prompts and as many new tokens, turn by turn, all dialogues that still
run in left-padded batches, each as long as its longest answer; one padded forward pass for likelihoods; the same rows
in the same steps. Each part runs at its best batch size, which is not timed. Prompts, parsing, grading, selection and
files cost the script nothing: only its calls of the model are timed. Of ours, all is, from the first stage's start to
the last one's end.

The sides alternate at most three times, after one uncounted iteration of ours, which records the work; another
round begins only if it would end within ``--seconds`` (600). The last line is one JSON object:

    vs_plain_script    seconds of the script over ours, medians
    spread, rounds     the smallest and the largest ratio of one round; how many rounds
    ours, plain        median seconds of each stage, and ``total``
    batch_sizes        the script's, by stage
    dialogues, sampled_tokens, rows, heldout    how much work it was
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PrinterCallback

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.lockstep import Turns, generate, score
from bench.timing import Times, rounds
from bench.trl_side import arguments, sft_trainer
from coterie.environments.protocol import agents_of
from coterie.environments.registry import task_pair
from coterie.models.loading import LoadedModel, load
from coterie.progress import Silent
from coterie.recipes.optima import Optima
from coterie.recipes.registry import quickstart_sizes, settings
from coterie.recipes.registry import recipe as recipe_of
from coterie.record.rows import Row, prompts
from coterie.record.tree import Selection, Tree
from coterie.runs.loop import run_stages
from coterie.runs.run import Run, StageKey, new_run
from coterie.training.batches import Order

STEPS = [StageKey(0, name) for name in ("rollout", "reward", "select", "train")] + [
    StageKey(1, "evaluate")
]
REPEATS = 3
GENERATED = (32, 64, 128, 256, 512)
SCORED = (8, 16, 32, 64, 128)
TRAINED = (1, 2, 4, 8, 16)
TRIED = 512
"""Dialogues (or sequences) on which batch sizes are tried."""
STEPS_TRIED = 4
ENOUGH = 1.5
"""A larger batch is not tried after one that took so many times as long as the best."""
Asked = tuple[tuple[int, ...], int]
"""A prompt, and how many tokens came of it."""


@dataclass(frozen=True)
class Work:
    """What an iteration asks of the model, as a run recorded it."""

    sampled: list[list[Asked]]
    """The turns of each dialogue."""
    scored: list[tuple[int, ...]]
    """The sequences whose likelihoods rewards need."""
    rows: list[Row]
    """In the order of the steps."""
    rows_in_step: int
    rate: float
    greedy: list[list[Asked]]
    """Of held-out dialogues."""

    @property
    def steps(self) -> int:
        """Of the optimiser."""
        return -(-len(self.rows) // self.rows_in_step)


def make_recipe(model: str | None) -> Optima:
    """The quickstart's, for one iteration."""
    overrides = [task_pair("exchange"), "iterations=1", *([f"model={model}"] if model else [])]
    made = recipe_of(settings("optima/isft", overrides, over=quickstart_sizes("exchange")))
    assert isinstance(made, Optima)
    return made


def iterate(recipe: Optima, folder: Path) -> tuple[dict[str, float], Work]:
    """Our iteration, the seconds of its stages, and the work that it was."""
    with new_run(folder, recipe.name, recipe.settings, "none") as run:
        began = time.perf_counter()
        run_stages(recipe, run, Silent(), STEPS)
        total = time.perf_counter() - began
        seconds = {step.stage: float(run.metrics(step)["seconds"]) for step in STEPS}
        return {**seconds, "total": total}, recorded(recipe, run)


def recorded(recipe: Optima, run: Run) -> Work:
    """What a finished iteration asked of the model."""
    context = recipe.context(0)
    trees = list(run.store.trees(0, "rollout"))
    scored = [
        segment.ids
        for tree in trees
        for outcome, _ in tree.trajectories()
        for agent in recipe.agents
        for segment in recipe.training_view(
            run, tree, Selection(outcome.leaf, agent, context)
        ).segments
    ]
    train, rows = recipe.settings.train, recipe.rows(run, 0)
    order = Order([""] * len(rows), recipe.seeded(train, 0).seed, train.batch_size)
    steps = order.steps(0, order.steps_per_epoch * train.epochs)
    heldout = run.store.trees(1, "evaluate")
    return Work(
        sampled=[turns for tree in trees for turns in asked(recipe, tree)],
        scored=scored,
        rows=[rows[i] for step in steps for i in step],
        rows_in_step=train.batch_size,
        rate=train.learning_rate,
        greedy=[turns for tree in heldout for turns in asked(recipe, tree)],
    )


def asked(recipe: Optima, tree: Tree) -> list[list[Asked]]:
    """The turns of each dialogue of a tree, in order."""
    found = []
    for outcome, path in tree.trajectories():
        of = {
            turn.id: (prompt, len(turn.ids))
            for agent in agents_of(recipe.environment)
            for prompt, turn in prompts(tree, outcome.leaf, agent)
        }
        found.append([of[turn.id] for turn in path if turn.id in of])
    return found


class Plain:
    """The plain script: each part of an iteration, at a batch size."""

    def __init__(self, work: Work, model: LoadedModel, sizes: dict[str, int] | None = None) -> None:
        self.work, self.model = work, model
        self.sizes = sizes or {
            "rollout": best(GENERATED, lambda size: self.play(work.sampled[:TRIED], size, 1)),
            "reward": best(SCORED, lambda size: score(model, work.scored[:TRIED], size)),
            "train": best(
                [size for size in TRAINED if work.rows_in_step % size == 0],
                lambda size: self.train(size, STEPS_TRIED),
            ),
            "evaluate": best(GENERATED, lambda size: self.play(work.greedy, size, 1, greedy=True)),
        }

    def iterate(self) -> dict[str, float]:
        """Seconds of each part and of all."""
        parts: dict[str, Callable[[int], None]] = {
            "rollout": lambda size: self.play(self.work.sampled, size),
            "reward": lambda size: score(self.model, self.work.scored, size),
            "train": lambda size: self.train(size, self.work.steps),
            "evaluate": lambda size: self.play(self.work.greedy, size, greedy=True),
        }
        found = {name: clocked(lambda: do(self.sizes[name])) for name, do in parts.items()}  # noqa: B023
        return {**found, "total": sum(found.values())}

    def play(
        self,
        dialogues: Sequence[list[Asked]],
        size: int,
        turns: int | None = None,
        *,
        greedy: bool = False,
    ) -> None:
        """Dialogues, or their first ``turns``: at each turn, those that still run in batches of ``size``."""
        self.model.model.eval()
        for turn in range(max(map(len, dialogues)) if turns is None else turns):
            now = [said[turn] for said in dialogues if turn < len(said)]
            parts = [now[start : start + size] for start in range(0, len(now), size)]
            batches = [
                Turns([list(prompt) for prompt, _ in part], max(new for _, new in part))
                for part in parts
            ]
            generate(self.model, batches, greedy=greedy)

    def train(self, size: int, steps: int) -> None:
        """Steps of TRL's trainer."""
        with TemporaryDirectory() as folder:
            accumulate = self.work.rows_in_step // size
            options = arguments(Path(folder), size, accumulate, self.work.rate, steps)
            trainer = sft_trainer(self.model.model, self.model.tokenizer, self.work.rows, options)
            trainer.remove_callback(PrinterCallback)
            trainer.train()


def best(sizes: Sequence[int], do: Callable[[int], None]) -> int:
    """The size at which something is fastest."""
    seconds: dict[int, float] = {}
    for size in sizes:
        seconds[size] = clocked(lambda: do(size))  # noqa: B023
        if seconds[size] > ENOUGH * min(seconds.values()):
            break
    return min(seconds, key=lambda size: seconds[size])


def clocked(do: Callable[[], Any]) -> float:
    """Seconds that something takes."""
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def compare(recipe: Optima, folder: Path, seconds: float) -> dict[str, Any]:
    """All figures."""
    _, work = iterate(recipe, folder / "first")
    sizes = Plain(work, load(recipe.settings.model)).sizes
    found: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
    times = Times()
    for number in rounds(REPEATS, seconds):
        ours, again = iterate(recipe, folder / f"{number}")
        assert again == work, "our side did other work than it recorded"
        plain = Plain(work, load(recipe.settings.model), sizes)
        for side, one in (("ours", ours), ("plain", plain.iterate())):
            found[side].append(one)
            times.add(side, one["total"])
            print(side, json.dumps({name: round(value, 2) for name, value in one.items()}))
    return {
        "vs_plain_script": times.ratio("plain", "ours"),
        "spread": times.spread("plain", "ours"),
        "rounds": times.rounds(),
        **{
            side: {name: round(statistics.median(one[name] for one in all_), 2) for name in all_[0]}
            for side, all_ in found.items()
        },
        "batch_sizes": sizes,
        "dialogues": len(work.sampled),
        "sampled_tokens": sum(new for said in work.sampled for _, new in said),
        "rows": len(work.rows),
        "heldout": len(work.greedy),
    }


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="another model than the quickstart's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="begin no round that ends later")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with TemporaryDirectory() as folder:
        print(json.dumps(compare(make_recipe(args.model), Path(folder), args.seconds)))


if __name__ == "__main__":
    main()
