"""LoRA adapters (a thin layer over PEFT), value heads and checksums of weights.

Several roles may share a base, with one named adapter each. One adapter is active at a time.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import Embedding
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors.torch import load_file
from torch import Tensor, nn

from coterie.errors import UserError
from coterie.models.loading import LoadedModel, check_whole, load, reading, reload
from coterie.models.logprobs import PEFT_PREFIX, causal, hidden_states, model_batch
from coterie.models.prefix_trie import CostRule, Ids

try:
    from numba import njit
except (ImportError, OSError) as error:
    NUMBA_ERROR = str(error) or type(error).__name__
else:
    NUMBA_ERROR = ""
"""Import error of numba, which compiles loops for the CPU; empty if it is available. Without it, torch runs them."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = "all-linear"
"""PEFT's name of all linear layers but the output layer."""
LAYERS = f"choose among the names of the model's linear layers, or use {ALL_LINEAR}"
BASE = "load the base that it was trained on (base_model_name_or_path in its adapter_config.json)"
DEFAULT = "default"
BASE_FILE = "base.json"
"""File next to a saved adapter that identifies its base."""
HEAD = "value_head"
HEAD_FILE = "value_head.safetensors"
"""File with the weights of the head, next to a saved model's weights."""
# 2^64 divided by the golden ratio: an odd number whose multiples have well-mixed bits.
STEP = 0x9E3779B97F4A7C15
LOW = 0xFFFFFFFF
WORDS = 1 << 22
"""8-byte words per torch operation, which bounds the memory for temporary copies."""


