"""Accelerate as trainings use it: one process or the ranks that a launcher started, and what is refused there."""

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
"""Those in use. They share one state in a process, which is cleared only when nobody uses it."""


@contextmanager
def ranks(settings: TrainingSettings, device: torch.device) -> Iterator[Accelerator]:
    """Accelerate, set up for one training on the device that the model is on.

    Ranks that a launcher has started have the devices that it gave them. Trainings that are open at the same time need
    the same kind of device and the same precision.
    """
    alone = "WORLD_SIZE" not in os.environ
    if not _open:  # what outlived another training would refuse other precisions and devices
        AcceleratorState._reset_state(reset_partial_state=alone and not dist.is_initialized())
    if alone and device.type == "cuda":
        torch.cuda.set_device(device)
    wanted = precision(settings, device)
    if _open and _open[0].mixed_precision != wanted:
        raise UserError(
            f"a training in {_open[0].mixed_precision!r} precision is open, and this one asks for {wanted!r}",
            "give both the same mixed_precision, or finish the one first",
        )
    if alone and _open and _open[0].device.type != device.type:
        raise UserError(
            f"a training on {_open[0].device.type} is open, and this model is on {device.type}",
            "put both models on one device, or finish the one first",
        )
    accelerator = Accelerator(cpu=alone and device.type == "cpu", mixed_precision=wanted)
    _shard_on_cpu(accelerator)
    if dist.is_initialized() and dist.get_backend() == "gloo":
        _end_ranks_at_exit()
    _refuse(accelerator)
    _open.append(accelerator)
    try:
        yield accelerator
    finally:
        _open.remove(accelerator)
        accelerator.free_memory()


def refuse_sharded_head(kind: str) -> None:
    """A head is not one of the layers that FSDP gathers; nobody has seen that work.

    ``kind`` is Accelerate's name of how ranks share a model.
    """
    if kind == DistributedType.FSDP:
        raise UserError(
            "a model with a value head can't be trained under FSDP",
            "train it on one GPU or with a copy on each (configs/accelerate/ddp.yaml)",
        )


def _refuse(accelerator: Accelerator) -> None:
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        raise UserError(
            "training under DeepSpeed is not there yet: it steps inside its backward pass, before a "
            "loss or gradient that is not finite can be refused",
            "launch it with FSDP (configs/accelerate/fsdp2.yaml), which shards as much",
        )
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UserError(
            "training runs under FSDP 2, not FSDP 1", "use configs/accelerate/fsdp2.yaml"
        )


def _shard_on_cpu(accelerator: Accelerator) -> None:
    """Let FSDP shard over CPU ranks too where a launcher asked for it; Accelerate takes only GPUs."""
    asked = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    state = AcceleratorState()
    if asked and state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin()


@cache
def _end_ranks_at_exit() -> None:
    """Have the process group taken down at exit: a process that ends with gloo's threads may abort."""
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
