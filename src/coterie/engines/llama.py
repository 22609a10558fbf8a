"""Llama-shaped models in float32 on CPU, by compiled loops over pages of keys and values.

A step is one call per thread (:mod:`coterie.engines.kernels`) with a share of the rows; the loops release the
interpreter's lock. Prefill and decode give bitwise the same results.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.engines.sequence import BLOCK, BlockIndex, PrefixCache, block_keys, same
from coterie.models.adapters import NUMBA_ERROR
from coterie.models.logprobs import body

if not NUMBA_ERROR:
    from coterie.engines import kernels

logger = logging.getLogger(__name__)
FIRST = 16
"""Initial number of rows and pages; it is multiplied by four when there are too few."""


class Pages:
    """Keys ``[pages, layers, heads, width, BLOCK]``, values ``[pages, layers, heads, BLOCK, width]``.

    A row is a running sequence, a list of pages, which sequences with a common prefix share. Pages are
    reference-counted: users are rows and the prefix cache.
    """

    def __init__(self, layers: int, heads: int, width: int) -> None:
        self.keys = np.zeros((FIRST, layers, heads, width, BLOCK), np.float32)
        self.values = np.zeros((FIRST, layers, heads, BLOCK, width), np.float32)
        self.table = np.zeros((FIRST, FIRST), np.int64)
        """Pages of each row, ``[rows, blocks]``."""
        self._rows: list[list[int]] = [[] for _ in range(FIRST)]
        self._users: list[int] = []
        self._free: list[int] = []

    @property
    def page_bytes(self) -> int:
        return int(self.keys[0].nbytes + self.values[0].nbytes)

    @property
    def used(self) -> int:
        return len(self._users) - len(self._free)

    def begin(self, row: int, pages: Sequence[int], length: int) -> None:
        """Start a row with shared pages, and with new ones up to ``length`` tokens; free its old pages."""
        for page in pages:
            self.keep(page)
        self._have_rows(row + 1)
        self.drop(row)
        self._rows[row] = list(pages)
        self._write(row, 0)
        self.extend(row, length)

    def extend(self, row: int, length: int) -> None:
        row_pages = self._rows[row]
        old_count, count = len(row_pages), -(-length // BLOCK)
        if old_count < count:
            row_pages.extend(self._new() for _ in range(count - old_count))
            self._write(row, old_count)

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Start rows with the first ``length`` tokens of another: they share its full pages and copy a partial one."""
        full, rest = divmod(length, BLOCK)
        for target in targets:
            self.begin(target, self._rows[source][:full], length)
            if rest:
                self.copy(self._rows[source][full], self._rows[target][full])

    def copy(self, source: int, target: int) -> None:
        self.keys[target], self.values[target] = self.keys[source], self.values[source]

    def leave(self, row: int, last_row: int) -> None:
        self.drop(row)
        if row != last_row:
            self._rows[row], self._rows[last_row] = self._rows[last_row], []
            self._write(row, 0)

    def arrange(self, count: int) -> list[int]:
        """Sort the first ``count`` rows so that rows with a common prefix are adjacent. Return their old indices."""
        order = sorted(range(count), key=self._rows.__getitem__)
        self._rows[:count] = [self._rows[row] for row in order]
        self.table[:count] = self.table[order]
        return order

    def drop(self, row: int) -> None:
        """Free a row, which may be free already."""
        if row < len(self._rows):
            for page in self._rows[row]:
                self.release(page)
            self._rows[row] = []

    def page(self, row: int, block: int) -> int:
        return self._rows[row][block]

    def keep(self, page: int) -> None:
        self._users[page] += 1

    def release(self, page: int) -> None:
        self._users[page] -= 1
        if not self._users[page]:
            self._free.append(page)

    def _new(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page = len(self._users)
            self._users.append(0)
            if page == len(self.keys):
                self.keys, self.values = _extend(self.keys), _extend(self.values)
        self._users[page] = 1
        return page

    def _have_rows(self, rows: int) -> None:
        while rows > len(self._rows):
            self._rows += [[] for _ in range(3 * len(self._rows))]
            self.table = _extend(self.table)

    def _write(self, row: int, block: int) -> None:
        row_pages = self._rows[row]
        while len(row_pages) > self.table.shape[1]:
            self.table = np.ascontiguousarray(_extend(self.table.T).T)
        self.table[row, block : len(row_pages)] = row_pages[block:]


def _extend(old: np.ndarray) -> np.ndarray:
    """Return a copy of four times the length. Untouched memory costs nothing."""
    new = np.zeros((4 * len(old), *old.shape[1:]), old.dtype)
    new[: len(old)] = old
    return new


KINDS = ("llama", "qwen2")
FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embeddings with angles that do not depend on the length of the sequence."""
TOKENS = 4096
"""Tokens of a prefill batch."""


SCORED = 32
"""Sequences that are scored together."""


class CompiledLlama:
    """Rows computed by compiled loops, with a packed copy of a model's weights. The first rows are in use."""

    def __init__(self, model: Any, cache_bytes: int) -> None:
        if not kernels.are_compiled():
            logger.warning("compiling loops for this CPU (once, about a minute)")
        self._vocabulary = model.config.vocab_size
        self.pack(model)
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(max(self._threads - 1, 1), "decode")
        inner, heads = body(model), model.config.num_key_value_heads
        self.pages = Pages(len(inner.layers), heads, inner.layers[0].self_attn.head_dim)
        self.fork, self.arrange = self.pages.fork, self.pages.arrange
        self._prefixes = PrefixCache[int](cache_bytes // self.pages.page_bytes, self._dropped)
        self._index = BlockIndex()
        """Cached pages of finished rows, which are completely computed."""

    def pack(self, model: Any) -> None:
        """Copy the weights of the model."""
        inner = body(model)
        attention = inner.layers[0].self_attn
        self._weights = kernels.PackedWeights(
            **_products(inner.layers),
            embedding=_array(inner.embed_tokens.weight),
            before=np.stack([_array(layer.input_layernorm.weight) for layer in inner.layers]),
            between=np.stack(
                [_array(layer.post_attention_layernorm.weight) for layer in inner.layers]
            ),
            norm=_array(inner.norm.weight),
            head=_panels(_array(model.get_output_embeddings().weight)),
            **_angles(inner, model.config.max_position_embeddings),
            epsilon=np.float32(inner.norm.variance_epsilon),
            scaling=np.float32(attention.scaling),
        )

    @staticmethod
    def fits(model: Any) -> bool:
        """Return True if the compiled loops support a model as it is: Llama-shaped, float32 on CPU, no adapters."""
        weight, config = model.get_input_embeddings().weight, model.config
        if NUMBA_ERROR or weight.device.type != "cpu" or weight.dtype != torch.float32:
            return False
        if config.model_type not in KINDS or config.hidden_act != "silu":
            return False
        inner = body(model)
        linears = [m for layer in inner.layers for m in _linears(layer)]
        plain = all(type(m) is nn.Linear for m in (*linears, model.get_output_embeddings()))
        plain = plain and type(inner.embed_tokens) is nn.Embedding
        even = inner.layers[0].self_attn.head_dim % kernels.SPAN == 0
        fixed = inner.rotary_emb.rope_type in FIXED_ROPE
        return plain and even and fixed

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row.

        Return the next logits ``[N, V]``, and the numbers of tokens cached by this call or an earlier one.
        """
        counts = []
        for row, prompt in zip(rows, prompts, strict=True):
            keys = block_keys(prompt[:-1])  # the last token is always read, for its logits
            cached_pages = self._prefixes.known(keys)
            self.pages.begin(row, cached_pages, len(prompt))
            self._keep(row, keys, len(cached_pages))
            copied = self._copy_partial(row, prompt[:-1], keys[: len(cached_pages)])
            counts.append(len(cached_pages) * BLOCK + copied)
        hidden = self._hidden(prompts, counts, [len(prompt) - 1 for prompt in prompts], rows)
        logits = self._logits(len(prompts))

        def work(start: int, stop: int) -> None:
            kernels.vocabulary(self._weights, hidden[start:stop], logits[start:stop])

        self._share(len(prompts), work)
        return torch.from_numpy(logits)[:, : self._vocabulary], counts

    def decode(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Append one token at its position to each of the first N rows. Return the next logits ``[N, V]``."""
        for row, position in enumerate(positions):
            if position % BLOCK == 0:
                self.pages.extend(row, position + 1)
        count = len(ids)
        tokens, logits = self._tokens(ids, range(count), positions), self._logits(count)
        kernels.compare(tokens.pages, tokens.places, tokens.common)

        def work(start: int, stop: int) -> None:
            kernels.decode(self._weights, tokens, start, stop, logits)

        self._share(count, work)
        return torch.from_numpy(logits)[:, : self._vocabulary]

    def leave(
        self, row: int, ids: Sequence[int], last_row: int, length: int, *, reuse: bool = True
    ) -> None:
        """Free a row with the tokens ``ids``, and move the last row into its place.

        Its pages are cached unless ``reuse`` is False: some were computed by older weights.
        """
        keys = block_keys(ids, part=True) if reuse else []
        self._keep(row, keys, 0)
        for block, (previous_key, key) in enumerate(pairwise((b"", *keys))):
            page = self.pages.page(row, block)
            if self._prefixes.known([key]) == [page]:
                self._index.add(page, previous_key, tuple(ids[block * BLOCK : (block + 1) * BLOCK]))
        self.pages.leave(row, last_row)

    def forget(self) -> None:
        self._prefixes.clear()

    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """Compute log-probs of ``ids[start:]`` of sequences with equal first ``start`` ids, in rows from ``free``."""
        ordered = sorted(set(sequences))  # adjacent sequences share the longest prefixes
        scores: dict[tuple[int, ...], list[float]] = {}
        try:
            for begin in range(0, len(ordered), SCORED):
                part = ordered[begin : begin + SCORED]
                scores |= zip(part, self._score(part, start, free), strict=True)
        except BaseException:
            self.forget()  # it may have incomplete pages
            raise
        finally:
            for row in range(free, free + min(len(ordered), SCORED)):
                self.pages.drop(row)
        return [scores[ids] for ids in sequences]

    def _score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """Score sorted sequences, one per row, reusing the blocks and scores of the prefix shared with the previous."""
        keys = block_keys(sequences[0][: start - 1])
        shared, begins = self._prefixes.known(keys), []
        for row, ids in enumerate(sequences, free):
            if row > free:
                alike = same(sequences[row - free - 1], ids[:-1])
                shared = [self.pages.page(row - 1, block) for block in range((alike - 1) // BLOCK)]
            self.pages.begin(row, shared, len(ids) - 1)
            begins.append(len(shared) * BLOCK)
        self._keep(free, keys, begins[0] // BLOCK)
        firsts = [max(begin, start - 1) for begin in begins]
        contexts, rows = [ids[:-1] for ids in sequences], range(free, free + len(sequences))
        hidden = self._hidden(contexts, begins, firsts, rows)
        ends = [ids[start + 1 :] for ids, start in zip(sequences, firsts, strict=True)]
        targets = np.array([token for end in ends for token in end], np.int64)
        logprobs = np.empty(len(targets), np.float32)

        def work(start: int, stop: int) -> None:
            arguments = hidden[start:stop], targets[start:stop], self._vocabulary
            kernels.likelihoods(self._weights, *arguments, logprobs[start:stop])

        self._share(len(targets), work)
        parts = np.split(logprobs, np.cumsum([len(end) for end in ends])[:-1])
        scores = [part.tolist() for part in parts]
        for i in range(1, len(scores)):
            scores[i] = scores[i - 1][: firsts[i] - (start - 1)] + scores[i]
        return scores

    def _copy_partial(self, row: int, ids: tuple[int, ...], cached_keys: Sequence[bytes]) -> int:
        """Copy the longest cached match for the block after the known ones. Return its number of tokens."""
        position = len(cached_keys) * BLOCK
        previous_key = cached_keys[-1] if cached_keys else b""
        page, count = self._index.closest(previous_key, ids[position : position + BLOCK])
        if count:
            self.pages.copy(page, self.pages.page(row, len(cached_keys)))
        return count

    def _dropped(self, page: int) -> None:
        self._index.drop(page)
        self.pages.release(page)

    def _keep(self, row: int, keys: Sequence[bytes], first_block: int) -> None:
        for block in range(first_block, len(keys)):
            page = self.pages.page(row, block)
            if self._prefixes.put(keys[block], page):
                self.pages.keep(page)

    def _hidden(
        self,
        sequences: Sequence[Sequence[int]],
        begins: Sequence[int],
        firsts: Sequence[int],
        rows: Sequence[int],
    ) -> np.ndarray:
        """Compute the last layer's hidden states of each sequence's tokens from position ``firsts``, concatenated.

        The first ``begins`` tokens are already in the pages, or in shared pages of an earlier sequence of this call.
        """
        counts = [len(ids) - begin for ids, begin in zip(sequences, begins, strict=True)]
        ids = np.concatenate([ids[n:] for ids, n in zip(sequences, begins, strict=True)])
        positions = np.concatenate(
            [range(n, len(ids)) for ids, n in zip(sequences, begins, strict=True)]
        )
        owners, mask = np.repeat(rows, counts), positions >= np.repeat(firsts, counts)
        hidden, done = np.empty((mask.sum(), self._weights.embedding.shape[1]), np.float32), 0
        for start in range(0, len(ids), TOKENS):
            part = slice(start, start + TOKENS)
            tokens = self._tokens(ids[part], owners[part], positions[part])
            for layer in range(len(self._weights.before) + 1):
                self._layer(tokens, layer)
            outputs = tokens.hidden[mask[part]]
            hidden[done : done + len(outputs)] = outputs
            done += len(outputs)
        return hidden

    def _tokens(self, ids: Any, rows: Any, positions: Any) -> "kernels.Tokens":
        weights, pages = self._weights, self.pages
        return kernels.Tokens(
            ids=np.array(ids, np.int64),
            rows=np.array(rows, np.int64),
            places=np.array(positions, np.int64),
            common=np.zeros(len(ids), np.int64),
            pages=pages.table,
            keys=pages.keys,
            values=pages.values,
            hidden=np.empty((len(ids), weights.embedding.shape[1]), np.float32),
            joined=np.empty((len(ids), weights.qkv.shape[1] * kernels.PANEL), np.float32),
        )

    def _logits(self, rows: int) -> np.ndarray:
        return np.empty((rows, self._weights.head.shape[0] * kernels.PANEL), np.float32)

    def _share(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call ``work(first, stop)`` with a share of the rows on each thread; a tile takes hardly longer than a row."""
        threads = min(self._threads, -(-count // kernels.TILE))
        ends = [count * n // threads for n in range(threads + 1)]
        self._together([(work, *pair) for pair in pairwise(ends)])

    def _layer(self, tokens: "kernels.Tokens", layer: int) -> None:
        tiles = -(-len(tokens.ids) // kernels.TILE)
        threads = min(self._threads, tiles)
        chunk = min(kernels.CHUNK, -(-tiles // threads) * kernels.TILE)
        arguments = kernels.read, self._weights, tokens, layer
        self._together([(*arguments, share, threads, chunk) for share in range(threads)])

    def _together(self, calls: Sequence[tuple[Any, ...]]) -> None:
        futures = [self._pool.submit(*call) for call in calls[1:]]
        function, *arguments = calls[0]
        try:
            function(*arguments)
        finally:
            for future in futures:
                future.result()


def _linears(layer: Any) -> list[nn.Linear]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    ]


def _products(layers: Sequence[Any]) -> dict[str, np.ndarray]:
    products = {}
    parts = {"qkv": slice(0, 3), "out": slice(3, 4), "gate_up": slice(4, 6), "down": slice(6, 7)}
    for name, part in parts.items():
        joined = [_linears(layer)[part] for layer in layers]
        products[name] = np.stack(
            [_panels(np.concatenate([_array(layer.weight) for layer in ones])) for ones in joined]
        )
        products[f"{name}_bias"] = np.stack(
            [np.concatenate([_bias(layer) for layer in ones]) for ones in joined]
        )
    return products


def _bias(linear: nn.Linear) -> np.ndarray:
    return np.zeros(linear.out_features, np.float32) if linear.bias is None else _array(linear.bias)


def _angles(inner: Any, length: int) -> dict[str, np.ndarray]:
    cos, sin = inner.rotary_emb(inner.embed_tokens.weight, torch.arange(length)[None])
    half = cos.shape[-1] // 2  # the other half repeats it
    return {"cos": _array(cos[0, :, :half]), "sin": _array(sin[0, :, :half])}


def _panels(weight: np.ndarray) -> np.ndarray:
    """Pack ``weight [outputs, inputs]`` as ``[panels, inputs, PANEL]``, with outputs padded by zeros."""
    outputs, inputs = weight.shape
    panels = -(-outputs // kernels.PANEL)
    filled = np.zeros((panels * kernels.PANEL, inputs), np.float32)
    filled[:outputs] = weight
    return np.ascontiguousarray(filled.reshape(panels, -1, inputs).transpose(0, 2, 1))


def _array(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.detach().numpy())
