"""Accelerate in the process of a training, and the configuration of its ranks."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from coterie.errors import UserError
from coterie.training.settings import TrainingSettings

if TYPE_CHECKING:  # torch takes seconds to import
    import torch
    from accelerate import Accelerator

_open: "list[Accelerator]" = []
"""Open accelerators. They share one state in a process, which is reset only if none is open."""


@contextmanager
def open_accelerator(settings: TrainingSettings, device: "torch.device") -> "Iterator[Accelerator]":
    """Open Accelerate for one training on the device of the model.

    Ranks of a launcher keep their devices. Trainings that are open at the same time need the same device type and
    precision.
    """
    import torch
    import torch.distributed as dist
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    alone = "WORLD_SIZE" not in os.environ
    if not _open:  # the state of an earlier training would not allow another precision or device
        AcceleratorState._reset_state(reset_partial_state=alone and not dist.is_initialized())
    if alone and device.type == "cuda":
        torch.cuda.set_device(device)
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported()
    precision = "bf16" if settings.autocast(on_gpu=on_gpu) else "no"
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
    distributed_type = accelerator.distributed_type
    if distributed_type == DistributedType.DEEPSPEED or (
        distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2
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
    from accelerate.commands.config.config_args import load_config_from_file

    advice = "use a file written by `accelerate config`, such as configs/accelerate/fsdp2.yaml"
    if not file.is_file():
        raise UserError(f"{key}={file}: there is no such file", advice)
    try:
        parsed = load_config_from_file(str(file))
        config: dict[str, Any] = yaml.safe_load(file.read_text())
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        last_line = str(error).strip().splitlines()[-1]
        raise UserError(
            f"{key}={file} is not a configuration of Accelerate: {last_line}", advice
        ) from error
    distributed_type = str(getattr(parsed.distributed_type, "value", parsed.distributed_type))
    ranks, machines = config.get("num_processes"), getattr(parsed, "num_machines", 1)
    if distributed_type not in ("MULTI_GPU", "FSDP") or machines != 1 or not ranks:
        raise UserError(
            f"{key}={file} has distributed_type {distributed_type}, {machines} machines and {ranks} processes",
            "use MULTI_GPU (configs/accelerate/ddp.yaml) or FSDP (configs/accelerate/fsdp2.yaml) with num_machines: 1 "
            "and num_processes",
        )
    return config


def launches(settings: TrainingSettings) -> bool:
    return settings.processes is not None or settings.launch is not None


def check_launch(settings: TrainingSettings, device: str, key: str = "train") -> None:
    """Raise ``UserError`` if the ranks can't be started; ``key`` is the name of the settings."""
    if not launches(settings):
        return
    import torch

    config = accelerate_config(settings, key)
    ranks = config["num_processes"]
    if device != "cpu" and ranks > torch.cuda.device_count():
        raise UserError(
            f"{key} requests {ranks} ranks, but this machine has {torch.cuda.device_count()} GPUs",
            f"lower {key}.processes to the number of GPUs, or set engine.device=cpu",
        )
