"""Rate limits of an external server, and its ``Retry-After``, in seconds of a monotonic clock."""

import asyncio
import time
from email.utils import parsedate_to_datetime

BURST = 12
"""Divisor of the amount per minute that gives the size of a bucket."""
ROUNDING = 1e-6
"""Rounding error of an amount, which is not a reason to wait."""
MAX_WAIT = 120.0
"""Upper bound in seconds for a server's ``Retry-After``."""
LOOK = 0.5
"""Seconds between checks while waiting, because other requests may return amounts."""


class Bucket:
    """Token bucket with a limit per minute.

    Its size is a twelfth of the limit, at least 1. It fills at a rate such that the size and the inflow of a minute are
    ``per_minute`` together. An amount larger than the bucket can be taken from a full one, which then has a debt.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._size = max(1.0, per_minute / BURST)
        self._rate = (per_minute - self._size + 1) / 60
        self._level = self._size
        self._at = now

    def missing(self, amount: float, now: float) -> float:
        """Return the seconds until the amount is available; 0 if it is now."""
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        short = min(amount, self._size) - self._level
        return short / self._rate if short > ROUNDING else 0.0

    def take(self, amount: float) -> None:
        self._level -= amount


class Limits:
    """Limits of requests and tokens per minute, first come, first served."""

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        now = time.monotonic()
        self._requests = Bucket(requests, now) if requests else None
        self._tokens = Bucket(tokens, now) if tokens else None
        self._not_before = now
        self._turn = asyncio.Lock()

    async def admit(self, tokens: float) -> None:
        """Wait until a request with this number of tokens is allowed."""
        async with self._turn:
            while (wait := self._wait(tokens, time.monotonic())) > 0:
                await asyncio.sleep(min(wait, LOOK))
            for bucket, amount in self._amounts(tokens):
                bucket.take(amount)

    def settle(self, estimated: float, used: float) -> None:
        """Correct the estimated tokens of an admitted request."""
        if self._tokens is not None:
            self._tokens.take(used - estimated)

    def pause(self, seconds: float) -> None:
        """Stop all requests for this time, as the server requests."""
        self._not_before = max(self._not_before, time.monotonic() + seconds)

    def _wait(self, tokens: float, now: float) -> float:
        waits = [bucket.missing(amount, now) for bucket, amount in self._amounts(tokens)]
        return max(self._not_before - now, *waits, 0.0)

    def _amounts(self, tokens: float) -> list[tuple[Bucket, float]]:
        both = ((self._requests, 1.0), (self._tokens, tokens))
        return [(bucket, amount) for bucket, amount in both if bucket is not None]


def retry_after(value: str | None, date: str | None) -> float | None:
    """Parse a ``Retry-After`` header to bounded seconds; ``None`` if it is missing or invalid.

    A date is compared with the ``Date`` of the reply, which has the same clock.
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
