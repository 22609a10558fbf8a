"""The configuration of Accelerate for a training on ranks of its own: a file of the user's, or a copy on each rank."""

from pathlib import Path
from typing import Any

import yaml
from accelerate.commands.config.config_args import load_config_from_file

from coterie.errors import UserError
from coterie.training.settings import TrainingSettings


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
