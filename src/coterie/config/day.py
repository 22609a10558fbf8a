"""Date for chat templates, fixed while a run is open.

A run may take several days and be resumed. Everything that is loaded while it is open uses the date on which its
folder was made.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date

_pinned: list[list[date]] = []


@contextmanager
def pinned(day: date) -> Iterator[None]:
    """Freeze :func:`today` inside the block."""
    entry = [day]
    _pinned.append(entry)
    try:
        yield
    finally:
        _pinned[:] = [other for other in _pinned if other is not entry]


def today() -> date:
    """Return the date that was pinned last, or else the current date."""
    return _pinned[-1][0] if _pinned else date.today()
