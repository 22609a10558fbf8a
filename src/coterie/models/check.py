"""Check that our log-probs of a model equal the log-probs of its own forward pass.

A few rows of random tokens run through the plain forward pass one by one, and through each of our code paths (alone,
padded in a batch, next to the end of the context, packed into a trie). A difference above rounding is an error.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from coterie.errors import UserError
from coterie.models.loading import context_length
from coterie.models.logprobs import body, partial_attention, sequence_logprobs, token_logprobs
from coterie.models.prefix_trie import CostRule

LENGTHS = (6, 24, 40)
"""Lengths of the rows, in tokens. All share the first token; the last two share the first ``SHARED``."""
SHARED = 12
ROUNDING = 1e-3
"""Largest difference (nats) between two float32 log-probs that counts as rounding."""
ROUNDING_OF_16_BITS = 0.2
"""Largest median difference (nats) of a row in 16 bits. Single tokens may differ by more."""
DO = "use another model, or open an issue: this model needs special support"

Result = TypeVar("Result")
CheckRows = tuple[tuple[int, ...], ...]
RowLogprobs = Sequence[Tensor]
"""Log-probs of the tokens of each row."""


@dataclass(slots=True)
class CheckedModel:
    """Model whose unpacked rows, alone and in a batch, have the log-probs of its own forward pass."""

    kind: str
    """Model type in the model's config."""
    exact: bool
    """True if the model computes in float32."""
    rows: CheckRows
    """Rows of the check; all begin with the same token."""
    refusal: str = ""
    """Reason why rows can't be packed; empty if they can."""
    rule: CostRule | None = None
    """Rule that decides which rows to pack together; ``None`` if rows can't be packed."""
    ways: set[str] = field(default_factory=set)
    """Names of the further code paths that engines have checked."""

    def packing(self, setting: Literal["auto", "flat"]) -> CostRule | None:
        """Return the packing rule for training. Raise ``UserError`` if the model can't be packed."""
        if setting == "flat":
            return None
        if self.rule is None:
            raise UserError(self.refusal, "set packing=flat (train.packing=flat in a recipe)")
        return self.rule

    def own(self, model: Any) -> list[Tensor]:
        """Return the log-probs of all tokens after the first, by the model's own current forward pass."""
        logprobs = _run(self.kind, "on token ids alone", lambda: _plain(model, self.rows))
        if not all(bool(row.isfinite().all()) for row in logprobs):
            raise UserError(
                f"this {self.kind} model's log-probs are not finite: its weights are damaged, or training diverged",
                "load the model again from a good checkpoint",
            )
        return logprobs

    def demand(
        self, condition: str, run: Callable[[], RowLogprobs], expected: RowLogprobs, do: str = DO
    ) -> None:
        """Raise ``UserError`` if ``run`` fails or its log-probs differ from ``expected``."""
        if difference := self.differ(_run(self.kind, condition, run, do), expected):
            raise UserError(
                f"this {self.kind} model's log-probs {condition} differ from its own forward pass by {difference}",
                do,
            )

    def differ(self, logprobs: RowLogprobs, expected: RowLogprobs) -> str:
        """Return the largest difference between two sets of log-probs as text; empty if it is only rounding."""
        differences = [
            (a.float() - b.float()).abs() for a, b in zip(logprobs, expected, strict=True)
        ]
        # In 16 bits single tokens may differ much; an error of the code changes most of them.
        rows = [float(row.max() if self.exact else row.median()) for row in differences]
        tolerance = ROUNDING if self.exact else ROUNDING_OF_16_BITS
        return "" if all(row <= tolerance for row in rows) else f"{max(rows):.3g} nats"


_CHECKED: WeakKeyDictionary[Any, dict[tuple[object, ...], CheckedModel]] = WeakKeyDictionary()


