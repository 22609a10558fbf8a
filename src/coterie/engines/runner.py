"""Model steps of the in-process engine: reading prompts, the next token, scores of given tokens.

A sequence's numbers do not depend on its neighbours (on CPU in float32). Llama-shaped models have compiled
loops for that (:mod:`coterie.engines.llama`). Others run, with a fixed number of threads, in shapes under
which it is so: rows padded to a multiple of 8 and at least 16, keys to a multiple of 64, prompts read in
blocks of 32 tokens that attend to whole blocks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.engines.attention import attending, use_rows
from coterie.engines.llama import CompiledLlama
from coterie.engines.prefixes import PrefixCache
from coterie.engines.slots import BLOCK, STEP, Slots, blocks, stepped
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.models.logprobs import hidden_states, vocabulary_logits
from coterie.models.packed import sequence_logprobs
from coterie.models.packing import CostRule
from coterie.models.splitting import Splitter

PROMPTS = 32
"""Prompts read, and sequences scored, at once."""
CACHED_BYTES = 1 << 26
"""Up to this size of its weights a model's likelihoods are computed by the compiled loops: torch's products, which wake
all threads for each, are faster for larger ones (bench/logprobs.py)."""
SCORED_TOKENS = 8192
"""Tokens, padding included, that are scored at once."""


class Runner:
    """Runs one model over rows of slots."""

    def __init__(self, loaded: LoadedModel, cache_bytes: int) -> None:
        self.model = loaded.model
        config = self.model.config
        _refuse_windows(config)
        self._rule = CostRule.of(self.model)
        size = sum(weight.nbytes for weight in self.model.parameters())
        self._small = size <= CACHED_BYTES
        self._compiled: CompiledLlama | None = None
        if self.model.device.type == "cpu":
            use_rows(self.model)
        weights = self.model.get_input_embeddings().weight
        self.device, self.dtype = weights.device, weights.dtype
        heads = config.num_key_value_heads
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        like = weights.detach()
        self.slots = Slots(config.num_hidden_layers, heads, width, like)
        self.prefixes = PrefixCache(cache_bytes)

    def clear(self) -> None:
        """Forget all that was computed with the present weights."""
        self._compiled = None
        self.slots.clear()
        self.prefixes.clear()

    @torch.inference_mode()
    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row. Logits after it ``[N, V]``, and how many of its tokens were
        kept from earlier requests."""
        self._follow()
        self.slots.reserve(max(rows) + 1, max(map(len, prompts)) + STEP)
        keys = [PrefixCache.keys(prompt) for prompt in prompts]
        known = [self._restore(row, key) for row, key in zip(rows, keys, strict=True)]
        kept = [blocks * BLOCK for blocks in known]
        if self._compiled is None:
            return self._blocks(rows, prompts, keys, known), kept
        logits = self._compiled.read(prompts, kept, rows, self.slots)
        for row, its, first in zip(rows, keys, known, strict=True):
            for block in range(first, len(its)):
                self.prefixes.put(its[block], self.slots.read(row, block))
        return logits, kept

    def _follow(self) -> None:
        """Compile the model as it is now: its weights may have changed, or adapters come or gone."""
        if self._compiled is None or not self._compiled.holds:
            if self._compiled is not None:
                self.prefixes.clear()
            fits = CompiledLlama.fits(self.model)
            self._compiled = CompiledLlama(self.model) if fits else None

    def _blocks(
        self,
        rows: Sequence[int],
        prompts: Sequence[tuple[int, ...]],
        keys: Sequence[Sequence[str]],
        known: Sequence[int],
    ) -> Tensor:
        """Read prompts by blocks, from the first that its row does not hold. Logits after each."""
        last: list[Tensor] = [torch.empty(0)] * len(prompts)
        for block in range(max(blocks(len(prompt)) for prompt in prompts)):
            members = [i for i, p in enumerate(prompts) if known[i] <= block < blocks(len(p))]
            for start in range(0, len(members), PROMPTS):
                part = members[start : start + PROMPTS]
                hidden = self._read([rows[i] for i in part], [prompts[i] for i in part], block)
                for row, i in zip(hidden, part, strict=True):
                    if block < len(keys[i]):
                        self.prefixes.put(keys[i][block], self.slots.read(rows[i], block))
                    else:
                        last[i] = row[(len(prompts[i]) - 1) % BLOCK]
        return self._logits(torch.stack(last))[: len(prompts)]

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Logits ``[N, V]`` after one more token in each of the first N rows."""
        if self._compiled is not None:
            return self._compiled.decode(tokens, places, self.slots)
        count = len(tokens)
        fill = [0] * (_padded(count) - count)
        ids = torch.tensor([[*tokens, *fill]], device=self.device).T
        at = torch.tensor([*places, *fill], device=self.device)
        length = stepped(max(places) + 1)
        mask = self._mask(torch.arange(length, device=self.device) <= at[:, None])
        hidden = self._hidden(ids, at[:, None], mask[:, None, None], self.slots.decode(at, length))
        return vocabulary_logits(self.model, hidden[:, 0])[:count]

    @torch.inference_mode()
    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int = 0
    ) -> list[list[float]]:
        """Log-probs of sequences from ``start`` on, before which all are the same; shared beginnings are
        computed once. Slots from row ``free`` on may be written to."""
        if self._small:
            self._follow()
            if self._compiled is not None:
                return self._score_by_rows(self._compiled, sequences, start, free)
        splitter = Splitter([[ids] for ids in sequences], self._rule, SCORED_TOKENS)
        scores: list[list[float]] = [[] for _ in sequences]
        with attending(self.model, "sdpa"):
            for part in splitter.microbatches(splitter.families(range(len(sequences))))[0]:
                chosen = [sequences[i] for i in part]
                places = [range(start, len(ids)) for ids in chosen]
                found = sequence_logprobs(self.model, chosen, places, self._rule)
                for i, values in zip(part, found, strict=True):
                    scores[i] = values.tolist()
        return scores

    def _score_by_rows(
        self, compiled: CompiledLlama, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """Read what all share into one row, as far as it is not kept, and go on from it in many."""
        distinct, shared = list(dict.fromkeys(sequences)), sequences[0][: start - 1]
        rows = range(free, free + min(len(distinct), PROMPTS))
        self.slots.reserve(rows.stop, max(map(len, distinct)))
        if shared:
            self.prefill([free], [shared])
            self.slots.move(free, rows[1:], len(shared))
        scores: dict[tuple[int, ...], list[float]] = {}
        for first in range(0, len(distinct), PROMPTS):
            part = distinct[first : first + PROMPTS]
            found = compiled.score(part, start, rows[: len(part)], self.slots)
            scores |= zip(part, found, strict=True)
        return [scores[ids] for ids in sequences]

    def _restore(self, row: int, keys: Sequence[str]) -> int:
        """Put the kept beginning of a prompt into a row; returns its number of blocks."""
        for block, key in enumerate(keys):
            if (content := self.prefixes.get(key)) is None:
                return block
            self.slots.write(row, block, content)
        return len(keys)

    def _read(self, rows: list[int], prompts: list[tuple[int, ...]], block: int) -> Tensor:
        """Hidden states ``[N, BLOCK, width]`` of one block of each prompt (end padded)."""
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        ids = [[*prompt[span], *[0] * (BLOCK - len(prompt[span]))] for prompt in prompts]
        at = torch.arange(span.start, span.stop, device=self.device)
        mask = self._mask(torch.arange(span.stop, device=self.device) <= at[:, None])
        ids_BQ = torch.tensor(ids, device=self.device)
        return self._hidden(ids_BQ, at[None], mask[None, None], self.slots.prefill(rows, block))

    def _hidden(self, ids: Tensor, at: Tensor, mask: Tensor, slots: Slots) -> Tensor:
        """Hidden states ``[B, Q, width]`` of ids ``[B, Q]`` at places ``at``, which slots then hold."""
        return hidden_states(
            self.model, ids, attention_mask=mask, position_ids=at, past_key_values=slots
        )

    def _logits(self, hidden: Tensor) -> Tensor:
        missing = _padded(len(hidden)) - len(hidden)
        return vocabulary_logits(self.model, torch.nn.functional.pad(hidden, (0, 0, 0, missing)))

    def _mask(self, seen: Tensor) -> Tensor:
        """An additive mask of what is seen."""
        lowest = torch.finfo(self.dtype).min
        return torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill_(
            ~seen, lowest
        )


def _padded(rows: int) -> int:
    """Rows of a matrix product whose results do not depend on their number."""
    return max(16, -(-rows // 8) * 8)


def _refuse_windows(config: object) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) and not kinds
    if window or kinds - {"full_attention"}:
        found = ", ".join(sorted(kinds)) or "sliding window"
        raise UserError(
            "the in-process engine runs models with full attention only, not "
            f"{getattr(config, 'model_type', '?')} ({found})",
            "use the vLLM engine for this model",
        )
