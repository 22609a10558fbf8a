"""Accelerate for trainings: in one process, or on the ranks of a launcher."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

from coterie.errors import UserError
from coterie.training.prepare import precision
from coterie.training.settings import TrainingSettings

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
    mixed_precision = precision(settings, device)
    if _open and _open[0].mixed_precision != mixed_precision:
        raise UserError(
            f"a training with precision {_open[0].mixed_precision!r} is open, but this one has {mixed_precision!r}",
            "use the same mixed_precision for both, or finish the first training",
        )
    if alone and _open and _open[0].device.type != device.type:
        raise UserError(
            f"a training on {_open[0].device.type} is open, but this model is on {device.type}",
            "put both models on one device, or finish the first training",
        )
    accelerator = Accelerator(cpu=alone and device.type == "cpu", mixed_precision=mixed_precision)
    _shard_on_cpu(accelerator)
    if dist.is_initialized() and dist.get_backend() == "gloo":
        _end_ranks_at_exit()
    _check_backend(accelerator)
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


def _check_backend(accelerator: Accelerator) -> None:
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        raise UserError(
            "DeepSpeed is not supported: it steps inside its backward pass, before a loss or gradient that is not "
            "finite can be detected",
            "launch the training with FSDP (configs/accelerate/fsdp2.yaml), which shards the same tensors",
        )
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UserError("FSDP 1 is not supported", "use FSDP 2 (configs/accelerate/fsdp2.yaml)")


def _shard_on_cpu(accelerator: Accelerator) -> None:
    """Enable FSDP on CPU ranks if the launcher requests it; Accelerate enables it on GPUs only."""
    is_requested = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    state = AcceleratorState()
    if is_requested and state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin()


@cache
def _end_ranks_at_exit() -> None:
    """Destroy the process group at exit: a process that exits with running gloo threads may abort."""
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