def check(model: Any) -> CheckedModel:
    """Compare our log-probs with the model's own, once for each mode, attention, device and dtype."""
    weight = model.get_input_embeddings().weight
    # Each of these may select other kernels, or other code of the model.
    state = (model.training, model.config._attn_implementation, weight.device, weight.dtype)
    by_state = _CHECKED.setdefault(model, {})
    if state not in by_state:
        vocabulary = model.config.get_text_config().vocab_size
        rows = _rows(vocabulary, context_length(model.config))
        checked = CheckedModel(model.config.model_type, weight.dtype == torch.float32, rows)
        with torch.no_grad():
            _check(model, checked)
        by_state[state] = checked
    return by_state[state]


def _check(model: Any, checked: CheckedModel) -> None:
    expected, rows = checked.own(model), checked.rows
    checked.demand("for a single row", lambda: _ours(model, rows[-1:], None), expected[-1:])
    checked.demand("for rows in a padded batch", lambda: _ours(model, rows, None), expected)
    # Batches mix rows of all lengths. Some rotary angles depend on the largest position of a batch,
    # so a row next to the end of the context must not change.
    context = context_length(model.config)
    if context and "position_ids" in inspect.signature(body(model).forward).parameters:
        condition = f"for a row next to position {context}"
        checked.demand(condition, lambda: _beside_far(model, rows[1], context), expected[1:2])
    # The short rows of the check would not show a window of attention, so its config is read.
    reasons = partial_attention(model.config)
    if model.config._attn_implementation.startswith("flash"):
        reasons.append("flash attention")
    reason = f"it has {', '.join(reasons)}" if reasons else _packing_error(model, checked, expected)
    if reason:
        checked.refusal = f"this {checked.kind} model can't compute shared prefixes once: {reason}"
    else:
        checked.rule = CostRule.of(model)


def _rows(vocabulary: int, context: int | None) -> CheckRows:
    # Random ids, so that the check needs no tokenizer.
    generator = np.random.default_rng(0)
    max_length = LENGTHS[-1] if context is None else min(context, LENGTHS[-1])
    begin, *ends = (generator.integers(vocabulary, size=max_length).tolist() for _ in range(4))
    shared = begin[: min(SHARED, max_length // 2)]
    sequences = ([begin[0], *ends[0]], [*shared, *ends[1]], [*shared, *ends[2]])
    return tuple(
        tuple(ids[: min(n, max_length)]) for ids, n in zip(sequences, LENGTHS, strict=True)
    )


def _plain(model: Any, rows: CheckRows) -> list[Tensor]:
    device, logprobs = model.get_input_embeddings().weight.device, []
    for row in rows:
        ids = torch.tensor([row], device=device)
        # `[L - 1, V]`, with nothing of our own: no packing, padding or chunks.
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        logprobs.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1))
    return logprobs


def _ours(model: Any, rows: CheckRows, rule: CostRule | None) -> list[Tensor]:
    return sequence_logprobs(model, rows, [range(1, len(row)) for row in rows], rule)


def _beside_far(model: Any, row: Sequence[int], context: int) -> list[Tensor]:
    """Return the log-probs of a row in a batch with the same row at the last positions of the context."""
    device, length = model.get_input_embeddings().weight.device, len(row)
    ids = torch.tensor([row, row], device=device)
    near = torch.arange(length, device=device)
    positions = torch.stack([near, near + context - length])
    return [token_logprobs(model, ids, near[:-1], ids[0, 1:], position_ids=positions)]


def _packing_error(model: Any, checked: CheckedModel, expected: RowLogprobs) -> str:
    """Return the reason why rows can't be packed, such as an error of the model's code; empty if they can."""
    try:
        # If attention costs nothing, rows with a common first token always share a trie.
        logprobs = _ours(model, checked.rows, CostRule(0.0))
    except Exception as error:
        return f"it fails with {error!r}"
    difference = checked.differ(logprobs, expected)
    return (
        difference
        and f"its log-probs then differ by {difference}; its attention does not support custom masks"
    )


def _run(kind: str, condition: str, run: Callable[[], Result], do: str = DO) -> Result:
    """Return the result of ``run``. Convert any error of the model's code into ``UserError``."""
    try:
        return run()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"this {kind} model can't be run {condition}: {error!r}", do) from error
