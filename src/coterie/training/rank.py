"""Process of a rank: it connects to the driver and follows its requests, together with the other ranks."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from torch.distributed.fsdp import fully_shard

from coterie.config.plugins import at_place
from coterie.engines.connections import Address
from coterie.errors import UserError
from coterie.models.adapters import ModelSource
from coterie.models.check import check
from coterie.record.rows import Row
from coterie.training.losses import SFT
from coterie.training.ranks import ADDRESS, STORE, TOKEN, Job, plain_numbers
from coterie.training.reference import LossModule, ShardedModel, rank_row_values
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer

TIMEOUT = 1800.0
"""Seconds that a rank waits for the others within a step."""
BEAT_SECONDS = 2.0
"""Seconds between two signs of life."""
ROWS = TypeAdapter(list[Row])


class Rank:
    """Trainers and frozen models of one rank. Public methods are the requests of the driver."""

    def __init__(self, state: PartialState) -> None:
        self._state = state
        self._trainers: dict[str, Trainer[Any]] = {}
        self._items: dict[str, TypeAdapter[Any]] = {}
        self._frozen: dict[ModelSource, tuple[Any, ShardedModel | None]] = {}

    def open(self, name: str, job: Any) -> dict[str, Any]:
        parsed_job = TypeAdapter(Job).validate_python(job)
        item_type: Any = list.__class_getitem__(at_place(parsed_job.item))
        self._items[name] = TypeAdapter(item_type)
        model = parsed_job.source.load(self._state.device).model
        self._trainers[name] = Trainer(
            *(model, parsed_job.make_objective(), parsed_job.settings, parsed_job.folder),
            steps=parsed_job.steps,
            identity=parsed_job.identity,
            keep_last=parsed_job.keep_last,
            at=parsed_job.at,
        )
        return self._facts(name)

    def step(self, name: str, items: Any, heldout: Any, before: int) -> Any:
        """Take the step after ``before`` steps, unless a checkpoint already has it."""
        trainer, read = self._trainers[name], self._items[name].validate_python
        if trainer.done > before:
            lines = (trainer.folder / "metrics.jsonl").read_bytes().splitlines()
            metrics = from_json(lines[before])
        else:
            metrics = trainer.step(read(items), read(heldout))
        return {"metrics": metrics, "facts": trainer.facts}

    def row_values(self, name: str, kind: Any, rows: Any, temperature: float) -> Any:
        return self._trainers[name].row_values(kind, ROWS.validate_python(rows), temperature)

    def leave_out(self, name: str, too_long: int, empty: int) -> None:
        self._trainers[name].leave_out(too_long, empty)

    def save(self, name: str) -> None:
        self._trainers[name].save()

    def publish(self, name: str, folder: str) -> None:
        self._trainers[name].publish(Path(folder))

    def send(self, name: str, kind: str, address: Any) -> None:
        self._trainers[name].send(kind, Address(**address))

    def finish(self, name: str) -> dict[str, Any]:
        self._trainers[name].finish()
        return self._facts(name)

    def score(
        self, _: str, source: Any, settings: Any, kind: Any, rows: Any, temperature: float
    ) -> Any:
        """Compute values of rows by a frozen model, with its adapter active."""
        model_source = TypeAdapter(ModelSource).validate_python(source)
        training = TrainingSettings.model_validate(settings)
        if model_source not in self._frozen:
            model = model_source.load(self._state.device).model
            self._frozen[model_source] = model, _shard(model, training)
        model, sharded = self._frozen[model_source]
        rank_and_count = self._state.process_index, self._state.num_processes
        values = kind, ROWS.validate_python(rows), training, temperature, rank_and_count, sharded
        return list(rank_row_values(model, *values))

    def forget(self, _: str) -> None:
        self._frozen.clear()

    def _facts(self, name: str) -> dict[str, Any]:
        trainer = self._trainers[name]
        state = {"done": trainer.done, "longest": trainer.longest, "report": trainer.report}
        return {**state, "facts": trainer.facts}


def _shard(model: Any, settings: TrainingSettings) -> ShardedModel | None:
    """Shard a frozen model over the ranks if trained models are."""
    model.requires_grad_(False)
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return None
    rule = check(model).packing(settings.packing)
    module = LossModule(model, SFT())
    for layer in model.modules():
        if type(layer).__name__ in (model._no_split_modules or ()):
            fully_shard(layer)
    fully_shard(module)
    return ShardedModel(module, rule)


def _beat(send: Callable[[bytes], None]) -> None:
    """Send the driver a sign of life now and then, until the connection ends."""
    with suppress(OSError):
        while True:
            time.sleep(BEAT_SECONDS)
            send(b"")


def main() -> None:
    """Connect to the driver, join the other ranks, and answer requests until the driver closes the connection."""
    if torch.cuda.device_count() == 1:  # the launcher shows each rank its own GPU only
        os.environ["LOCAL_RANK"] = "0"
    host, _, port = os.environ[ADDRESS].rpartition(":")
    link = Client((host, int(port)), authkey=os.environ[TOKEN].encode())
    nonce = Path(link.recv_bytes().decode())
    hello: dict[str, Any] = {"rank": int(os.environ["RANK"]), "host": socket.gethostname()}
    link.send_bytes(to_json({**hello, "version": version("coterie"), "sees": nonce.exists()}))
    rank: Rank | None = None
    lock = threading.Lock()

    def send(content: bytes) -> None:
        with lock:
            link.send_bytes(content)

    threading.Thread(target=_beat, args=(send,), daemon=True).start()
    while True:
        try:
            request = from_json(link.recv_bytes())
        except (EOFError, OSError):
            break
        if rank is None:  # the first request
            on_cpu = os.environ.get("ACCELERATE_USE_CPU") == "true"
            group: dict[str, Any] = {"timeout": timedelta(seconds=TIMEOUT)}
            if store := os.environ.get(STORE):
                size = int(os.environ["WORLD_SIZE"])
                group |= {
                    "init_method": f"file://{store}",
                    "rank": hello["rank"],
                    "world_size": size,
                }
            rank = Rank(PartialState(on_cpu, **group))
            send(b'{"value":null}')
            continue
        try:
            value = getattr(rank, request["do"])(request["name"], **request["values"])
        except UserError as error:
            send(to_json({"refusal": [error.what, error.todo]}))
            sys.exit(1)
        send(to_json({"value": value}, fallback=plain_numbers))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
