"""Before a model is first used: are our log-probs those of its own forward pass?

Families of models differ in what a row's numbers depend on, and no list of them is complete. So a few
rows of random tokens, of different lengths, go through the model's plain forward pass, one by one, and
through each of our ways: alone, padded in a batch, beside the end of the context, packed into a trie.
What differs by more than rounding is refused. Engines ask the same of their own steps.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from coterie.errors import UserError
from coterie.models.context import context_length
from coterie.models.logprobs import body, token_logprobs
from coterie.models.packed import sequence_logprobs
from coterie.models.packing import CostRule, unpackable

LENGTHS = (6, 24, 40)
"""Tokens of the rows; the last two part after ``SHARED``, and all begin with one token."""
SHARED = 12
ROUNDING = 1e-3
"""Largest difference (nats) of two log-probs in float32 that is taken for rounding."""
ROUNDING_OF_16_BITS = 0.2
"""In 16 bits, of the median of a row's differences: single tokens may differ by more."""
DO = "use another model, or open an issue about this one: it needs a case of its own"

Result = TypeVar("Result")
CheckRows = tuple[tuple[int, ...], ...]
RowLogprobs = Sequence[Tensor]
"""Of each row's tokens."""


@dataclass(slots=True)
class CheckedModel:
    """A model whose unpacked rows, alone and in a batch, have the log-probs of its own forward pass."""

    kind: str
    """What the model's config calls it."""
    exact: bool
    """Whether it computes in float32."""
    rows: CheckRows
    """What was asked; all begin with the same token."""
    refusal: str = ""
    """Why rows can't be packed, if they can't."""
    rule: CostRule | None = None
    """Which rows are packed together, if they can be."""
    ways: set[str] = field(default_factory=set)
    """What else was asked of it since, by whom."""

    def packing(self, asked: Literal["auto", "flat"]) -> CostRule | None:
        """The rule of a training; ``UserError`` where it wants a packing that the model can't take."""
        if asked == "flat":
            return None
        if self.rule is None:
            raise UserError(self.refusal, "set packing=flat (train.packing=flat in a recipe)")
        return self.rule

    def own(self, model: Any) -> list[Tensor]:
        """Log-probs of the rows' tokens after the first, by the model's own forward pass as it is now."""
        found = tried(self.kind, "on token ids alone", lambda: _plain(model, self.rows))
        if not all(bool(one.isfinite().all()) for one in found):
            raise UserError(
                f"this {self.kind} model's log-probs are not numbers",
                "load it again: its weights are damaged, or a training has made them infinite",
            )
        return list(found)

    def demand(
        self, way: str, run: Callable[[], RowLogprobs], own: RowLogprobs, do: str = DO
    ) -> None:
        """Refuse (``UserError``) the model if ``run`` fails, or gives others than its own log-probs."""
        if apart := self.differ(tried(self.kind, way, run, do), own):
            raise UserError(
                f"this {self.kind} model gives other log-probs {way} than its own forward pass does "
                f"(by {apart})",
                do,
            )

    def differ(self, found: RowLogprobs, own: RowLogprobs) -> str:
        """By how much log-probs of rows are apart, if that is more than rounding; else nothing."""
        apart = [(a.float() - b.float()).abs() for a, b in zip(found, own, strict=True)]
        rows = [float(one.max() if self.exact else one.median()) for one in apart]
        tolerance = ROUNDING if self.exact else ROUNDING_OF_16_BITS
        return "" if all(one <= tolerance for one in rows) else f"{max(rows):.3g} nats"


_CHECKED: WeakKeyDictionary[Any, dict[tuple[object, ...], CheckedModel]] = WeakKeyDictionary()


def check(model: Any) -> CheckedModel:
    """Compare a model with itself, once as it is (mode, attention, device, type of its weights).

    Raises :class:`UserError` for a model that gives other log-probs by any way but packed.
    """
    weight = model.get_input_embeddings().weight
    state = (model.training, model.config._attn_implementation, weight.device, weight.dtype)
    known = _CHECKED.setdefault(model, {})
    if state not in known:
        vocabulary = model.config.get_text_config().vocab_size
        rows = _rows(vocabulary, context_length(model.config))
        seen = CheckedModel(model.config.model_type, weight.dtype == torch.float32, rows)
        with torch.no_grad():
            _check(model, seen)
        known[state] = seen
    return known[state]


def _check(model: Any, seen: CheckedModel) -> None:
    own = seen.own(model)
    for way, run, wanted in _ways(model, seen.rows, own):
        seen.demand(way, run, wanted)
    if why := unpackable(model) or _differs_packed(model, seen, own):
        seen.refusal = f"this {seen.kind} model can't compute shared beginnings once: {why}"
    else:
        seen.rule = CostRule.of(model)


def _rows(vocabulary: int, context: int | None) -> CheckRows:
    generator = np.random.default_rng(0)
    max_length = LENGTHS[-1] if context is None else min(context, LENGTHS[-1])
    begin, *ends = (generator.integers(vocabulary, size=max_length).tolist() for _ in range(4))
    shared = begin[: min(SHARED, max_length // 2)]
    whole = ([begin[0], *ends[0]], [*shared, *ends[1]], [*shared, *ends[2]])
    return tuple(tuple(ids[: min(n, max_length)]) for ids, n in zip(whole, LENGTHS, strict=True))


def _plain(model: Any, rows: CheckRows) -> list[Tensor]:
    device, found = model.get_input_embeddings().weight.device, []
    for row in rows:
        ids = torch.tensor([row], device=device)
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        found.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1))
    return found


def _ways(
    model: Any, rows: CheckRows, own: RowLogprobs
) -> Iterator[tuple[str, Callable[[], RowLogprobs], RowLogprobs]]:
    """How unpacked rows are computed: what it is called, its log-probs, and what they should be."""
    yield "for a row by itself", lambda: _ours(model, rows[-1:], None), own[-1:]
    yield "for rows in a padded batch", lambda: _ours(model, rows, None), own
    context = context_length(model.config)
    if context and "position_ids" in inspect.signature(body(model).forward).parameters:
        way = f"for a row beside the {context}th position"
        yield way, lambda: _beside_far(model, rows[1], context), own[1:2]


def _ours(model: Any, rows: CheckRows, rule: CostRule | None) -> list[Tensor]:
    return sequence_logprobs(model, rows, [range(1, len(row)) for row in rows], rule)


def _beside_far(model: Any, row: Sequence[int], context: int) -> list[Tensor]:
    """A row's log-probs, computed beside the same row at the last positions of the context."""
    device, length = model.get_input_embeddings().weight.device, len(row)
    ids = torch.tensor([row, row], device=device)
    near = torch.arange(length, device=device)
    at = torch.stack([near, near + context - length])
    return [token_logprobs(model, ids, near[:-1], ids[0, 1:], position_ids=at)]


def _differs_packed(model: Any, seen: CheckedModel, own: RowLogprobs) -> str:
    """Why the rows can't be packed, if they can't; any error of the model's code is a reason."""
    try:
        found = _ours(model, seen.rows, CostRule(0.0))
    except Exception as error:
        return f"it fails with {error!r}"
    apart = seen.differ(found, own)
    return (
        apart and f"its log-probs then differ by {apart}; its attention does not take a free mask"
    )


def tried(kind: str, way: str, run: Callable[[], Result], do: str = DO) -> Result:
    """What ``run`` gives; whatever the model's code raises is a refusal (``UserError``)."""
    try:
        return run()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"this {kind} model can't be run {way}: {error!r}", do) from error
