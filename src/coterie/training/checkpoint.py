"""Checkpoints that resume exactly, and final weights, written atomically.

A checkpoint is a folder ``checkpoint-STEP`` with ``state.safetensors`` (trained weights, optimizer moments, state of
torch's random number generators) and ``state.json`` (the step and the identity of the training). It is written under a
temporary name, flushed to disk and renamed. No pickle is written or read. Weights that are sharded over ranks (FSDP)
are gathered when saved and sharded again when loaded, so the files do not depend on the number of ranks.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.utils import logging

from coterie.config.folders import whole_folder
from coterie.errors import UserError
from coterie.models.adapters import adapter_weights, save_adapter
from coterie.models.heads import HEAD_FILE, load_head, split_head
from coterie.models.loading import TOKENIZER_FILES
from coterie.models.saved import check_whole, reading, with_weights, writing


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """Write a :func:`~coterie.config.folders.whole_folder`; a full disk is an ``OSError`` that says so."""
    with writing(folder), whole_folder(folder) as temporary:
        yield temporary


def save_checkpoint(
    folder: Path,
    step: int,
    weights: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, Any],
    *,
    write: bool = True,
    keep_last: int = 1,
) -> None:
    """Write ``checkpoint-STEP`` into ``folder`` and remove all but the ``keep_last`` newest checkpoints.

    Every rank calls this; only a rank with ``write`` writes.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        tensors[f"weight/{name}"] = whole(weight)
        for field, value in optimizer.state[weight].items():
            tensors[f"optimizer/{name}/{field}"] = whole(value)
    if not write:
        return
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    tensors = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    with published(folder / f"checkpoint-{step:08d}") as temporary:
        save_file(tensors, temporary / "state.safetensors")
        (temporary / "state.json").write_text(json.dumps({"step": step, **facts}, indent=1))
    for old in _checkpoints(folder)[:-keep_last]:
        shutil.rmtree(old)


def saved_steps(folder: Path) -> list[int]:
    """Return the optimizer steps of the checkpoints in ``folder``, or of the finished training."""
    final = folder / "final" / "training.json"
    if final.is_file():
        with reading(final, _advice(folder)):
            return [int(json.loads(final.read_text())["report"]["steps"])]
    return [int(path.name.rpartition("-")[2]) for path in _checkpoints(folder)]


def go_back(folder: Path, step: int) -> None:
    """Remove the checkpoints after an optimizer step."""
    for path in _checkpoints(folder):
        if int(path.name.rpartition("-")[2]) > step:
            shutil.rmtree(path)


def newest_checkpoint(folder: Path) -> Path | None:
    checkpoints = _checkpoints(folder)
    return checkpoints[-1] if checkpoints else None


def read_facts(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / "state.json"
    with reading(file, _advice(checkpoint)):
        facts: dict[str, Any] = json.loads(file.read_text())
    return facts


def load_checkpoint(
    checkpoint: Path, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Restore weights, optimizer state and random number generators in place."""
    file = checkpoint / "state.safetensors"
    with reading(file, _advice(checkpoint)):
        tensors = load_file(file)
    saved = {name.removeprefix("weight/") for name in tensors if name.startswith("weight/")}
    if saved != set(weights):
        raise UserError(
            f"{checkpoint} has the weights of another model or adapter",
            "use another folder, or restart the training (resume=False)",
        )
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "weight":
            weights[rest].data.copy_(_shard_like(tensor, weights[rest]))
        elif kind == "optimizer":
            weight, _, field = rest.rpartition("/")
            optimizer.state[weights[weight]][field] = _shard_like(tensor, weights[weight])
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random/cuda"])


def save_final(
    model: Any,
    folder: Path,
    facts: Mapping[str, Any],
    tokenizer_from: Path | None,
    *,
    write: bool = True,
) -> None:
    """Save weights and config with ``save_pretrained``, copies of the tokenizer files, and the value head if any.

    Every rank calls this; only a rank with ``write`` writes.
    """
    state = model.state_dict(keep_vars=True)
    tensors = {id(weight): whole(weight) for weight in state.values()}  # a tied weight stays tied
    weights = {name: tensors[id(weight)] for name, weight in state.items()}
    if not write:
        return
    with published(folder) as temporary:
        if tokenizer_from is not None:
            for pattern in TOKENIZER_FILES:
                for path in sorted(tokenizer_from.glob(pattern)):
                    shutil.copy2(path, temporary)
        weights, head = split_head(weights)
        if isinstance(model, PeftModel):
            save_adapter(model, temporary, model.active_adapter, weights)
        else:
            with _without_bar():
                model.save_pretrained(temporary, state_dict=weights)
        if head:
            save_file(head, temporary / HEAD_FILE)
        (temporary / "training.json").write_text(json.dumps(facts, indent=1))


def load_final(model: Any, folder: Path) -> None:
    """Load the weights that :func:`save_final` wrote into ``model``, in place."""
    if isinstance(model, PeftModel):
        file = folder / "adapter_model.safetensors"
        with reading(file):
            tensors = load_file(file)
        check_whole(file, adapter_weights(model, model.active_adapter) - tensors.keys())
        set_peft_model_state_dict(model, tensors, adapter_name=model.active_adapter)
        if (folder / HEAD_FILE).is_file():
            load_head(model, folder)
    else:
        with _without_bar(), reading(folder):
            saved = with_weights(type(model), folder, dtype=model.dtype)
            head = load_file(folder / HEAD_FILE) if (folder / HEAD_FILE).is_file() else {}
        model.load_state_dict({**saved.state_dict(), **head})


def remove_training(folder: Path) -> None:
    """Remove the checkpoints, final weights and metrics of a training."""
    if (folder / "final").exists():
        shutil.rmtree(folder / "final")
    remove_checkpoints(folder)
    (folder / "metrics.jsonl").unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove the incomplete files of a killed process."""
    for path in folder.glob(".*.partial"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def remove_checkpoints(folder: Path) -> None:
    for path in _checkpoints(folder):
        shutil.rmtree(path)


def weight_hash(model: Path | nn.Module) -> str:
    """Return the SHA-256 of tensor names in order, dtypes, shapes and bytes.

    A saved folder and its model have the same hash: a tied weight counts once, and of a model with an adapter only the
    adapter and a value head count, because only these are saved.
    """
    if isinstance(model, Path):
        return hash_tensors(_saved_tensors(model))
    if isinstance(model, PeftModel):
        adapter = get_peft_model_state_dict(model, adapter_name=model.active_adapter)
        head = split_head(dict(model.named_parameters()))[1]
        return hash_tensors({**adapter, **head}.items())
    saved = set(model.state_dict())
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
    return hash_tensors([*model.named_parameters(), *buffers])


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a tensor from all ranks if it is sharded; then every rank has to call this."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _shard_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Move a full tensor to the device and the sharding of ``like``."""
    if tensor.shape != like.shape:  # the optimizer's step count
        return tensor
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements)


def hash_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return the SHA-256 of (name, dtype, shape, bytes) in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_items(items: Sequence[Any]) -> str:
    """Return the SHA-256 of the items (rows, pairs) in order."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr(item).encode())
    return digest.hexdigest()


def _saved_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} has no *.safetensors file", "give a folder of saved weights")
    for path in files:
        with reading(path), safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name)


@contextmanager
def _without_bar() -> Iterator[None]:
    """Disable the progress bar of Transformers, which would overwrite ours."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _advice(folder: Path) -> str:
    return f"remove {folder}; the training then starts again"


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"))
