"""Prepare a model for training, and check that it can be trained under the settings."""

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
"""Parts of the names of module attributes that are rates of random behavior in training mode."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model and its trained weights."""

    model: Any
    adapter: str | None
    """Name of the trained adapter; ``None`` for full training."""
    names: frozenset[str]
    checkpointing: bool
    """True to recompute activations in the backward pass."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Put the model into training mode, with gradients for the trained weights only; restore it at the end.

        Between two steps others may use the model and train other adapters of it.
        """
        model = self.model
        base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        with using(self.model, self.adapter) if self.adapter else nullcontext():
            requires_grad = {weight: weight.requires_grad for weight in self.model.parameters()}
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
                for weight, was in requires_grad.items():
                    weight.requires_grad_(was)


@contextmanager
def prepare_model(
    model: Any, settings: TrainingSettings, adapter: str | None = None, reads: Reads = "logprobs"
) -> Iterator[Prepared]:
    """Prepare a model for training inside the block, and restore it at the end.

    A new adapter is removed at the end and the value head is reset: their weights are in the training's ``final``
    folder.

    Args:
        model: Model, with or without adapters.
        settings: Settings of the training.
        adapter: Name of the adapter to train, if the model has several.
        reads: Kind of values that the objective reads.
    """
    _check_head(model, reads)
    frozen = {name: not weight.requires_grad for name, weight in model.named_parameters()}
    base, active = model, model.active_adapter if isinstance(model, PeftModel) else None
    head = find_head(model)
    initial_head = {name: w.clone() for name, w in head.state_dict().items()} if head else {}
    model = _with_trainable(model, settings, adapter)
    try:
        _freeze_unread(model, reads)
        _check_dropout(model)
        _check_dtype(model, settings)
        trained = model.active_adapter if isinstance(model, PeftModel) else None
        checkpointing = settings.gradient_checkpointing
        prepared_model = Prepared(model, trained, frozenset(trainable(model)), checkpointing)
        if model is base:
            _restore(base, active, frozen)
        yield prepared_model
    finally:
        if model is not base:
            base = model.unload()
            if head:
                head.load_state_dict(initial_head)
        _restore(base, active, frozen)


def _restore(model: Any, active: str | None, frozen: Mapping[str, bool]) -> None:
    model.eval()
    if active is not None:
        activate(model, active)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not frozen.get(name, True))  # an adapter may be new


def _with_trainable(model: Any, settings: TrainingSettings, adapter: str | None) -> Any:
    """Enable gradients of the trained weights; for lora, wrap a model that has no adapter."""
    with_adapter = isinstance(model, PeftModel)
    if adapter is not None and not with_adapter:
        raise UserError(f"this model has no adapter {adapter!r} to train", "add it first")
    if settings.method == "full":
        if with_adapter:
            raise UserError(
                "method=full can't train a model with a LoRA adapter",
                "merge the adapter first (merge_and_unload), or use method=lora",
            )
        return model.requires_grad_(True)
    if with_adapter:
        activate(model, adapter or model.active_adapter)
        model.set_adapter(model.active_adapter)  # makes this adapter alone trainable
        return model
    return add_lora(
        model, r=settings.rank, alpha=settings.alpha, target_modules=settings.lora_targets
    )


def _check_head(model: Any, reads: Reads) -> None:
    if reads in OF_A_HEAD and find_head(model) is None:
        raise UserError(
            "this objective trains a value head, which the model does not have",
            "add it first: coterie.models.heads.add_head",
        )


def _freeze_unread(model: Any, reads: Reads) -> None:
    """Freeze weights that the objective does not read: ranks would wait for their gradients.

    A head that it reads is trained, also together with an adapter.
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
    """Return the weights that require gradients by name; a tied weight once."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def max_row_length(model: Any, settings: TrainingSettings) -> int:
    """Return the length limit of trained rows: ``max_length``, or the model's context if that is shorter."""
    return min(settings.max_length, context_length(model.config) or settings.max_length)


def tokenizer_folder(model: Any) -> Path | None:
    folder = Path(model.config.name_or_path or ".")
    return folder if (folder / "config.json").is_file() else None


def precision(settings: TrainingSettings, device: torch.device) -> str:
    """Return Accelerate's name of the precision: bfloat16 if requested, or by default on CUDA."""
    on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return "bf16" if settings.autocast(on_gpu=on_gpu) else "no"


def _check_dropout(model: nn.Module) -> None:
    """Raise ``UserError`` for dropout and the like: log-probs would differ from the log-probs of sampling."""
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
            f"the model has dropout in {len(active)} places, such as {name}={rate}",
            "set the rates to 0 when loading it (attention_dropout=0, resid_pdrop=0, ...)",
        )


def _check_dtype(model: Any, settings: TrainingSettings) -> None:
    """Raise ``UserError`` if the weights (of the base, for lora) have another dtype than the training."""
    own = model.get_input_embeddings().weight.dtype
    if own != getattr(torch, settings.dtype):
        kind = str(own).removeprefix("torch.")
        raise UserError(
            f"the weights are {kind}, but the training has dtype={settings.dtype}",
            f"set dtype={kind} in the training, or load the model with dtype=torch.{settings.dtype}",
        )
