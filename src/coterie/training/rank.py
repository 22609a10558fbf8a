"""Entry point of one rank that :mod:`coterie.training.launch` started.

    accelerate launch --module coterie.training.rank JOB

It loads the model and the items of the job, trains with the other ranks, and writes its progress to a file.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from pydantic import TypeAdapter

from coterie.config.plugins import at_place
from coterie.errors import UserError
from coterie.models.adapters import load_adapter, load_head
from coterie.models.loading import load
from coterie.progress import StagePlace
from coterie.training.launch import (
    ADAPTER,
    ERROR,
    HELDOUT,
    ITEMS,
    JOB,
    JOINED,
    PROGRESS,
    Job,
    make_objective,
)
from coterie.training.trainer import train


class ToFile:
    """Progress in a file that the launching process reads."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def stage(self, place: StagePlace) -> None: ...

    def start(self, total: int, description: str) -> None:
        self._write({"total": total, "description": description})

    def advance(self, n: int, **fields: float) -> None:
        self._write({"n": n, "fields": fields})

    def say(self, text: str) -> None:
        """Do nothing; the launching process reports to the user."""

    def close(self) -> None:
        """Do nothing; the launching process sees the exit."""

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def load_model(folder: Path, job: Job, device: torch.device) -> Any:
    dtype = getattr(torch, job.settings.dtype)
    model = load(job.model, dtype=dtype, device=device, attention=job.attention).model
    if job.adapter is not None:
        model = load_adapter(model, folder / ADAPTER, name=job.adapter, trainable=True)
    if job.head:
        load_head(model, folder)
    return model


def main(folder: Path) -> None:
    job = TypeAdapter(Job).validate_json((folder / JOB).read_bytes())
    on_cpu = os.environ.get("ACCELERATE_USE_CPU") == "true"
    state = PartialState(on_cpu, timeout=timedelta(seconds=job.timeout))
    (folder / f"{JOINED}{state.process_index}").touch()
    kind: Any = list.__class_getitem__(at_place(job.item))
    items: TypeAdapter[Any] = TypeAdapter(kind)
    try:
        train(
            load_model(folder, job, state.device),
            items.validate_json((folder / ITEMS).read_bytes()),
            job.settings,
            folder.parent,
            objective=make_objective(job),
            progress=ToFile(folder / PROGRESS),
            heldout=items.validate_json((folder / HELDOUT).read_bytes()),
            measure_every=job.measure_every,
        )
    except UserError as error:
        partial = folder / f"{ERROR}.partial-{state.process_index}"
        partial.write_text(json.dumps([error.what, error.todo]))
        partial.replace(folder / ERROR)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
