"""Memory of two roles on one base: two adapters that train and sample in one process, against one.

    .venv/bin/python bench/roles.py

About eight minutes on two cores. SmolLM2-135M's shape in float32 with random weights. Each role has a LoRA adapter of
rank 16 on all attention matrices. It takes two optimiser steps on 8 rows of 256 tokens, then samples 16 completions of
32 tokens, twice in turn. Each side is a process of its own. The baseline has one role. The last line is one JSON
object:

    memory_ratio    peak memory of the process with two roles over that of the one with one
    models_ratio    peak memory of a process with two roles that are two models over that of the one with one
    mib             the peaks, in MiB
"""

import coterie  # noqa: F401  # isort: skip  # before torch, which reads how threads are to wait
import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.smollm2 import loaded
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.models.adapters import ATTENTION, add_lora
from coterie.models.loading import LoadedModel
from coterie.record.rows import Row, Target
from coterie.training.losses import SFT
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer

RANK, STEPS, ROUNDS = 16, 2, 2
ROWS, LENGTH = 8, 256
COMPLETIONS, SAMPLED = 16, 32
SETTINGS = TrainingSettings(
    method="lora",
    learning_rate=1e-3,
    schedule="constant",
    warmup_ratio=0.0,
    save_every_seconds=None,
)


def rows() -> list[Row]:
    """Random tokens of a seed; all but the first are targets."""
    rng = random.Random(0)
    found = [tuple(rng.randrange(49152) for _ in range(LENGTH)) for _ in range(ROWS)]
    return [Row(ids, (Target(1, LENGTH, "bench"),)) for ids in found]


def train(model: LoadedModel, role: str, folder: Path, steps: int) -> None:
    """Optimiser steps of one adapter, those of earlier rounds included."""
    with Trainer(model.model, SFT(), SETTINGS, folder, steps=steps, adapter=role) as trainer:
        while trainer.done < steps:
            trainer.step(rows())
        trainer.finish()


def sample(model: LoadedModel, role: str) -> None:
    """Completions with one adapter."""
    engine = InProcessEngine(model, policy=role, version="0", adapter=role)
    prompt = list(rows()[0].ids)
    asyncio.run(engine.sample(prompt, range(COMPLETIONS), Sampling(1.0, 1.0, SAMPLED, (), 600.0)))


def play(models: dict[str, LoadedModel]) -> None:
    """Roles train and sample in turn."""
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(ROUNDS):
            for role, model in models.items():
                train(model, role, Path(folder, f"{role}-{turn}"), STEPS)
                sample(model, role)


def cast(side: str, path: str | None) -> dict[str, LoadedModel]:
    """The model of each role."""
    names = ("planner",) if side == "one" else ("planner", "grounder")
    found: dict[str, LoadedModel] = {}
    base = loaded(path)
    for name in names:
        own = loaded(path) if side == "models" and found else base
        model = add_lora(own.model, r=RANK, alpha=2 * RANK, target_modules=ATTENTION, name=name)
        base = replace(own, model=model)
        found[name] = base
    return found


def peak(side: str, path: str | None) -> float:
    """MiB that a process of its own needed at most."""
    command = [sys.executable, __file__, "--side", side, *(["--model", path] if path else [])]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(said.splitlines()[-1])


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of real weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["one", "two", "models"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.side:
        play(cast(args.side, args.model))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    mib = {side: peak(side, args.model) for side in ("one", "two", "models")}
    for side, found in mib.items():
        print(f"{side:>8}: {found:,.0f} MiB")
    print(
        json.dumps(
            {
                "memory_ratio": mib["two"] / mib["one"],
                "models_ratio": mib["models"] / mib["one"],
                "mib": mib,
            }
        )
    )


if __name__ == "__main__":
    main()
