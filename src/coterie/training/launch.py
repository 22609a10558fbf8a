"""A training on several ranks that we start and end: what it is given, how it is watched, what is refused beforehand.

The ranks are ``accelerate launch`` of :mod:`coterie.training.rank`, on a leash, so that they end with us. They read
their job from the folder ``job`` in the training's own, where their log is too.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from peft import PeftModel
from pydantic import TypeAdapter
from pydantic_core import to_json
from safetensors.torch import save_file

from coterie.config.plugins import at_place, place_of
from coterie.config.settings import Settings
from coterie.engines.servers import leash
from coterie.errors import UserError
from coterie.models.adapters import save_adapter
from coterie.models.heads import HEAD_FILE, find_head, split_head
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.training.objective import Objective
from coterie.training.ranks import refuse_sharded_head
from coterie.training.record import TrainingReport, read_report
from coterie.training.settings import TrainingSettings
from coterie.training.trackers import Tracker


def accelerate_config(settings: TrainingSettings, key: str = "train") -> dict[str, Any]:
    """What Accelerate is told of the ranks. ``key`` is the name of the settings.

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
    advice = "give a file as `accelerate config` writes it, such as configs/accelerate/fsdp2.yaml"
    if not file.is_file():
        raise UserError(f"{key}={file}: there is no such file", advice)
    try:
        told = load_config_from_file(str(file))
        config = yaml.safe_load(file.read_text())
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        last = str(error).strip().splitlines()[-1]
        raise UserError(
            f"{key}={file} is not a configuration of Accelerate: {last}", advice
        ) from error
    kind = str(getattr(told.distributed_type, "value", told.distributed_type))
    if kind not in ("MULTI_GPU", "FSDP"):
        raise UserError(
            f"{key}={file} says distributed_type {kind}, under which trainings do not run",
            "use MULTI_GPU (configs/accelerate/ddp.yaml) or FSDP (configs/accelerate/fsdp2.yaml)",
        )
    if getattr(told, "num_machines", 1) != 1:
        raise UserError(
            f"{key}={file} is for {told.num_machines} machines, and coterie starts ranks on its own alone",
            "set num_machines: 1",
        )
    ranks = config.get("num_processes")
    if not isinstance(ranks, int) or ranks < 1:
        raise UserError(
            f"{key}={file} does not say how many ranks there are (num_processes: {ranks})",
            "set num_processes to a number of at least 1",
        )
    return dict(config)


JOB, ITEMS, HELDOUT, PROGRESS = "job.json", "items.json", "heldout.json", "progress.jsonl"
ERROR = "error.json"
ADAPTER, CONFIG, LOG, JOINED = "adapter", "accelerate.yaml", "ranks.log", "joined-"
JOIN_SECONDS = 300.0
"""How long ranks may take to start and find each other."""
TIMEOUT = 1800.0
"""How long a rank waits for the others in the middle of a step, in seconds."""
GRACE = 5.0
POLL = 0.2
LAST_LINES = 15


@dataclass(frozen=True, slots=True)
class Given:
    """Settings as JSON, and their class."""

    name: str
    """As :func:`~coterie.config.plugins.place_of` gives it; so are the other names of classes here."""
    json: str


@dataclass(frozen=True, slots=True)
class Job:
    """What ranks are told."""

    model: str
    """Folder or hub name of the base."""
    adapter: str | None
    """The adapter in the job's folder that goes on."""
    head: bool
    """Whether the model has a value head, which lies in the job's folder."""
    attention: str
    """As Transformers calls it."""
    settings: TrainingSettings
    objective: str
    objective_settings: Given | None
    item: str
    measure_every: int | None
    timeout: float = TIMEOUT


def launches(settings: TrainingSettings) -> bool:
    return settings.processes is not None or settings.launch is not None


