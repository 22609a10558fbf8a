"""LoRA adapters, a thin layer over PEFT. Several roles may share a base, with one named adapter each.

One adapter is active at a time. A reference is a frozen copy of an adapter, or the base with adapters disabled;
:func:`using` switches to either within a block.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft import set_peft_model_state_dict as set_state
from peft.tuners.lora import Embedding
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import load_file
from torch import nn

from coterie.errors import UserError
from coterie.models.checksums import checksums
from coterie.models.heads import HEAD
from coterie.models.logprobs import PEFT_PREFIX, causal
from coterie.models.saved import check_whole, reading

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = "all-linear"
"""PEFT's name of all linear layers but the output layer."""
LAYERS = f"choose among the names of the model's linear layers, or use {ALL_LINEAR}"
BASE = "load the base that it was trained on (base_model_name_or_path in its adapter_config.json)"
DEFAULT = "default"
BASE_FILE = "base.json"
"""File next to a saved adapter that identifies its base."""


def add_lora(
    model: Any,
    *,
    r: int,
    alpha: int,
    target_modules: Sequence[str] = ATTENTION,
    dropout: float = 0.0,
    name: str = DEFAULT,
) -> PeftModel:
    """Add a new trainable LoRA adapter of rank ``r`` and scale ``alpha / r``, and activate it.

    Raises :class:`UserError` for a target that is not a layer of the model or does not support adapters.
    """
    all_linear = ALL_LINEAR in target_modules
    layers = [f".{layer}" for layer, _ in causal(model).named_modules()]
    missing = [name for name in target_modules if not any(x.endswith(f".{name}") for x in layers)]
    if missing and not all_linear:
        raise UserError(
            f"a LoRA adapter on {', '.join(missing)} does not fit this model: it has no such layer",
            LAYERS,
        )
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,
        target_modules=ALL_LINEAR if all_linear else list(target_modules),
        lora_dropout=dropout,
        task_type="CAUSAL_LM",
    )
    with _fitting(f"a LoRA adapter on {', '.join(target_modules)}", LAYERS):
        if isinstance(model, PeftModel):
            model.add_adapter(name, config)
            model.set_adapter(name)
            return model
        added = get_peft_model(model, config, adapter_name=name)
    assert isinstance(added, PeftModel)
    return added


def copy_adapter(model: PeftModel, source: str, name: str) -> None:
    """Add a frozen copy of the adapter ``source`` as ``name``, for use as a reference."""
    _check_known(model, source)
    weights = get_peft_model_state_dict(model, adapter_name=source)
    active = model.active_adapter
    model.add_adapter(name, model.peft_config[source])
    set_state(model, weights, adapter_name=name)
    model.set_adapter(active)
    for weight_name, weight in model.named_parameters():
        if f".{name}." in weight_name:
            weight.requires_grad_(False)


def activate(model: Any, name: str) -> None:
    """Activate an adapter for inference. Raise ``UserError`` if the model does not have it."""
    _check_known(model, name)
    if model.active_adapter != name:
        model.set_adapter(name, inference_mode=True)


@contextmanager
def using(model: Any, name: str | None) -> Iterator[None]:
    """Activate one adapter inside the block, or disable all (``None``).

    ``None`` on a model without adapters does nothing.
    """
    if name is None and not isinstance(model, PeftModel):
        yield
        return
    if name is None:
        with model.disable_adapter():
            yield
        return
    _check_known(model, name)
    trained = {weight: weight.requires_grad for weight in model.parameters()}
    active = model.active_adapter
    activate(model, name)
    try:
        yield
    finally:
        activate(model, active)
        for weight, was in trained.items():
            weight.requires_grad_(was)


