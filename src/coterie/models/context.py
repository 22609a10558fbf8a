"""What of a sequence a model looks at, by its config: how long it may be, and what is left out."""

from typing import Any

WHOLE = {"full_attention", "global"}
"""What configs call layers whose tokens attend to all earlier ones."""
WINDOWS = ("sliding_window", "attention_window_size", "keep_window_size")
"""What configs without a kind for each layer call the most tokens that are attended to."""


def context_length(config: Any) -> int | None:
    """The most tokens of one sequence, by a model's config; ``None`` if it does not say.

    Under ``longrope`` the angles of all tokens change as soon as the longest row of a batch passes the
    original context: a row's log-probs would depend on its company, and a dialogue's earlier turns on
    its later ones. So these models take their original context.
    """
    text = config.get_text_config()
    max_positions: int | None = getattr(text, "max_position_embeddings", None)
    angles = getattr(text, "rope_parameters", None) or {}
    kinds = [angles] if "rope_type" in angles else [one for one in angles.values() if one]
    long = [one for one in kinds if one["rope_type"] == "longrope"]
    lengths = [max_positions, *(one["original_max_position_embeddings"] for one in long)]
    return min((one for one in lengths if one is not None and one > 0), default=None)


def partial_attention(config: Any) -> list[str]:
    """In what ways a model's layers do not attend to all earlier tokens; most show in long rows only."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or getattr(text, "attention_layers", None)
    if kinds:
        return [f"layers of {kind.replace('_', ' ')}" for kind in sorted(set(kinds) - WHOLE)]
    sizes = {name: getattr(text, name, None) for name in WINDOWS}
    return [f"a {name.replace('_', ' ')} of {size}" for name, size in sizes.items() if size]
