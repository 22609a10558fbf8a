"""A value head: one number at each token, a linear function of a causal model's last hidden state.

    add_head(loaded.model)                      # or load_head(loaded.model, folder)
    train(loaded.model, pairs, settings, folder, objective=Regression())
    values = token_values(loaded.model, sequences, places)

The head is a part of the model that the model's own forward pass does not use: it is trained, hashed
and put into checkpoints as the other weights are, and saved in a file of its own beside them. Of a model
with LoRA adapters it is a part of the base, trained whole beside the adapter and saved with it.
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
"""Beside a saved model's weights: those of its head."""


class ValueHead(nn.Linear):
    """``Linear(width, 1)`` that starts at zero, so that an untrained one values everything alike."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Values ``[...]`` of hidden states ``[..., width]``, in float32 under autocast too."""
        return (hidden.float() * self.weight[0]).sum(-1) + self.bias


def add_head(model: Any) -> ValueHead:
    """Give a model (the base, of one with adapters) a fresh value head, in place; an earlier one is replaced."""
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
            f"{folder} has no {HEAD_FILE}", "give the final folder of a head's training"
        )
    with reading(file):
        weights = load_file(file)
        width = weights[f"{HEAD}.weight"].shape[1]
    if width != _width(model):
        raise UserError(
            f"the head in {folder} is for hidden states of {width}, and this model's have {_width(model)}",
            "load the model from the same folder",
        )
    head = add_head(model)
    head.load_state_dict({name.removeprefix(f"{HEAD}."): w for name, w in weights.items()})
    return head


def _width(model: Any) -> int:
    """Of the last hidden states, which need not be that of the layers: what the vocabulary projection reads."""
    return int(causal(model).get_output_embeddings().weight.shape[-1])


def split_head(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A model's weights without those of its head, and those of its head (none: it has no head).

    The head's are called the same whether the model has adapters or not.
    """
    own = {name: name.removeprefix(PEFT_PREFIX) for name in weights}
    of_head = {name for name, plain in own.items() if plain.startswith(f"{HEAD}.")}
    rest = {name: w for name, w in weights.items() if name not in of_head}
    return rest, {own[name]: weights[name] for name in of_head}


def token_values(
    model: Any,
    sequences: Sequence[Ids],
    places: Sequence[Sequence[int]],
    rule: CostRule | None = None,
    *,
    before: bool = False,
) -> list[Tensor]:
    """What the model's head says at each of ``places[i]`` (none of them 0) of each sequence; float32.

    A value at a token has seen that token and all before it; one ``before`` it has not seen the token.
    Beginnings that sequences share run once, where there is a ``rule``. Raises :class:`UserError` if the
    model has no head.
    """
    head = find_head(model)
    if head is None:
        raise UserError(
            "values of tokens were asked of a model without a value head",
            "give it one first: coterie.models.heads.add_head or load_head",
        )
    batch = model_batch(model, sequences, places, rule)
    inputs = {"attention_mask": batch.mask, "position_ids": batch.positions}
    hidden = hidden_states(model, batch.ids, **inputs).flatten(0, 1)
    values_N = head(hidden.index_select(0, batch.at if before else batch.nodes))
    return [values_N.index_select(0, row) for row in batch.rows]
