"""Launch of a training with Accelerate, in this process or on several ranks, and the entry point of a rank.

``accelerate launch`` starts this module under the child-process guard, so that the ranks end with this process. They
read their job from the subfolder ``job`` of the training's folder, and write their progress and log there.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import yaml
from accelerate import Accelerator, PartialState
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from peft import PeftModel
from pydantic import TypeAdapter
from pydantic_core import to_json
from safetensors.torch import save_file

from coterie.config.plugins import at_place, place_of
from coterie.config.settings import Settings
from coterie.engines.child_guard import guarded
from coterie.errors import UserError
from coterie.models.adapters import (
    HEAD_FILE,
    find_head,
    load_adapter,
    load_head,
    save_adapter,
    split_head,
)
from coterie.models.loading import LoadedModel, load
from coterie.progress import Progress, Silent
from coterie.training.checkpoint import TrainingReport, read_report
from coterie.training.losses import Objective
from coterie.training.settings import Tracker, TrainingSettings

_open: list[Accelerator] = []
"""Open accelerators. They share one state in a process, which is reset only if none is open."""


@contextmanager
def open_accelerator(settings: TrainingSettings, device: torch.device) -> Iterator[Accelerator]:
    """Open Accelerate for one training on the device of the model.

    Ranks of a launcher keep their devices. Trainings that are open at the same time need the same device type and
    precision.
    """
    alone = "WORLD_SIZE" not in os.environ
    if not _open:  # the state of an earlier training would not allow another precision or device
        AcceleratorState._reset_state(reset_partial_state=alone and not dist.is_initialized())
    if alone and device.type == "cuda":
        torch.cuda.set_device(device)
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported()
    precision = "bf16" if settings.autocast(on_gpu=on_gpu) else "no"
    if _open and _open[0].mixed_precision != precision:
        raise UserError(
            f"a training with precision {_open[0].mixed_precision!r} is open, but this one has {precision!r}",
            "use the same mixed_precision for both, or finish the first training",
        )
    if alone and _open and _open[0].device.type != device.type:
        raise UserError(
            f"a training on {_open[0].device.type} is open, but this model is on {device.type}",
            "put both models on one device, or finish the first training",
        )
    accelerator = Accelerator(cpu=alone and device.type == "cpu", mixed_precision=precision)
    state, is_sharded = AcceleratorState(), os.environ.get("ACCELERATE_USE_FSDP", "").lower()
    if is_sharded == "true" and state.distributed_type == DistributedType.MULTI_CPU:
        # Accelerate enables FSDP on GPUs only.
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin()
    if dist.is_initialized() and dist.get_backend() == "gloo":
        # A process that exits with running gloo threads may abort.
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    kind = accelerator.distributed_type
    if kind == DistributedType.DEEPSPEED or (
        kind == DistributedType.FSDP and not accelerator.is_fsdp2
    ):
        # DeepSpeed steps inside its backward pass, before a loss or gradient that is not finite can be detected.
        raise UserError(
            "DeepSpeed and FSDP 1 are not supported",
            "launch the training with FSDP 2 (configs/accelerate/fsdp2.yaml), which shards the same tensors",
        )
    _open.append(accelerator)
    try:
        yield accelerator
    finally:
        _open.remove(accelerator)
        accelerator.free_memory()


def refuse_sharded_head(kind: str) -> None:
    """Raise ``UserError`` for a value head under FSDP, which does not gather it.

    ``kind`` is Accelerate's ``distributed_type``.
    """
    if kind == DistributedType.FSDP:
        raise UserError(
            "a model with a value head can't be trained under FSDP",
            "train it on one GPU or with a copy on each (configs/accelerate/ddp.yaml)",
        )


def accelerate_config(settings: TrainingSettings, key: str = "train") -> dict[str, Any]:
    """Return the configuration that Accelerate launches the ranks with. ``key`` is the name of the settings.

    Raises :class:`UserError` for a file that is not a configuration for ranks on one machine.
    """
    if settings.launch is None:
        config: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "use_cpu": False}
        config |= {"distributed_type": "MULTI_GPU", "num_machines": 1, "machine_rank": 0}
        config |= {"main_training_function": "main", "mixed_precision": "no"}
        config |= {"rdzv_backend": "static", "same_network": True}
    else:
        config = _read(Path(settings.launch).expanduser(), f"{key}.launch")
    return {**config, "num_processes": settings.processes or config["num_processes"]}


def _read(file: Path, key: str) -> dict[str, Any]:
    advice = "use a file written by `accelerate config`, such as configs/accelerate/fsdp2.yaml"
    if not file.is_file():
        raise UserError(f"{key}={file}: there is no such file", advice)
    try:
        parsed = load_config_from_file(str(file))
        config: dict[str, Any] = yaml.safe_load(file.read_text())
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        last = str(error).strip().splitlines()[-1]
        raise UserError(
            f"{key}={file} is not a configuration of Accelerate: {last}", advice
        ) from error
    kind = str(getattr(parsed.distributed_type, "value", parsed.distributed_type))
    ranks, machines = config.get("num_processes"), getattr(parsed, "num_machines", 1)
    if kind not in ("MULTI_GPU", "FSDP") or machines != 1 or not ranks:
        raise UserError(
            f"{key}={file} has distributed_type {kind}, {machines} machines and {ranks} processes",
            "use MULTI_GPU (configs/accelerate/ddp.yaml) or FSDP (configs/accelerate/fsdp2.yaml) with num_machines: 1 "
            "and num_processes",
        )
    return config


JOB, ITEMS, HELDOUT, PROGRESS = "job.json", "items.json", "heldout.json", "progress.jsonl"
ERROR = "error.json"
ADAPTER, CONFIG, LOG, JOINED = "adapter", "accelerate.yaml", "ranks.log", "joined-"
JOIN_SECONDS = 300.0
"""Time limit for all ranks to start and connect."""
TIMEOUT = 1800.0
"""Seconds that a rank waits for the others within a step."""
GRACE = 5.0
POLL = 0.2
LAST_LINES = 15


@dataclass(frozen=True, slots=True)
class Job:
    """Specification that the ranks read. Classes are import paths from :func:`~coterie.config.plugins.place_of`."""

    model: str
    """Folder or hub name of the base."""
    adapter: str | None
    """Name of the adapter to train further, saved in the job's folder."""
    head: bool
    """True if the model has a value head, saved in the job's folder."""
    attention: str
    """Name of the attention implementation in Transformers."""
    settings: TrainingSettings
    objective: str
    objective_settings: tuple[str, str] | None
    """Class and JSON of the objective's settings."""
    item: str
    measure_every: int | None

    def make_objective(self) -> Objective[Any]:
        arguments = []
        if self.objective_settings:
            kind, text = self.objective_settings
            arguments.append(at_place(kind).model_validate_json(text))
        objective: Objective[Any] = at_place(self.objective)(*arguments)
        return objective


