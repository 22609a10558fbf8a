"""The row that a person sees before a training: its text, and which parts of it are not trained."""

from itertools import groupby
from operator import itemgetter

from coterie.models.chat import ChatRenderer
from coterie.trajectories.row import Row

MOST_SHOWN = 1500
"""Characters of the row that are shown."""


def shown_row(renderer: ChatRenderer, row: Row) -> str:
    """A row as text: what is not trained stands in double brackets. Of a long one its beginning and its end."""
    half = MOST_SHOWN // 2
    if len(row.ids) > MOST_SHOWN:
        # What a token adds is found by decoding all before it, so few are decoded.
        first, last = slice(half), slice(-half, None)
        return (
            f"{_bracketed(renderer, row, first)[:half]} … {_bracketed(renderer, row, last)[-half:]}"
        )
    text = _bracketed(renderer, row, slice(None))
    return text if len(text) <= MOST_SHOWN else f"{text[:half]} … {text[-half:]}"


def _bracketed(renderer: ChatRenderer, row: Row, part: slice) -> str:
    pieces = zip(row.mask[part], renderer.pieces(row.ids[part]), strict=True)
    spans = (
        (own, "".join(text for _, text in some)) for own, some in groupby(pieces, itemgetter(0))
    )
    return "".join(one if own else f"[[{one}]]" for own, one in spans)
