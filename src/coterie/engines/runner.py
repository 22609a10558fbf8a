"""Model steps of the in-process engine: prefill, decode and score.

Llama-shaped models in float32 on CPU use compiled loops, whose results do not depend on the batch
(:mod:`coterie.engines.compiled`). Other models use Transformers, where rounding depends on the batch
(:mod:`coterie.engines.padded`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.engines import compiled
from coterie.engines.attention import attending, masked_attention
from coterie.engines.padded import PaddedRows
from coterie.engines.rows import DecodingRows, ScoringRows
from coterie.engines.weights import WatchedWeights
from coterie.errors import UserError
from coterie.models.check import CheckedModel, check
from coterie.models.context import context_length, partial_attention
from coterie.models.loading import LoadedModel
from coterie.models.packed import sequence_logprobs
from coterie.models.splitting import Splitter

STEPS = 3
"""Number of tokens that the check decodes one by one after the prompt."""
DO = "use the vLLM engine for this model"
Score = Callable[[Sequence[tuple[int, ...]], int], list[list[float]]]


def check_context(loaded: LoadedModel) -> None:
    """Raise ``UserError`` for a context that is longer than the model supports."""
    max_length = context_length(loaded.model.config)
    if max_length is not None and loaded.context_length > max_length:
        raise UserError(
            f"context_length={loaded.context_length} is longer than the context of {loaded.source}, "
            f"{max_length} tokens",
            f"use context_length={max_length} or less",
        )


def check_steps(
    checked: CheckedModel, own: Sequence[Tensor], rows: DecodingRows, score: Score
) -> None:
    """Raise ``UserError`` if prefill, decode or score differ from the log-probs of the model's ``own`` pass.

    All ``rows`` are free before and after.
    """
    own = [one.cpu() for one in own]
    last = [one[-STEPS - 1 :] for one in own]
    checked.demand("when sampled with cached keys", lambda: _stepped(checked, rows), last, DO)
    checked.demand(
        "when scored by the engine",
        lambda: list(map(torch.tensor, score(checked.rows, 1))),
        own,
        DO,
    )


@torch.inference_mode()
def _stepped(checked: CheckedModel, rows: DecodingRows) -> list[Tensor]:
    """Compute the log-probs of the last tokens of each row by prefill and single steps."""
    prompts = [row[: -STEPS - 1] for row in checked.rows]
    lasts = [row[-STEPS - 1 :] for row in checked.rows]
    logits, _ = rows.prefill(range(len(prompts)), prompts)
    steps = [logits]
    for step in range(STEPS):
        places = [len(prompt) + step for prompt in prompts]
        steps.append(rows.decode([last[step] for last in lasts], places))
    for row, ids in reversed(list(enumerate(checked.rows))):
        rows.leave(row, ids[:-1], row, len(ids) - 1)
    rows.forget()
    logprobs = torch.stack(steps).float().cpu().log_softmax(-1)
    return list(logprobs.gather(2, torch.tensor(lasts).T[..., None]).squeeze(2).T)


CACHED_BYTES = 1 << 26
"""Maximum size of the weights for scoring with compiled loops; for larger models torch's matrix products, which start
all threads, are faster (bench/logprobs.py)."""
CHANGED = "the model's weights were changed while requests were in flight"
SCORED_TOKENS = 8192
"""Padded tokens of a scoring batch."""


class Runner:
    """Runner of one model over rows.

    Weights and adapters may change while no sequence runs; caches of other weights are not used
    (:mod:`coterie.engines.weights`).
    """

    def __init__(self, loaded: LoadedModel, cache_bytes: int) -> None:
        _check_full_attention(loaded.model.config)
        self._loaded = loaded
        self._cache_bytes = cache_bytes
        check_context(loaded)
        checked = check(loaded.model)
        self._rule = checked.rule
        size = sum(weight.nbytes for weight in loaded.model.parameters())
        self._small = size <= CACHED_BYTES
        self._rows: DecodingRows | None = None
        self._weights: WatchedWeights | None = None
        way = "compiled" if compiled.fits(loaded.model) else "padded"
        if way not in checked.ways:
            with torch.no_grad():
                own = checked.own(loaded.model)
            check_steps(checked, own, self, self.score)
            checked.ways.add(way)

    def clear(self) -> None:
        """Drop all sequences and caches."""
        self._rows = None

    def forget(self) -> None:
        """Drop the cached prefixes."""
        if self._rows is not None:
            self._rows.forget()

    @torch.inference_mode()
    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into a free row. Return the next logits ``[N, V]`` and the numbers of cached tokens."""
        return self._follow(min(rows)).prefill(rows, prompts)

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Append one token to each of the N running rows. Return the next logits ``[N, V]``."""
        assert self._rows is not None and self._weights is not None
        if self._weights.is_written:
            raise RuntimeError(CHANGED)
        return self._rows.decode(tokens, places)

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of a row to free rows."""
        assert self._rows is not None
        self._rows.fork(source, targets, length)

    def arrange(self, count: int) -> Sequence[int]:
        """Reorder the first N rows for the fastest decoding. Return their old indices."""
        assert self._rows is not None
        return self._rows.arrange(count)

    def leave(self, row: int, ids: Sequence[int], last: int, length: int) -> None:
        """Free a row with the tokens ``ids``, and move the last row, of ``length`` tokens, into its place."""
        assert self._rows is not None
        self._rows.leave(row, ids, last, length)

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, running: int = 0
    ) -> list[list[float]]:
        """Compute log-probs of ``ids[start:]`` of sequences with the same first ``start`` ids.

        Shared prefixes are computed once. The first ``running`` rows are in use.
        """
        if self._small and isinstance(rows := self._follow(running), ScoringRows):
            return rows.score(sequences, start, running)
        model = self._loaded.model
        splitter = Splitter([[ids] for ids in sequences], self._rule, SCORED_TOKENS)
        scores: list[list[float]] = [[] for _ in sequences]
        with attending(model, masked_attention(model)):
            for part in splitter.microbatches(splitter.families(range(len(sequences))))[0]:
                chosen = [sequences[i] for i in part]
                places = [range(start, len(ids)) for ids in chosen]
                logprobs = sequence_logprobs(model, chosen, places, self._rule)
                for i, values in zip(part, logprobs, strict=True):
                    scores[i] = values.tolist()
        return scores

    def _follow(self, running: int) -> DecodingRows:
        model = self._loaded.model
        if self._rows is not None and self._weights is not None and self._weights.is_same:
            return self._rows
        if running:
            raise RuntimeError(CHANGED)
        self._weights = WatchedWeights(model)
        if compiled.fits(model):
            self._rows = compiled.compiled_rows(model, self._cache_bytes)
        else:
            self._rows = PaddedRows(self._loaded, self._cache_bytes)
        return self._rows


def _check_full_attention(config: Any) -> None:
    if kinds := partial_attention(config):
        raise UserError(
            "the in-process engine supports only full attention, but this "
            f"{config.model_type} model has {', '.join(kinds)}",
            "use the vLLM engine for this model",
        )
