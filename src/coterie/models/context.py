"""Context length and attention limits of a model, read from its config."""

from typing import Any

WHOLE = {"full_attention", "global"}
"""Layer types in which tokens attend to all earlier tokens."""
WINDOWS = ("sliding_window", "attention_window_size", "keep_window_size")
"""Attention window sizes in configs without layer types."""


def context_length(config: Any) -> int | None:
    """Return the maximum number of tokens in a sequence; ``None`` if the config has no limit.

    Models with ``longrope`` are limited to their original context: when the longest row of a batch exceeds it, the
    angles of all tokens change. A row's log-probs would then depend on the other rows of the batch, and earlier turns
    of a dialogue on later ones.
    """
    text = config.get_text_config()
    max_positions: int | None = getattr(text, "max_position_embeddings", None)
    angles = getattr(text, "rope_parameters", None) or {}
    kinds = [angles] if "rope_type" in angles else [one for one in angles.values() if one]
    long = [one for one in kinds if one["rope_type"] == "longrope"]
    lengths = [max_positions, *(one["original_max_position_embeddings"] for one in long)]
    return min((one for one in lengths if one is not None and one > 0), default=None)


def partial_attention(config: Any) -> list[str]:
    """List the layers of a model that do not attend to all earlier tokens. Most matter only in long rows."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or getattr(text, "attention_layers", None)
    if kinds:
        return [f"layers of {kind.replace('_', ' ')}" for kind in sorted(set(kinds) - WHOLE)]
    sizes = {name: getattr(text, name, None) for name in WINDOWS}
    return [f"a {name.replace('_', ' ')} of {size}" for name, size in sizes.items() if size]
