"""Checkpoints that resume exactly, and final weights; a kill at any instant leaves old or new.

A checkpoint is a folder ``checkpoint-STEP`` with ``state.safetensors`` (trained weights, the
optimiser's moments, the state of torch's random numbers) and ``state.json`` (the step, what the
training is). It is written under another name, flushed to disk and renamed. No pickle is written or
read. Weights that are sharded over ranks (FSDP) are gathered on the way out and dealt on the way in, so
that what is on disk does not depend on the number of ranks.
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
    """A :func:`~coterie.config.folders.whole_folder`; a full disk is an ``OSError`` that says so."""
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
    kept: int = 1,
) -> None:
    """Write ``checkpoint-STEP`` into ``folder`` and remove older ones, but for the ``kept`` newest.

    Every rank calls this; the one with ``write`` writes.
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
    for old in _checkpoints(folder)[:-kept]:
        shutil.rmtree(old)


def steps_kept(folder: Path) -> list[int]:
    """Optimiser steps after which a training in ``folder`` can be gone on with, or is finished."""
    final = folder / "final" / "training.json"
    if final.is_file():
        with reading(final, f"remove {folder}: the training then begins again"):
            return [int(json.loads(final.read_text())["report"]["steps"])]
    return [int(found.name.rpartition("-")[2]) for found in _checkpoints(folder)]


def go_back(folder: Path, step: int) -> None:
    """Forget what came after so many optimiser steps."""
    for found in _checkpoints(folder):
        if int(found.name.rpartition("-")[2]) > step:
            shutil.rmtree(found)


def newest_checkpoint(folder: Path) -> Path | None:
    found = _checkpoints(folder)
    return found[-1] if found else None


def read_facts(checkpoint: Path) -> dict[str, Any]:
    file = checkpoint / "state.json"
    with reading(file, _without(checkpoint)):
        facts: dict[str, Any] = json.loads(file.read_text())
    return facts


def load_checkpoint(
    checkpoint: Path, weights: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Put weights, optimiser and random numbers back as they were, in place."""
    file = checkpoint / "state.safetensors"
    with reading(file, _without(checkpoint)):
        tensors = load_file(file)
    saved = {name.removeprefix("weight/") for name in tensors if name.startswith("weight/")}
    if saved != set(weights):
        raise UserError(
            f"{checkpoint} holds the weights of another model or adapter",
            "give the training another folder, or start it afresh (resume=False)",
        )
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "weight":
            weights[rest].data.copy_(_dealt(tensor, weights[rest]))
        elif kind == "optimizer":
            weight, _, field = rest.rpartition("/")
            optimizer.state[weights[weight]][field] = _dealt(tensor, weights[weight])
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
    """Publish ``folder``: weights and config by ``save_pretrained``, tokenizer files as they are, the
    value head, if there is one, in a file of its own.

    Every rank calls this; the one with ``write`` writes.
    """
    state = model.state_dict(keep_vars=True)
    each = {id(weight): whole(weight) for weight in state.values()}  # a tied weight stays tied
    weights = {name: each[id(weight)] for name, weight in state.items()}
    if not write:
        return
    with published(folder) as temporary:
        if tokenizer_from is not None:
            for pattern in TOKENIZER_FILES:
                for path in sorted(tokenizer_from.glob(pattern)):
                    shutil.copy2(path, temporary)
        weights, of_head = split_head(weights)
        if isinstance(model, PeftModel):
            save_adapter(model, temporary, model.active_adapter, weights)
        else:
            with _without_bar():
                model.save_pretrained(temporary, state_dict=weights)
        if of_head:
            save_file(of_head, temporary / HEAD_FILE)
        (temporary / "training.json").write_text(json.dumps(facts, indent=1))


def load_final(model: Any, folder: Path) -> None:
    """Put the weights that :func:`save_final` wrote into ``model``, in place."""
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
    """Remove what an earlier training left in ``folder``: checkpoints, final weights, metrics."""
    if (folder / "final").exists():
        shutil.rmtree(folder / "final")
    remove_checkpoints(folder)
    (folder / "metrics.jsonl").unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove what a kill left half-written."""
    for path in folder.glob(".*.partial"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def remove_checkpoints(folder: Path) -> None:
    for path in _checkpoints(folder):
        shutil.rmtree(path)


def weight_hash(model: Path | nn.Module) -> str:
    """SHA-256 over tensor names in order, dtypes, shapes and bytes.

    A saved folder and the model it was saved from have one hash: a tied weight counts once, and of a
    model with an adapter only the adapter counts (and a value head), as only it is saved.
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
    """A tensor, gathered from all ranks if it is sharded (then every rank has to call this)."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _dealt(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor, sharded as ``like`` is if it is of that shape, on its device if not a count."""
    if tensor.shape != like.shape:
        return tensor
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements)


def hash_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """SHA-256 over (name, dtype, shape, bytes) in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_items(items: Sequence[Any]) -> str:
    """SHA-256 over the items (rows, pairs) in their order."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(repr(item).encode())
    return digest.hexdigest()


def _saved_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no *.safetensors file", "give a folder of saved weights")
    for path in files:
        with reading(path), safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name)


@contextmanager
def _without_bar() -> Iterator[None]:
    """Transformers draws a progress bar of its own, right through ours."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _without(checkpoint: Path) -> str:
    return f"remove {checkpoint}: the training then begins again"


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"))
