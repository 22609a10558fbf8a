"""Not asking an outside server for more than it allows, nor again before it says so.

All is in seconds of a monotonic clock: a jump of the wall clock changes nothing.
"""

import asyncio
import time
from email.utils import parsedate_to_datetime

BURST = 12
"""A twelfth of a minute's amount may be taken at once."""
ROUNDING = 1e-6
"""Of an amount; no reason to wait."""
MAX_WAIT = 120.0
"""Seconds that a server's ``Retry-After`` is believed at most."""
LOOK = 0.5
"""Seconds after which somebody who waits looks again: what others gave back may do."""


class Bucket:
    """An amount that may be taken in any minute (a token bucket).

    It holds at most a twelfth of that, at least 1, and fills so slowly that what is in it and what
    comes in a minute are ``per_minute`` together. An amount larger than the bucket may be taken
    from a full one, and is then owed.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._size = max(1.0, per_minute / BURST)
        self._rate = (per_minute - self._size + 1) / 60
        self._level = self._size
        self._at = now

    def missing(self, amount: float, now: float) -> float:
        """Seconds until so much can be taken; 0 if it can be now."""
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        short = min(amount, self._size) - self._level
        return short / self._rate if short > ROUNDING else 0.0

    def take(self, amount: float) -> None:
        self._level -= amount


class Limits:
    """Requests and tokens a minute; whoever comes first goes first."""

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        now = time.monotonic()
        self._requests = Bucket(requests, now) if requests else None
        self._tokens = Bucket(tokens, now) if tokens else None
        self._not_before = now
        self._turn = asyncio.Lock()

    async def admit(self, tokens: float) -> None:
        """Wait until a request of so many tokens may be made."""
        async with self._turn:
            while (wait := self._wait(tokens, time.monotonic())) > 0:
                await asyncio.sleep(min(wait, LOOK))
            for bucket, amount in self._amounts(tokens):
                bucket.take(amount)

    def settle(self, estimated: float, used: float) -> None:
        """Correct the tokens of a request that was admitted, now that they are known."""
        if self._tokens is not None:
            self._tokens.take(used - estimated)

    def pause(self, seconds: float) -> None:
        """Nobody asks for so long: the server has had enough."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _wait(self, tokens: float, now: float) -> float:
        waits = [bucket.missing(amount, now) for bucket, amount in self._amounts(tokens)]
        return max(self._not_before - now, *waits, 0.0)

    def _amounts(self, tokens: float) -> list[tuple[Bucket, float]]:
        both = ((self._requests, 1.0), (self._tokens, tokens))
        return [(bucket, amount) for bucket, amount in both if bucket is not None]


def retry_after(value: str | None, date: str | None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, bounded; ``None`` if it says nothing.

    It gives seconds or a date, which is compared with the reply's own ``Date``: the clock of the
    server, not ours.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            until, since = parsedate_to_datetime(value), parsedate_to_datetime(date or "")
            seconds = (until - since).total_seconds()
        except (ValueError, TypeError):  # no date, or one without a time zone
            return None
    return min(max(seconds, 0.0), MAX_WAIT) if seconds == seconds else None
