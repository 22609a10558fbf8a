"""The day on which something takes place, whatever the clock says.

A run is played over many days and is resumed. Its day is that on which its folder was made, and what is
loaded while it is open goes by that one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date

_pinned: list[list[date]] = []


@contextmanager
def pinned(day: date) -> Iterator[None]:
    entry = [day]
    _pinned.append(entry)
    try:
        yield
    finally:
        _pinned[:] = [other for other in _pinned if other is not entry]


def today() -> date:
    """The day that was pinned last; without one, the day by the clock."""
    return _pinned[-1][0] if _pinned else date.today()