def add_lora(
    model: Any,
    *,
    r: int,
    alpha: int,
    target_modules: Sequence[str] = ATTENTION,
    name: str = DEFAULT,
) -> PeftModel:
    """Add a new trainable LoRA adapter of rank ``r`` and scale ``alpha / r``, and activate it.

    Raises :class:`UserError` for a target that is not a layer of the model or does not support adapters.
    """
    all_linear = ALL_LINEAR in target_modules
    # PEFT takes a target as the end of a layer's name, after a dot.
    layers = [f".{layer}" for layer, _ in causal(model).named_modules()]
    missing = [name for name in target_modules if not any(x.endswith(f".{name}") for x in layers)]
    if missing and not all_linear:
        raise UserError(
            f"a LoRA adapter on {', '.join(missing)} does not fit this model: it has no such layer",
            LAYERS,
        )
    targets = ALL_LINEAR if all_linear else list(target_modules)
    config = LoraConfig(r=r, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM")
    with _fitting(f"a LoRA adapter on {', '.join(target_modules)}", LAYERS):
        # Another adapter goes into the same wrapper: a second wrapper would add to the first.
        if isinstance(model, PeftModel):
            model.add_adapter(name, config)
            model.set_adapter(name)
            return model
        added = get_peft_model(model, config, adapter_name=name)
    assert isinstance(added, PeftModel)
    return added


def activate(model: Any, name: str) -> None:
    """Activate an adapter for inference."""
    if model.active_adapter != name:
        model.set_adapter(name, inference_mode=True)


@contextmanager
def using(model: Any, name: str | None) -> Iterator[None]:
    """Activate one adapter inside the block, or disable all, if there are any (``None``)."""
    if name is None:
        with model.disable_adapter() if isinstance(model, PeftModel) else nullcontext():
            yield
        return
    # PEFT changes these flags when it switches adapters; a training that is open needs them.
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
    model: PeftModel, folder: Path, name: str = DEFAULT, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write one adapter and the fingerprint of its base. ``weights`` replaces the model's state if ranks shard it."""
    model.save_pretrained(
        str(folder), selected_adapters=[name], safe_serialization=True, state_dict=weights
    )
    nested = folder / name
    # PEFT writes an adapter with another name than `default` into a subfolder of this name.
    if nested.is_dir():
        for file in nested.iterdir():
            file.replace(folder / file.name)
        nested.rmdir()
    base = _base_weights(model, weights)
    # The packed bytes of weights in 4 bits are not the values of the base, which may be loaded in
    # full elsewhere; so they are left out of the fingerprint.
    in_4bit = [name for name, weight in base.items() if weight.dtype == torch.uint8]
    facts = {"fingerprint": base_fingerprint(model, weights, in_4bit), "in_4bit": in_4bit}
    (folder / BASE_FILE).write_text(json.dumps(facts))


def load_adapter(
    model: Any, folder: Path, *, name: str = DEFAULT, trainable: bool = False
) -> PeftModel:
    """Load the adapter of ``folder`` as ``name`` and activate it; replace an adapter with this name."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise UserError(f"{folder} has no {file.name}", "give a folder that save_adapter wrote")
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
        # PEFT would keep the initial values of weights that the file lacks.
        check_whole(file, adapter_weights(model, name) - saved.keys())
    model.set_adapter(name, inference_mode=not trainable)
    assert isinstance(model, PeftModel)
    return model


def merged(model: Any) -> Any:
    """Return the base with its active adapter merged into its weights; ``model`` is unusable afterwards."""
    base = model.get_base_model()
    ends = base.get_input_embeddings(), base.get_output_embeddings()
    # An adapter of one of two tied embeddings must not change the other.
    if any(isinstance(end, (BaseTunerLayer, AuxiliaryTrainingWrapper)) for end in ends):
        untie(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # merge_and_unload reports merged layers
        for layer in (module for module in model.modules() if isinstance(module, Embedding)):
            weights: Any = layer.get_base_layer()
            dtype = weights.weight.dtype
            weights.float()  # PEFT rounds the update of embeddings, but not of other layers
            layer.merge()
            weights.to(dtype)
        return model.merge_and_unload()


def untie(model: Any) -> None:
    """Copy the weights of the output layer if it shares them with the input embeddings."""
    # The layer itself, below PEFT's wrappers of layers that it adapts or trains.
    embedding, head = (
        getattr(end, "original_module", getattr(end, "base_layer", end))
        for end in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    if embedding.weight is head.weight:
        head.weight = nn.Parameter(
            embedding.weight.detach().clone(), embedding.weight.requires_grad
        )
    # Otherwise the model would be tied again when it is saved and loaded.
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


def base_fingerprint(
    model: Any, weights: Mapping[str, Tensor] | None = None, without: Collection[str] = ()
) -> str:
    """Hash names, shapes and all values of the base weights under a model's adapters.

    Values are rounded to bfloat16, so a base has the same fingerprint in float32 and bfloat16 (and so have bases that
    differ by less). A value head, which is trained with an adapter, is ignored. ``weights`` replaces the model's
    weights if they are sharded. Names in ``without`` are skipped: weights in 4 bits have other values than the base.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(_base_weights(model, weights).items()):
        if name in without:
            continue
        (total,) = checksums([weight.detach().to(torch.bfloat16)])
        digest.update(f"{name} {list(weight.shape)} {total}\n".encode())
    return digest.hexdigest()


def _base_weights(model: Any, weights: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return the weights under a model's adapters and value head, by their names without PEFT's additions."""
    base: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        # Names as without PEFT, so that a base has the same fingerprint under any adapter.
        plain = re.sub(r"\.(base_layer|original_module)(?=\.)", "", name.removeprefix(PEFT_PREFIX))
        is_added = ".lora_" in name or ".modules_to_save." in name or plain.startswith(f"{HEAD}.")
        base |= {} if is_added else {plain: (weights or {}).get(name, weight)}
    return base


def _check_base(model: Any, folder: Path) -> None:
    file = folder / BASE_FILE
    # Adapters from other programs have no fingerprint to compare.
    if not file.is_file():
        return
    with reading(file):
        facts = json.loads(file.read_text())
    if facts["fingerprint"] != base_fingerprint(model, without=facts.get("in_4bit", ())):
        raise UserError(f"the adapter in {folder} was trained on a different base", BASE)


# -- value heads ----------------------------------------------------------------------------------


class ValueHead(nn.Linear):
    """Value head, ``Linear(width, 1)``: one number per token, from a causal model's last hidden state; 0 at first.

    The head is a submodule that the model's own forward pass does not use. It is trained, hashed and checkpointed like
    other weights, and saved in its own file. With LoRA adapters, it belongs to the base and is saved with the adapter.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return values ``[...]`` of hidden states ``[..., width]``, in float32 even under autocast."""
        # Not `F.linear`, which autocast would compute in bfloat16.
        return (hidden.float() * self.weight[0]).sum(-1) + self.bias


def add_head(model: Any) -> ValueHead:
    """Add a new value head to a model (to the base, if it has adapters) in place. Replaces an existing head."""
    # The hidden states have the width of the output layer's input, which may differ from the layers' width.
    width = causal(model).get_output_embeddings().weight.shape[-1]
    head = ValueHead(width).to(model.get_input_embeddings().weight.device)
    setattr(causal(model), HEAD, head)
    return head


def find_head(model: Any) -> ValueHead | None:
    head = getattr(causal(model), HEAD, None)
    return head if isinstance(head, ValueHead) else None


def load_head(model: Any, folder: Path) -> ValueHead:
    file = folder / HEAD_FILE
    with reading(file):
        weights = load_file(file)
    head = add_head(model)
    with _fitting(f"the value head in {folder}", "load the model from the same folder"):
        head.load_state_dict({name.removeprefix(f"{HEAD}."): w for name, w in weights.items()})
    return head


def split_head(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split weights into the model's and the head's, whose names do not depend on adapters."""
    rest, head = {}, {}
    for name, weight in weights.items():
        plain = name.removeprefix(PEFT_PREFIX)
        if plain.startswith(f"{HEAD}."):
            head[plain] = weight
        else:
            rest[name] = weight
    return rest, head


def token_values(
    model: Any,
    sequences: Sequence[Ids],
    positions: Sequence[Sequence[int]],
    rule: CostRule | None = None,
    *,
    from_parents: bool = False,
) -> list[Tensor]:
    """Predict values (float32) at positions of sequences, by a model with a value head.

    Args:
        model: Model with a value head.
        sequences: Token ids.
        positions: Positions in each sequence; none is 0.
        rule: Packs sequences so that shared prefixes run once.
        from_parents: Predict from the tokens before a position, instead of up to and including it.
    """
    head = find_head(model)
    assert head is not None, "the model has no value head (add_head or load_head adds one)"
    batch = model_batch(model, sequences, positions, rule)
    # `[B * W, width]`: the state of each node of the tries.
    hidden = hidden_states(model, batch.ids, **batch.inputs).flatten(0, 1)
    # A node that several sequences share is computed once, and its value given to each of them.
    values_N = head(hidden.index_select(0, batch.at if from_parents else batch.nodes))
    return [values_N.index_select(0, row) for row in batch.rows]


# -- models with adapters and heads ----------------------------------------------------------------

NEW_HEAD = "new"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Weights of a model with an adapter or a value head, which other processes can load too."""

    model: str
    """Folder or hub name of the base."""
    dtype: str = "float32"
    attention: str | None = None
    load_in_4bit: bool = False
    adapter: str | None = None
    """Folder of a LoRA adapter."""
    merge: bool = False
    """True to merge the adapter into the base."""
    trainable: bool = False
    head: str | None = None
    """Folder of a value head, or :data:`NEW_HEAD`."""

    def load(
        self,
        device: str | torch.device,
        template_args: Mapping[str, Any] | None = None,
        base: LoadedModel | None = None,
    ) -> LoadedModel:
        """Load the model, or put its adapter and value head on the weights of a loaded ``base``."""
        if base is not None:
            loaded = share_weights(base)
        else:
            loaded = load(
                self.model,
                dtype=getattr(torch, self.dtype),
                device=device,
                template_args=template_args,
                attention=self.attention,
                load_in_4bit=self.load_in_4bit,
            )
        if self.adapter is not None and self.merge:
            reload(loaded, self.adapter)
        elif self.adapter is not None:
            model = load_adapter(loaded.model, Path(self.adapter), trainable=self.trainable)
            loaded = replace(loaded, model=model if self.trainable else model.eval())
        if self.head == NEW_HEAD:
            add_head(loaded.model)
        elif self.head is not None:
            load_head(loaded.model, Path(self.head))
        return loaded


def share_weights(loaded: LoadedModel) -> LoadedModel:
    """Copy a model's modules but not its weights, so that each copy can have an adapter and a head of its own."""
    model = deepcopy(loaded.model, {id(weight): weight for weight in loaded.model.parameters()})
    # A cache may keep a weak reference to the original, which lives as long as a copy of it.
    vars(model)["shared_from"] = loaded
    return replace(loaded, model=model)


# -- checksums ------------------------------------------------------------------------------------


def checksums(weights: Iterable[Tensor]) -> list[int]:
    """Return a position-dependent checksum of the bytes of each tensor, at memory speed.

    Adds a multiple of its position to each 8-byte word and sums the products of the two halves (NH, Black et al. 1999).
    """
    sums: list[np.int64 | Tensor] = []
    for weight in weights:
        raw = weight.detach().reshape(-1).view(torch.uint8)
        # Words of 8 bytes begin at multiples of 8; a padded copy does.
        if len(raw) % 8 or raw.data_ptr() % 8 or raw.storage_offset() % 8:
            raw = torch.cat([raw, raw.new_zeros(-len(raw) % 8)])
        by_torch = NUMBA_ERROR or raw.device.type != "cpu"
        sums.append(sum_by_torch(raw) if by_torch else _sum(raw.numpy().view(np.uint64)))
    return [int(total) for total in sums]  # synchronize a GPU once, after all kernels are queued


def sum_by_torch(raw: Tensor) -> Tensor:
    """Return the checksum of bytes (a multiple of 8) by torch, whose integers wrap around."""
    words = raw.view(torch.int64)
    total = words.new_zeros(())
    for start in range(0, len(words), WORDS):
        part = words[start : start + WORDS]
        positions = torch.arange(start, start + len(part), device=words.device)
        # STEP as a signed number, since torch has no unsigned arithmetic; it wraps around alike.
        mixed = part + (positions + 1) * (STEP - (1 << 64))
        # A right shift of a signed number repeats its sign, which the mask removes.
        total += ((mixed & LOW) * ((mixed >> 32) & LOW)).sum()
    return total


if not NUMBA_ERROR:
    _STEP, _LOW, _HALF = np.uint64(STEP), np.uint64(LOW), np.uint64(32)

    @njit(cache=True, nogil=True)
    def _sum(words: np.ndarray) -> np.int64:
        total = np.uint64(0)
        for i in range(len(words)):
            mixed = words[i] + np.uint64(i + 1) * _STEP
            total += (mixed & _LOW) * (mixed >> _HALF)
        return np.int64(total)