def check_launch(
    settings: TrainingSettings, device: str, key: str = "train", *, head: bool = False
) -> None:
    """Refuse ranks that can't be started: a file of the wrong kind, more of them than devices, slices of a model with a
    value ``head``.

    ``key`` is the name of these settings.
    """
    if not launches(settings):
        return
    config = accelerate_config(settings, key)
    ranks = config["num_processes"]
    if head:
        refuse_sharded_head(config.get("distributed_type", ""))
    if device != "cpu" and ranks > torch.cuda.device_count():
        raise UserError(
            f"{key} asks for {ranks} ranks, and this machine has {torch.cuda.device_count()} GPUs",
            f"ask for as many at most ({key}.processes), or set engine.device=cpu",
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
    """:func:`~coterie.training.loop.train` on ranks of their own; the model itself is left as it is.

    Raises :class:`UserError` as ``train`` does, and for ranks that die or never join, with the end of their log. What
    was done until the last checkpoint is gone on with next time.
    """
    if not items:
        raise UserError("no row is left to train: none was given", "give rows with targets")
    device = loaded.model.device.type
    job = folder / "job"
    shutil.rmtree(job, ignore_errors=True)
    job.mkdir(parents=True)
    config = accelerate_config(settings)
    _write(job, loaded, items, settings, objective, config, measure_every)
    (job / HELDOUT).write_bytes(to_json(heldout, fallback=_of_numpy))
    if device == "cuda":
        loaded.model.to("cpu")  # the ranks need the room
        torch.cuda.empty_cache()
    try:
        with _started(job, settings, config["num_processes"], device) as ranks:
            _watch(ranks, job, config["num_processes"], progress, tracker)
    finally:
        loaded.model.to(device)
    shutil.rmtree(job)
    _, report = read_report(folder / "final")
    return report


def _write(
    job: Path,
    loaded: LoadedModel,
    items: Sequence[Any],
    settings: TrainingSettings,
    objective: Objective[Any],
    config: dict[str, Any],
    measure_every: int | None,
) -> None:
    kinds = {place_of(type(item)) for item in items}
    if len(kinds) > 1:
        raise UserError(
            f"ranks train items of one class, and these are of several: {', '.join(sorted(kinds))}",
            "give them one class, or train on one process",
        )
    model = loaded.model
    adapter = model.active_adapter if isinstance(model, PeftModel) else None
    if adapter is not None:
        save_adapter(model, job / ADAPTER, adapter)
    head = find_head(model) is not None
    if head:
        save_file(split_head(model.state_dict())[1], job / HEAD_FILE)
    own = getattr(objective, "settings", None)
    given = Given(place_of(type(own)), own.model_dump_json()) if isinstance(own, Settings) else None
    told = Job(
        model=loaded.source,
        adapter=adapter,
        head=head,
        attention=loaded.model.config._attn_implementation,
        settings=settings,
        objective=place_of(type(objective)),
        objective_settings=given,
        item=kinds.pop(),
        measure_every=measure_every,
    )
    _check_ranks_have(told, objective)
    (job / JOB).write_bytes(TypeAdapter(Job).dump_json(told))
    (job / ITEMS).write_bytes(to_json(items, fallback=_of_numpy))
    (job / CONFIG).write_text(yaml.safe_dump(config))


def objective_of(job: Job) -> Objective[Any]:
    made: Objective[Any]
    if job.objective_settings is None:
        made = at_place(job.objective)()
    else:
        settings = at_place(job.objective_settings.name).model_validate_json(
            job.objective_settings.json
        )
        made = at_place(job.objective)(settings)
    return made


def _check_ranks_have(job: Job, objective: Objective[Any]) -> None:
    """Refuse an objective or items that a rank, which imports them by name, would not have or have otherwise."""
    try:
        made = objective_of(job)
        item = at_place(job.item)
    except (ImportError, AttributeError, TypeError) as error:
        raise UserError(
            f"ranks can't make {job.objective} or {job.item} again: {error}",
            "put the class at the top of a module that can be imported, or train on one process",
        ) from error
    of_main = any(name.startswith("__main__:") for name in (job.objective, job.item))
    if of_main or not isinstance(item, type) or _state(made) != _state(objective):
        raise UserError(
            f"ranks would not train with the objective {objective.name} as it was given: they make it again "
            "from its class and its settings",
            "put the class in a module that can be imported, and all its numbers in `settings`",
        )


@contextmanager
def _started(job: Path, settings: TrainingSettings, ranks: int, device: str) -> Iterator[Any]:
    """The launcher, on its leash, until it has ended or we are done."""
    threads = settings.threads or max(1, (os.cpu_count() or 1) // ranks)
    command = [
        *(sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(GRACE)),
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(job / CONFIG)),
        *("--num_cpu_threads_per_process", str(threads), "--main_process_port", "0"),
        *("--module", "coterie.training.rank", str(job)),
    ]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    if device == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    with (job / LOG).open("wb") as log:
        process = subprocess.Popen(
            command,
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
    """Pass on the progress of ranks until they end; raises :class:`UserError` if they fail."""
    began, told = time.monotonic(), 0
    try:
        while True:
            over = process.poll() is not None
            told += _pass_on(job / PROGRESS, told, progress, tracker)
            if over:
                break
            absent = [n for n in range(ranks) if not (job / f"{JOINED}{n}").exists()]
            if absent and time.monotonic() - began > JOIN_SECONDS:
                raise UserError(
                    f"of {ranks} ranks number {', '.join(map(str, absent))} did not join within {JOIN_SECONDS:g} s",
                    _advice(job),
                )
            time.sleep(POLL)
    finally:
        if told:
            progress.close()
    if (job / ERROR).exists():
        raise UserError(*json.loads((job / ERROR).read_text()))
    if process.returncode:
        raise UserError(f"a rank of {ranks} died, and so ended the training", _advice(job))


def _pass_on(file: Path, start: int, progress: Progress, tracker: Tracker) -> int:
    """Tell of the whole lines from byte ``start`` on; gives the number of their bytes."""
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
        f"run it again: it goes on from its last checkpoint. The log {job / LOG} ends:\n  "
        + "\n  ".join(lines)
    )


def _state(objective: object) -> dict[str, Any]:
    return getattr(objective, "__dict__", {})


def _of_numpy(value: Any) -> Any:
    """A number of numpy's as Python's, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"items of several ranks go through JSON, which has no {type(value).__name__}")
