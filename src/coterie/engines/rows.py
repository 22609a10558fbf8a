"""Protocol of the running sequences of a model in the in-process engine, one row each.

The first rows are in use, the others are free.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


class DecodingRows(Protocol):
    """Rows of :mod:`coterie.engines.compiled` or :class:`~coterie.engines.padded.PaddedRows`."""

    def prefill(
        self, rows: Sequence[int], prompts: Sequence[tuple[int, ...]]
    ) -> tuple[Tensor, list[int]]:
        """Read each prompt into its row. Return the next logits ``[N, V]`` and the numbers of cached tokens."""
        ...

    def decode(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Append one token at its position to each of the first N rows. Return the next logits ``[N, V]``."""
        ...

    def fork(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of a row to free rows."""
        ...

    def arrange(self, count: int) -> Sequence[int]:
        """Reorder the first N rows for the fastest decoding. Return their old indices."""
        ...

    def leave(self, row: int, ids: Sequence[int], last: int, length: int) -> None:
        """Free a row with the tokens ``ids``, and move the last row, of ``length`` tokens, into its place."""
        ...

    def forget(self) -> None:
        """Drop the cached prefixes."""
        ...


@runtime_checkable
class ScoringRows(DecodingRows, Protocol):
    """Rows that also score tokens."""

    def score(
        self, sequences: Sequence[tuple[int, ...]], start: int, free: int
    ) -> list[list[float]]:
        """Compute log-probs of ``ids[start:]`` of sequences with the same first ``start`` ids.

        Rows from ``free`` on are free.
        """
        ...
