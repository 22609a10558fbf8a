"""Keys and values in pages of ``BLOCK`` tokens, which sequences share for as long as they are the same.

A row is a running sequence: a list of pages. A page that several rows begin with, or that is kept for
prompts to come, is there once; each user is counted, and the last one to leave frees it.
"""

from collections.abc import Sequence

import numpy as np

from coterie.engines.prefixes import BLOCK

FIRST = 16
"""Room for so many rows, and for so many pages, to begin with; four times as much when it is too little."""


class Pages:
    """Keys ``[pages, layers, heads, width, BLOCK]``, values ``[pages, layers, heads, BLOCK, width]``."""

    def __init__(self, layers: int, heads: int, width: int) -> None:
        self._shape = layers, heads, width
        self.clear()

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        layers, heads, width = self._shape
        self.keys = np.zeros((FIRST, layers, heads, width, BLOCK), np.float32)
        self.values = np.zeros((FIRST, layers, heads, BLOCK, width), np.float32)
        self.table = np.zeros((FIRST, FIRST), np.int64)
        """``[rows, blocks]``: the pages of each row."""
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
        """A row begins with these pages, and gets pages of its own up to ``length`` tokens. What it was, if it was
        not free, ends."""
        for page in pages:
            self.keep(page)
        self._have_rows(row + 1)
        self.drop(row)
        self._rows[row] = list(pages)
        self._write(row, 0)
        self.extend(row, length)

    def extend(self, row: int, length: int) -> None:
        own = self._rows[row]
        had, wanted = len(own), -(-length // BLOCK)
        if had < wanted:
            own.extend(self._new() for _ in range(wanted - had))
            self._write(row, had)

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Rows begin with the first ``length`` tokens of another: they share its full pages, and each has
        a copy of what is on the next."""
        full, rest = divmod(length, BLOCK)
        for target in targets:
            self.begin(target, self._rows[source][:full], length)
            if rest:
                self.copy(self._rows[source][full], self._rows[target][full])

    def copy(self, source: int, target: int) -> None:
        self.keys[target], self.values[target] = self.keys[source], self.values[source]

    def leave(self, row: int, last: int) -> None:
        """A row ends, and the last one takes its place."""
        self.drop(row)
        if row != last:
            self._rows[row], self._rows[last] = self._rows[last], []
            self._write(row, 0)

    def arrange(self, count: int) -> list[int]:
        """Put the first ``count`` rows into an order in which those that begin alike are neighbours; the order."""
        order = sorted(range(count), key=self._rows.__getitem__)
        self._rows[:count] = [self._rows[row] for row in order]
        self.table[:count] = self.table[order]
        return order

    def drop(self, row: int) -> None:
        """A row ends; nothing happens if it is free."""
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
                self.keys, self.values = _grown(self.keys), _grown(self.values)
        self._users[page] = 1
        return page

    def _have_rows(self, rows: int) -> None:
        while rows > len(self._rows):
            self._rows += [[] for _ in range(3 * len(self._rows))]
            self.table = _grown(self.table)

    def _write(self, row: int, block: int) -> None:
        own = self._rows[row]
        while len(own) > self.table.shape[1]:
            self.table = np.ascontiguousarray(_grown(self.table.T).T)
        self.table[row, block : len(own)] = own[block:]


def _grown(old: np.ndarray) -> np.ndarray:
    """Four times as long; the system hands out memory as it is touched, so room that is not used costs nothing."""
    new = np.zeros((4 * len(old), *old.shape[1:]), old.dtype)
    new[: len(old)] = old
    return new