def launches(settings: TrainingSettings) -> bool:
    return settings.processes is not None or settings.launch is not None


def check_launch(
    settings: TrainingSettings, device: str, key: str = "train", *, head: bool = False
) -> None:
    """Raise ``UserError`` if the ranks can't be started; ``key`` is the name of the settings.

    A model with a value ``head`` can't be trained sharded.
    """
    if not launches(settings):
        return
    config = accelerate_config(settings, key)
    ranks = config["num_processes"]
    if head:
        refuse_sharded_head(config.get("distributed_type", ""))
    if device != "cpu" and ranks > torch.cuda.device_count():
        raise UserError(
            f"{key} requests {ranks} ranks, but this machine has {torch.cuda.device_count()} GPUs",
            f"lower {key}.processes to the number of GPUs, or set engine.device=cpu",
        )


def train_on_ranks(
    loaded: LoadedModel,
    items: Sequence[Any],
    settings: TrainingSettings,
    folder: Path,
    objective: Objective[Any],
    progress: Progress,
    tracker: Tracker,
    heldout: Sequence[Any] = (),
    measure_every: int | None = None,
) -> TrainingReport:
    """Run :func:`~coterie.training.trainer.train` on separate ranks; the loaded model does not change.

    Raises :class:`UserError` as ``train`` does, and with the end of the log if a rank dies or does not connect. The
    next call resumes from the last checkpoint.
    """
    if not items:
        raise UserError("there are no rows to train", "give rows with targets")
    device = loaded.model.device.type
    job = folder / "job"
    shutil.rmtree(job, ignore_errors=True)
    job.mkdir(parents=True)
    config = accelerate_config(settings)
    spec = _write_model(job, loaded, items, settings, objective, measure_every)
    (job / JOB).write_bytes(TypeAdapter(Job).dump_json(spec))
    (job / ITEMS).write_bytes(to_json(items, fallback=_plain_number))
    (job / HELDOUT).write_bytes(to_json(heldout, fallback=_plain_number))
    (job / CONFIG).write_text(yaml.safe_dump(config))
    if device == "cuda":
        loaded.model.to("cpu")  # the ranks need the room
        torch.cuda.empty_cache()
    try:
        with _started(job, settings, config["num_processes"], device) as ranks:
            _watch(ranks, job, config["num_processes"], progress, tracker)
    finally:
        loaded.model.to(device)
    shutil.rmtree(job)
    return read_report(folder / "final")[1]


