"""Making a model ready to be trained, and refusing one that can't be trained as asked."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn

from coterie.errors import UserError
from coterie.models.adapters import activate, add_lora, using
from coterie.models.context import context_length
from coterie.models.heads import find_head
from coterie.training.objective import OF_A_HEAD, Reads
from coterie.training.settings import TrainingSettings

RANDOM = ("dropout", "layerdrop", "jitter")
"""What modules call the rates of what is random while a model trains."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that is being trained."""

    model: Any
    adapter: str | None
    """The one that is trained; ``None`` where whole weights are."""
    names: frozenset[str]
    checkpointing: bool
    """Whether activations are computed again."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """While in it the model is in training mode and only these weights need gradients; afterwards all is as it was
        found. So others may use the model between two steps, and train other adapters of it."""
        model = self.model
        base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        with using(self.model, self.adapter) if self.adapter else nullcontext():
            found = {weight: weight.requires_grad for weight in self.model.parameters()}
            for name, weight in self.model.named_parameters():
                weight.requires_grad_(name in self.names)
            if self.checkpointing:
                base.gradient_checkpointing_enable({"use_reentrant": False})
            self.model.train()
            try:
                yield
            finally:
                self.model.eval()
                if self.checkpointing:
                    base.gradient_checkpointing_disable()
                for weight, was in found.items():
                    weight.requires_grad_(was)


@contextmanager
def prepared(
    model: Any, settings: TrainingSettings, adapter: str | None = None, reads: Reads = "logprobs"
) -> Iterator[Prepared]:
    """The model (with an adapter, for lora) and what of it is trained; afterwards it is as it was found.

    ``adapter`` is the one of several that is trained. A fresh adapter is taken off again: its weights
    are in the training's ``final`` folder, with those of a value head, which is then as it was found too.
    ``reads`` is what the objective does.
    """
    _check_head(model, reads)
    frozen = {name: not weight.requires_grad for name, weight in model.named_parameters()}
    base, active = model, model.active_adapter if isinstance(model, PeftModel) else None
    head = find_head(model)
    as_found = {name: w.clone() for name, w in head.state_dict().items()} if head else {}
    model = _with_trainable(model, settings, adapter)
    try:
        _read_only(model, reads)
        _refuse_dropout(model)
        _refuse_other_dtype(model, settings)
        trained = model.active_adapter if isinstance(model, PeftModel) else None
        checkpointing = settings.gradient_checkpointing
        found = Prepared(model, trained, frozenset(trainable(model)), checkpointing)
        if model is base:
            _put_back(base, active, frozen)
        yield found
    finally:
        if model is not base:
            base = model.unload()
            if head:
                head.load_state_dict(as_found)
        _put_back(base, active, frozen)


def _put_back(model: Any, active: str | None, frozen: Mapping[str, bool]) -> None:
    model.eval()
    if active is not None:
        activate(model, active)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not frozen.get(name, True))  # an adapter may have come meanwhile


def _with_trainable(model: Any, settings: TrainingSettings, adapter: str | None) -> Any:
    """The model, or for lora without an adapter a wrapper of it, of which what trains needs gradients."""
    with_adapter = isinstance(model, PeftModel)
    if adapter is not None and not with_adapter:
        raise UserError(f"this model has no adapter {adapter!r} to train", "add it first")
    if settings.method == "full":
        if with_adapter:
            raise UserError(
                "method=full was asked for a model with a LoRA adapter",
                "merge the adapter first (merge_and_unload), or use method=lora",
            )
        return model.requires_grad_(True)
    if with_adapter:
        activate(model, adapter or model.active_adapter)
        model.set_adapter(model.active_adapter)  # trainable, and no other one is
        return model
    return add_lora(
        model, r=settings.rank, alpha=settings.alpha, target_modules=settings.lora_targets
    )


def _check_head(model: Any, reads: Reads) -> None:
    if reads in OF_A_HEAD and find_head(model) is None:
        raise UserError(
            "this objective trains a value head, and the model has none",
            "give it one first: coterie.models.heads.add_head",
        )


def _read_only(model: Any, reads: Reads) -> None:
    """Freeze what the objective does not read: it would get no gradient, and ranks would wait for one.

    A head that it reads is trained, beside an adapter too.
    """
    head = find_head(model)
    if head is None:
        return
    head.requires_grad_(reads in OF_A_HEAD)
    if reads not in OF_A_HEAD:
        return
    output = model.get_output_embeddings()
    if output.weight is not model.get_input_embeddings().weight:
        output.requires_grad_(False)
    if reads == "differences":
        head.bias.requires_grad_(False)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that training changes, by name; a tied weight once."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def max_row_length(model: Any, settings: TrainingSettings) -> int:
    """The longest row that is trained: ``max_length``, or what the model takes if that is less."""
    return min(settings.max_length, context_length(model.config) or settings.max_length)


def tokenizer_folder(model: Any) -> Path | None:
    folder = Path(model.config.name_or_path or ".")
    return folder if (folder / "config.json").is_file() else None


def precision(settings: TrainingSettings, device: torch.device) -> str:
    """Accelerate's name of the precision: bfloat16 where asked for, or where it pays (CUDA)."""
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return "bf16" if settings.autocast(on_gpu=on_gpu) else "no"


def _refuse_dropout(model: nn.Module) -> None:
    """Dropout and the like would make log-probs, and so losses, differ from those of the sampled policy."""
    active = {
        f"{name or 'the model'}.{key}": rate
        for name, module in model.named_modules()
        for key, rate in vars(module).items()
        if isinstance(rate, float) and rate > 0
        if any(word in key for word in RANDOM) or (key == "p" and isinstance(module, nn.Dropout))
    }
    if active:
        name, rate = next(iter(active.items()))
        raise UserError(
            f"the model has dropout ({name}={rate}, {len(active)} places in all)",
            "load it with such settings at 0 (attention_dropout=0, resid_pdrop=0, ...)",
        )


def _refuse_other_dtype(model: Any, settings: TrainingSettings) -> None:
    """Refuse weights (of the base, for lora) that are not of the training's dtype."""
    own = model.get_input_embeddings().weight.dtype
    if own != getattr(torch, settings.dtype):
        kind = str(own).removeprefix("torch.")
        raise UserError(
            f"the weights are {kind}, and the training has dtype={settings.dtype}",
            f"set its dtype={kind}, or load the model with dtype=torch.{settings.dtype}",
        )
