"""What the in-process engine asks of the running sequences of one model, a row each.

Rows in use are kept together at the front; those behind them are free.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


class DecodingRows(Protocol):
    """Two kinds: those of :mod:`coterie.engines.compiled`, and :class:`~coterie.engines.padded.PaddedRows`."""

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row. Logits after it ``[N, V]``, and how many of its tokens were
        there already."""
        ...

    def decode(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Logits ``[N, V]`` after one more token, at its place, in each of the first N rows."""
        ...

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Free rows begin with the first ``length`` tokens of another."""
        ...

    def arrange(self, count: int) -> Sequence[int]:
        """Put the first N rows into the order in which they are decoded fastest; where each was before."""
        ...

    def leave(self, row: int, ids: Sequence[int], last: int, length: int) -> None:
        """A row ends, which holds ``ids``, and the last one, of ``length`` tokens, takes its place."""
        ...

    def forget(self) -> None:
        """Drop the beginnings of prompts that are kept."""
        ...


@runtime_checkable
class ScoringRows(DecodingRows, Protocol):
    """Rows that also compute the log-probs of given tokens."""

    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """Log-probs of sequences from ``start`` on, before which all are the same. Rows from ``free`` on
        are free."""
        ...
