"""Value head: one number per token, a linear function of a causal model's last hidden state.

    add_head(loaded.model)                      # or load_head(loaded.model, folder)
    train(loaded.model, pairs, settings, folder, objective=Regression())
    values = token_values(loaded.model, sequences, places)

The head is a submodule that the model's own forward pass does not use. It is trained, hashed and checkpointed
like other weights, and saved in a separate file next to them. With LoRA adapters, the head belongs to the base,
is fully trained and is saved with the adapter.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

from coterie.errors import UserError
from coterie.models.logprobs import PEFT_PREFIX, causal, hidden_states
from coterie.models.packed import model_batch
from coterie.models.packing import CostRule
from coterie.models.saved import reading
from coterie.models.trie import Ids

HEAD = "value_head"
HEAD_FILE = "value_head.safetensors"
"""File with the weights of the head, next to a saved model's weights."""


class ValueHead(nn.Linear):
    """``Linear(width, 1)`` initialized to zero, so that all values are equal before training."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return values ``[...]`` of hidden states ``[..., width]``, in float32 even under autocast."""
        return (hidden.float() * self.weight[0]).sum(-1) + self.bias


def add_head(model: Any) -> ValueHead:
    """Add a new value head to a model (to the base, if it has adapters) in place. Replaces an existing head."""
    head = ValueHead(_width(model)).to(model.get_input_embeddings().weight.device)
    setattr(causal(model), HEAD, head)
    return head


def find_head(model: Any) -> ValueHead | None:
    head = getattr(causal(model), HEAD, None)
    return head if isinstance(head, ValueHead) else None


def load_head(model: Any, folder: Path) -> ValueHead:
    file = folder / HEAD_FILE
    if not file.is_file():
        raise UserError(
            f"{folder} has no {HEAD_FILE}", "give the final folder of the training of a value head"
        )
    with reading(file):
        weights = load_file(file)
        width = weights[f"{HEAD}.weight"].shape[1]
    if width != _width(model):
        raise UserError(
            f"the head in {folder} takes hidden states of width {width}, but the model's width is {_width(model)}",
            "load the model from the same folder",
        )
    head = add_head(model)
    head.load_state_dict({name.removeprefix(f"{HEAD}."): w for name, w in weights.items()})
    return head


def _width(model: Any) -> int:
    """Return the width of the last hidden states: the input of the output layer, not always the layers' width."""
    return int(causal(model).get_output_embeddings().weight.shape[-1])


def split_head(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split weights into the model's and the head's; the latter are empty without a head.

    Names of the head's weights do not depend on adapters.
    """
    names = {name: name.removeprefix(PEFT_PREFIX) for name in weights}
    of_head = {name for name, plain in names.items() if plain.startswith(f"{HEAD}.")}
    rest = {name: w for name, w in weights.items() if name not in of_head}
    return rest, {names[name]: weights[name] for name in of_head}


def token_values(
    model: Any,
    sequences: Sequence[Ids],
    places: Sequence[Sequence[int]],
    rule: CostRule | None = None,
    *,
    before: bool = False,
) -> list[Tensor]:
    """Predict values (float32) at positions of sequences.

    Args:
        model: Model with a value head.
        sequences: Token ids.
        places: Positions in each sequence; none is 0.
        rule: Packs sequences so that shared prefixes run once.
        before: Predict from the tokens before a position, instead of up to and including it.

    Raises:
        UserError: The model has no head.
    """
    head = find_head(model)
    if head is None:
        raise UserError(
            "the model has no value head",
            "add one: coterie.models.heads.add_head or load_head",
        )
    batch = model_batch(model, sequences, places, rule)
    inputs = {"attention_mask": batch.mask, "position_ids": batch.positions}
    hidden = hidden_states(model, batch.ids, **inputs).flatten(0, 1)
    values_N = head(hidden.index_select(0, batch.at if before else batch.nodes))
    return [values_N.index_select(0, row) for row in batch.rows]
