"""Rows of a Llama-shaped model on CPU, with compiled loops over paged keys and values.

A shared prefix is read once: of the prompts of a call, of earlier prompts with their completions, and of sequences to
score. Prefill and decode give bitwise the same results.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from coterie.engines.compiled.llama import CompiledLlama
from coterie.engines.prefixes import BLOCK, BlockIndex, PrefixCache, block_keys, same

NO_KEY = b""
"""Key before the first block."""
SCORED = 32


class PagedRows:
    """:class:`~coterie.engines.rows.ScoringRows` with compiled loops."""

    def __init__(self, model: CompiledLlama, cache_bytes: int) -> None:
        self.model = model
        self.pages = model.pages()
        self._prefixes = PrefixCache[int](cache_bytes // self.pages.page_bytes, self._dropped)
        self._index = BlockIndex()
        """Cached pages of finished rows, which are completely computed."""

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row.

        Return the next logits ``[N, V]``, and the numbers of tokens cached by this call or an earlier one.
        """
        counts = []
        for row, prompt in zip(rows, prompts, strict=True):
            keys = block_keys(prompt[:-1])  # the last token is always read, for its logits
            known = self._prefixes.known(keys)
            self.pages.begin(row, known, len(prompt))
            self._keep(row, keys, len(known))
            copied = self._copy_partial(row, prompt[:-1], keys[: len(known)])
            counts.append(len(known) * BLOCK + copied)
        return self.model.read(prompts, counts, rows, self.pages), counts

    def decode(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Append one token at its position to each of the first N rows. Return the next logits ``[N, V]``."""
        for row, place in enumerate(places):
            if place % BLOCK == 0:
                self.pages.extend(row, place + 1)
        return self.model.decode(tokens, places, self.pages)

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of a row to free rows."""
        self.pages.fork(source, targets, length)

    def arrange(self, count: int) -> Sequence[int]:
        """Reorder the first N rows so that rows with shared pages are adjacent. Return their old indices."""
        return self.pages.arrange(count)

    def leave(self, row: int, ids: Sequence[int], last: int, length: int) -> None:
        """Cache the pages of a row with the tokens ``ids``, free it, and move the last row into its place."""
        keys = block_keys(ids, part=True)
        self._keep(row, keys, 0)
        for block, (before, key) in enumerate(pairwise((NO_KEY, *keys))):
            page = self.pages.page(row, block)
            if self._prefixes.known([key]) == [page]:
                self._index.add(page, before, tuple(ids[block * BLOCK : (block + 1) * BLOCK]))
        self.pages.leave(row, last)

    def forget(self) -> None:
        """Drop the cached prefixes."""
        self._prefixes.clear()

    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """Compute log-probs of ``ids[start:]`` of sequences with the same first ``start`` ids.

        Rows from ``free`` on are free.
        """
        ordered = sorted(set(sequences))  # adjacent sequences share the longest prefixes
        scores: dict[tuple[int, ...], list[float]] = {}
        try:
            for first in range(0, len(ordered), SCORED):
                part = ordered[first : first + SCORED]
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
        rows = range(free, free + len(sequences))
        logprobs = self.model.score(sequences, begins, firsts, rows, self.pages)
        for i in range(1, len(logprobs)):
            logprobs[i] = logprobs[i - 1][: firsts[i] - (start - 1)] + logprobs[i]
        return logprobs

    def _copy_partial(self, row: int, ids: tuple[int, ...], known: Sequence[bytes]) -> int:
        """Copy the longest cached match for the block after the known ones. Return its number of tokens."""
        place = len(known) * BLOCK
        page, count = self._index.closest(
            known[-1] if known else NO_KEY, ids[place : place + BLOCK]
        )
        if count:
            self.pages.copy(page, self.pages.page(row, len(known)))
        return count

    def _dropped(self, page: int) -> None:
        self._index.drop(page)
        self.pages.release(page)

    def _keep(self, row: int, keys: Sequence[bytes], first: int) -> None:
        for block in range(first, len(keys)):
            page = self.pages.page(row, block)
            if self._prefixes.put(keys[block], page):
                self.pages.keep(page)
