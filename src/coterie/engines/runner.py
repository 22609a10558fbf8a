"""Model steps of the in-process engine: reading prompts, the next token, scores of given tokens.

Llama-shaped models in float32 on CPU have compiled loops, in which a sequence's numbers do not depend on its neighbours
(:mod:`coterie.engines.compiled`); others run by Transformers, and there they do within rounding
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
"""Last tokens of each row, which come one by one after the prompt."""
DO = "use the vLLM engine for this model"
Score = Callable[[Sequence[tuple[int, ...]], int], list[list[float]]]


def check_context(loaded: LoadedModel) -> None:
    """Refuse (``UserError``) a context in which a model's numbers would not hold."""
    max_length = context_length(loaded.model.config)
    if max_length is not None and loaded.context_length > max_length:
        raise UserError(
            f"sequences of up to {loaded.context_length} tokens are wanted of {loaded.source}, whose "
            f"numbers hold up to {max_length}",
            f"give context_length={max_length} or less",
        )


def check_steps(
    checked: CheckedModel, own: Sequence[Tensor], rows: DecodingRows, score: Score
) -> None:
    """Refuse (``UserError``) a model that reads, decodes or scores otherwise than its ``own`` pass does.

    Of ``rows`` none may be in use, and none is afterwards.
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
    """Log-probs of the last tokens of each row: of the first after a prompt, of the others step by step."""
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
"""Up to this size of its weights a model's likelihoods are computed by the compiled loops: torch's products, which wake
all threads for each, are faster for larger ones (bench/logprobs.py)."""
CHANGED = "the model's weights were changed while requests were in flight"
SCORED_TOKENS = 8192
"""Tokens, padding included, that are scored at once."""


class Runner:
    """Runs one model over rows, as it is at the time: its weights may change, and adapters come or go, while no
    sequence runs. What was computed with other weights is not used: :mod:`coterie.engines.weights`."""

    def __init__(self, loaded: LoadedModel, cache_bytes: int) -> None:
        _refuse_windows(loaded.model.config)
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
        """Forget all sequences, and all that was computed with the present weights."""
        self._rows = None

    def forget(self) -> None:
        """Drop the beginnings of prompts that are kept."""
        if self._rows is not None:
            self._rows.forget()

    @torch.inference_mode()
    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row, behind those in use. Logits after it ``[N, V]``, and how many of its
        tokens were there already."""
        return self._follow(min(rows)).prefill(rows, prompts)

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Logits ``[N, V]`` after one more token in each of the first N rows, which are all that run."""
        assert self._rows is not None and self._weights is not None
        if self._weights.written:
            raise RuntimeError(CHANGED)
        return self._rows.decode(tokens, places)

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Free rows begin with the first ``length`` tokens of another."""
        assert self._rows is not None
        self._rows.fork(source, targets, length)

    def arrange(self, count: int) -> Sequence[int]:
        """Put the first N rows into the order in which they are decoded fastest; where each was before."""
        assert self._rows is not None
        return self._rows.arrange(count)

    def leave(self, row: int, ids: Sequence[int], last: int, length: int) -> None:
        """A row ends, which holds ``ids``, and the last one, of ``length`` tokens, takes its place."""
        assert self._rows is not None
        self._rows.leave(row, ids, last, length)

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, running: int = 0
    ) -> list[list[float]]:
        """Log-probs of sequences from ``start`` on, before which all are the same; shared beginnings are
        computed once. The first ``running`` rows are in use."""
        if self._small and isinstance(rows := self._follow(running), ScoringRows):
            return rows.score(sequences, start, running)
        model = self._loaded.model
        splitter = Splitter([[ids] for ids in sequences], self._rule, SCORED_TOKENS)
        scores: list[list[float]] = [[] for _ in sequences]
        with attending(model, masked_attention(model)):
            for part in splitter.microbatches(splitter.families(range(len(sequences))))[0]:
                chosen = [sequences[i] for i in part]
                places = [range(start, len(ids)) for ids in chosen]
                found = sequence_logprobs(model, chosen, places, self._rule)
                for i, values in zip(part, found, strict=True):
                    scores[i] = values.tolist()
        return scores

    def _follow(self, running: int) -> DecodingRows:
        model = self._loaded.model
        if self._rows is not None and self._weights is not None and self._weights.same:
            return self._rows
        if running:
            raise RuntimeError(CHANGED)
        self._weights = WatchedWeights(model)
        if compiled.fits(model):
            self._rows = compiled.compiled_rows(model, self._cache_bytes)
        else:
            self._rows = PaddedRows(self._loaded, self._cache_bytes)
        return self._rows


def _refuse_windows(config: Any) -> None:
    if found := partial_attention(config):
        raise UserError(
            "the in-process engine runs models whose tokens attend to all earlier ones, and this "
            f"{config.model_type} model has {', '.join(found)}",
            "use the vLLM engine for this model",
        )