def save_adapter(
    model: PeftModel,
    folder: Path,
    name: str = DEFAULT,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write one adapter as safetensors to ``folder``, with the fingerprint of its base.

    ``weights`` replaces the model's state if ranks shard it.
    """
    model.save_pretrained(
        str(folder), selected_adapters=[name], safe_serialization=True, state_dict=weights
    )
    nested = folder / name
    if nested.is_dir():
        for file in nested.iterdir():
            file.replace(folder / file.name)
        nested.rmdir()
    (folder / BASE_FILE).write_text(json.dumps({"fingerprint": base_fingerprint(model, weights)}))


def load_adapter(
    model: Any, folder: Path, *, name: str = DEFAULT, trainable: bool = False
) -> PeftModel:
    """Load the adapter of ``folder`` as ``name`` and activate it; replace an adapter with this name.

    Raises :class:`UserError` for an adapter that was trained on another base, does not fit this one or is incomplete.
    """
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise UserError(
            f"{folder} has no adapter_model.safetensors", "give a folder that save_adapter wrote"
        )
    _check_base(model, folder)
    with reading(folder), _fitting(f"the adapter in {folder}", BASE):
        saved = load_file(file)
        if isinstance(model, PeftModel):
            if name in model.peft_config:  # maybe of another rank or scale
                remove_adapter(model, name)
            model.load_adapter(str(folder), adapter_name=name, is_trainable=trainable)
        else:
            model = PeftModel.from_pretrained(
                model, str(folder), adapter_name=name, is_trainable=trainable
            )
        check_whole(file, adapter_weights(model, name) - saved.keys())
    model.set_adapter(name, inference_mode=not trainable)
    assert isinstance(model, PeftModel)
    return model


def merged(model: Any) -> Any:
    """Return the base with its active adapter merged into its weights; ``model`` is unusable afterwards.

    If the adapter changes one of two tied embeddings, untie them first: the other must not change. Weights are added in
    float32 and rounded once.
    """
    base = model.get_base_model()
    ends = base.get_input_embeddings(), base.get_output_embeddings()
    if any(isinstance(end, (BaseTunerLayer, AuxiliaryTrainingWrapper)) for end in ends):
        untie(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # merge_and_unload reports merged layers
        for layer in (one for one in model.modules() if isinstance(one, Embedding)):
            weights: Any = layer.get_base_layer()
            dtype = weights.weight.dtype
            weights.float()  # PEFT rounds the update of embeddings, but not of other layers
            layer.merge()
            weights.to(dtype)
        return model.merge_and_unload()


def untie(model: Any) -> None:
    """Copy the weights of the output layer if it shares them with the input embeddings."""
    first, last = (
        getattr(end, "original_module", getattr(end, "base_layer", end))
        for end in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    if first.weight is last.weight:
        last.weight = nn.Parameter(first.weight.detach().clone(), first.weight.requires_grad)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    model.all_tied_weights_keys = {}


@contextmanager
def _fitting(adapter: str, todo: str) -> Iterator[None]:
    """Convert PEFT's and torch's errors for an adapter of another model into ``UserError``."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{adapter} does not fit this model: {reason}", todo) from error


def remove_adapter(model: PeftModel, name: str) -> None:
    """Remove an adapter; if it was active, another one becomes active."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it reports which one
        model.delete_adapter(name)


def adapter_weights(model: PeftModel, name: str) -> set[str]:
    return set(get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False))


def base_fingerprint(model: Any, weights: Mapping[str, torch.Tensor] | None = None) -> str:
    """Hash names, shapes and all values of the base weights under a model's adapters.

    Values are rounded to bfloat16, so a base has the same fingerprint in float32 and bfloat16 (and so have bases that
    differ by less). A value head, which is trained with an adapter, is ignored. ``weights`` replaces the model's
    weights if they are sharded.
    """
    digest = hashlib.sha256()
    base = {
        re.sub(r"\.(base_layer|original_module)(?=\.)", "", name.removeprefix(PEFT_PREFIX)): (
            (weights or {}).get(name, own)
        )
        for name, own in model.named_parameters()
        if ".lora_" not in name and ".modules_to_save." not in name
    }
    for name, weight in sorted(base.items()):
        if name.startswith(f"{HEAD}."):
            continue
        (total,) = checksums([weight.detach().to(torch.bfloat16)])
        digest.update(f"{name} {list(weight.shape)} {total}\n".encode())
    return digest.hexdigest()


def _check_base(model: Any, folder: Path) -> None:
    file = folder / BASE_FILE
    if not file.is_file():
        return
    with reading(file):
        fingerprint = json.loads(file.read_text())["fingerprint"]
    if fingerprint != base_fingerprint(model):
        raise UserError(f"the adapter in {folder} was trained on a different base", BASE)


def _check_known(model: Any, name: str) -> None:
    have = list(model.peft_config) if isinstance(model, PeftModel) else []
    if name not in have:
        raise UserError(
            f"this model has no adapter {name!r} (it has {', '.join(have) or 'none'})",
            "add or load the adapter first",
        )
