"""LoRA adapters, thin over PEFT: several roles may share one base with an adapter each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model

from coterie.errors import UserError

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DEFAULT = "default"


def add_lora(
    model: Any,
    *,
    r: int,
    alpha: int,
    target_modules: Sequence[str] = ATTENTION,
    dropout: float = 0.0,
    name: str = DEFAULT,
) -> PeftModel:
    """``model`` with a fresh trainable LoRA adapter of rank ``r`` and scale ``alpha / r``.

    On a model that has adapters already, another is added and made the active one.
    """
    config = LoraConfig(
        r=r,
        lora_alpha=alpha,
        target_modules=list(target_modules),
        lora_dropout=dropout,
        task_type="CAUSAL_LM",
    )
    try:
        if isinstance(model, PeftModel):
            model.add_adapter(name, config)
            model.set_adapter(name)
            return model
        added = get_peft_model(model, config, adapter_name=name)
    except ValueError as error:
        raise UserError(
            f"a LoRA adapter on {', '.join(target_modules)} does not fit this model: {error}",
            "choose target_modules among the names of the model's linear layers",
        ) from error
    assert isinstance(added, PeftModel)
    return added


def save_adapter(model: PeftModel, folder: Path, name: str = DEFAULT) -> None:
    """Write one adapter as safetensors to ``folder`` itself."""
    model.save_pretrained(str(folder), selected_adapters=[name], safe_serialization=True)
    nested = folder / name
    if nested.is_dir():
        for file in nested.iterdir():
            file.replace(folder / file.name)
        nested.rmdir()


def load_adapter(
    model: Any, folder: Path, *, name: str = DEFAULT, trainable: bool = False
) -> PeftModel:
    """``model`` with the adapter of ``folder`` active."""
    if not (folder / "adapter_model.safetensors").is_file():
        raise UserError(
            f"{folder} has no adapter_model.safetensors", "give a folder that save_adapter wrote"
        )
    if isinstance(model, PeftModel):
        model.load_adapter(str(folder), adapter_name=name, is_trainable=trainable)
        model.set_adapter(name)
        return model
    return PeftModel.from_pretrained(model, str(folder), adapter_name=name, is_trainable=trainable)