def _write_model(
    job: Path,
    loaded: LoadedModel,
    items: Sequence[Any],
    settings: TrainingSettings,
    objective: Objective[Any],
    measure_every: int | None,
) -> Job:
    """Save adapter and head, and return a specification from which ranks can rebuild objective and items."""
    kinds = {place_of(type(item)) for item in items}
    if len(kinds) > 1:
        raise UserError(
            f"ranks train items of one class, but these have several: {', '.join(sorted(kinds))}",
            "use one class, or train in one process",
        )
    model = loaded.model
    adapter = model.active_adapter if isinstance(model, PeftModel) else None
    if adapter is not None:
        save_adapter(model, job / ADAPTER, adapter)
    head = find_head(model) is not None
    if head:
        save_file(split_head(model.state_dict())[1], job / HEAD_FILE)
    own = getattr(objective, "settings", None)
    saved = (place_of(type(own)), own.model_dump_json()) if isinstance(own, Settings) else None
    spec = Job(
        model=loaded.source,
        adapter=adapter,
        head=head,
        attention=loaded.model.config._attn_implementation,
        settings=settings,
        objective=place_of(type(objective)),
        objective_settings=saved,
        item=kinds.pop(),
        measure_every=measure_every,
    )
    try:
        rebuilt = vars(spec.make_objective()) == vars(objective)
        is_class = isinstance(at_place(spec.item), type)
    except (ImportError, AttributeError, TypeError):
        rebuilt = is_class = False
    in_main = any(name.startswith("__main__:") for name in (spec.objective, spec.item))
    if in_main or not is_class or not rebuilt:
        raise UserError(
            f"ranks can't rebuild the objective {spec.objective} from its class and settings, or the items {spec.item}",
            "define the class at the top level of an importable module and put all its numbers into `settings`, or "
            "train in one process",
        )
    return spec


@contextmanager
def _started(job: Path, settings: TrainingSettings, ranks: int, device: str) -> Iterator[Any]:
    """Run the launcher under the child-process guard; end it at the end of the block."""
    threads = settings.threads or max(1, (os.cpu_count() or 1) // ranks)
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(job / CONFIG)),
        *("--num_cpu_threads_per_process", str(threads), "--main_process_port", "0"),
        *("--module", "coterie.training.distributed", str(job)),
    ]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    if device == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    with (job / LOG).open("wb") as log:
        process = subprocess.Popen(
            guarded(command, GRACE),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


def _watch(process: Any, job: Path, ranks: int, progress: Progress, tracker: Tracker) -> None:
    """Report the progress of the ranks until they end. Raises :class:`UserError` if they fail."""
    began, offset = time.monotonic(), 0
    try:
        while True:
            is_over = process.poll() is not None
            offset += _report_progress(job / PROGRESS, offset, progress, tracker)
            if is_over:
                break
            absent = [n for n in range(ranks) if not (job / f"{JOINED}{n}").exists()]
            if absent and time.monotonic() - began > JOIN_SECONDS:
                raise UserError(
                    f"ranks {', '.join(map(str, absent))} of {ranks} did not connect within {JOIN_SECONDS:g} s",
                    _advice(job),
                )
            time.sleep(POLL)
    finally:
        if offset:
            progress.close()
    if (job / ERROR).exists():
        raise UserError(*json.loads((job / ERROR).read_text()))
    if process.returncode:
        raise UserError(f"one of {ranks} ranks died, which ended the training", _advice(job))


def _report_progress(file: Path, start: int, progress: Progress, tracker: Tracker) -> int:
    """Report the complete lines from byte ``start``. Return their number of bytes."""
    if not file.exists():
        return 0
    with file.open("rb") as stream:
        stream.seek(start)
        text = stream.read()
    whole = text[: text.rfind(b"\n") + 1]
    for line in map(json.loads, whole.splitlines()):
        if "total" in line:
            progress.start(line["total"], line["description"])
        else:
            progress.advance(line["n"], **line["fields"])
            if "step" in line["fields"]:
                tracker.log(line["fields"], line["fields"]["step"])
    return len(whole)


def _advice(job: Path) -> str:
    lines = (job / LOG).read_text(errors="replace").splitlines()[-LAST_LINES:]
    return (
        f"run it again to resume from the last checkpoint. The log {job / LOG} ends with:\n  "
        + "\n  ".join(lines)
    )


def _plain_number(value: Any) -> Any:
    """Convert a NumPy scalar for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"items for ranks are sent as JSON, which has no {type(value).__name__}")


class ToFile(Silent):
    """Progress in a file that the launching process reads."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def start(self, total: int, description: str) -> None:
        self._write({"total": total, "description": description})

    def advance(self, n: int, **fields: float) -> None:
        self._write({"n": n, "fields": fields})

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def main(folder: Path) -> None:
    """Load the model and the items of a job, and train them with the other ranks."""
    from coterie.training.trainer import train

    job = TypeAdapter(Job).validate_json((folder / JOB).read_bytes())
    on_cpu = os.environ.get("ACCELERATE_USE_CPU") == "true"
    state = PartialState(on_cpu, timeout=timedelta(seconds=TIMEOUT))
    (folder / f"{JOINED}{state.process_index}").touch()
    kind: Any = list.__class_getitem__(at_place(job.item))
    items: TypeAdapter[Any] = TypeAdapter(kind)
    try:
        dtype = getattr(torch, job.settings.dtype)
        model = load(job.model, dtype=dtype, device=state.device, attention=job.attention).model
        if job.adapter is not None:
            model = load_adapter(model, folder / ADAPTER, name=job.adapter, trainable=True)
        if job.head:
            load_head(model, folder)
        train(
            model,
            items.validate_json((folder / ITEMS).read_bytes()),
            job.settings,
            folder.parent,
            objective=job.make_objective(),
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
