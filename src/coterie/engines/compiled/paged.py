"""Rows of a Llama-shaped model on CPU: compiled loops over pages of keys and values.

Whatever begins alike is read once: prompts of one call, and of later ones together with what was said to them, and
sequences to be scored. Reading and sampling give a token the same bits.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from coterie.engines.compiled.llama import CompiledLlama
from coterie.engines.prefixes import BLOCK, BlockIndex, PrefixCache, block_keys, same

NO_KEY = b""
"""Before the first block."""
SCORED = 32


class PagedRows:
    """:class:`~coterie.engines.rows.ScoringRows` by compiled loops."""

    def __init__(self, model: CompiledLlama, cache_bytes: int) -> None:
        self.model = model
        self.pages = model.pages()
        self._prefixes = PrefixCache[int](cache_bytes // self.pages.page_bytes, self._dropped)
        self._index = BlockIndex()
        """Of the kept pages, those of rows that ended: they were computed whole."""

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row. Logits after it ``[N, V]``, and how many of its tokens were
        there already, from this call or an earlier one."""
        counts = []
        for row, prompt in zip(rows, prompts, strict=True):
            keys = block_keys(prompt[:-1])  # the last token is always read, for its logits
            known = self._prefixes.known(keys)
            self.pages.begin(row, known, len(prompt))
            self._keep(row, keys, len(known))
            counts.append(len(known) * BLOCK + self._go_on(row, prompt[:-1], keys[: len(known)]))
        return self.model.read(prompts, counts, rows, self.pages), counts

    def decode(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Logits ``[N, V]`` after one more token in each of the first N rows."""
        for row, place in enumerate(places):
            if place % BLOCK == 0:
                self.pages.extend(row, place + 1)
        return self.model.decode(tokens, places, self.pages)

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Free rows begin with the first ``length`` tokens of another."""
        self.pages.fork(source, targets, length)

    def arrange(self, count: int) -> Sequence[int]:
        """Put the first N rows into another order, such that those that share pages are neighbours; the order."""
        return self.pages.arrange(count)

    def leave(self, row: int, ids: Sequence[int], last: int, length: int) -> None:
        """A row ends, which holds ``ids``: they may begin a later prompt. The last one takes its place."""
        keys = block_keys(ids, part=True)
        self._keep(row, keys, 0)
        for block, (before, key) in enumerate(pairwise((NO_KEY, *keys))):
            page = self.pages.page(row, block)
            if self._prefixes.known([key]) == [page]:
                self._index.add(page, before, tuple(ids[block * BLOCK : (block + 1) * BLOCK]))
        self.pages.leave(row, last)

    def forget(self) -> None:
        """Drop the kept beginnings."""
        self._prefixes.clear()

    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """Log-probs of sequences from ``start`` on, before which all are the same. Rows from ``free`` on
        are free."""
        ordered = sorted(set(sequences))  # neighbours share most
        scores: dict[tuple[int, ...], list[float]] = {}
        try:
            for first in range(0, len(ordered), SCORED):
                part = ordered[first : first + SCORED]
                scores |= zip(part, self._score(part, start, free), strict=True)
        except BaseException:
            self.forget()  # it may hold what was not computed
            raise
        finally:
            for row in range(free, free + min(len(ordered), SCORED)):
                self.pages.drop(row)
        return [scores[ids] for ids in sequences]

    def _score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """The same of sequences in order, one to a row: each goes on from the blocks that it has in common with
        the one before it, and takes over that one's scores."""
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

    def _go_on(self, row: int, ids: tuple[int, ...], known: Sequence[bytes]) -> int:
        """Copy what a kept page has of the block after the known ones; of how many tokens."""
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
