"""What the web said, kept in a SQLite file for a while: it may be used by several processes, and outlives them."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from coterie.errors import UserError

APPLICATION = 0x636F7743
"""In the header of the file, so that no other file is taken for one of these."""
WAIT = 30.0
"""Seconds for another process that writes."""
TIDY = 100
"""New entries after which old ones are removed."""


class Cache:
    """Texts by key, each for ``seconds``; the oldest leave when there are more than ``entries``. To be closed.

    Raises ``UserError`` for a file that is not such a cache. ``now`` is the clock, in seconds.
    """

    def __init__(
        self, file: Path, seconds: float, entries: int, now: Callable[[], float] = time.time
    ) -> None:
        self.file = file
        self._seconds = seconds
        self._entries = entries
        self._now = now
        self._new = 0
        self._lock = threading.Lock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(
                file, timeout=WAIT, check_same_thread=False, isolation_level=None
            )
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"the cache {file} can't be used: {error}", "give another file, or remove it"
            ) from error

    async def get(self, key: str) -> str | None:
        """The text of a key; ``None`` if there is none, or it is too old."""
        return await asyncio.to_thread(self._get, key)

    async def put(self, key: str, text: str) -> None:
        """Keep a text, which replaces the key's older one."""
        await asyncio.to_thread(self._put, key, text)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()

    def _prepare(self) -> None:
        (mark,) = self._base.execute("PRAGMA application_id").fetchone()
        (tables,) = self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if mark != APPLICATION and tables:
            self._base.close()
            raise sqlite3.DatabaseError("it is the file of another program")
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=NORMAL")
        self._base.execute(f"PRAGMA application_id={APPLICATION}")
        self._base.execute(
            "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, at REAL NOT NULL, text TEXT NOT NULL)"
        )
        self._base.execute("CREATE INDEX IF NOT EXISTS by_time ON kept (at)")

    def _get(self, key: str) -> str | None:
        with self._lock:
            row = self._base.execute("SELECT at, text FROM kept WHERE key = ?", (key,)).fetchone()
        if row is None or self._now() - row[0] >= self._seconds:
            return None
        return str(row[1])

    def _put(self, key: str, text: str) -> None:
        with self._lock:
            self._base.execute(
                "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (key, self._now(), text)
            )
            self._new += 1
            if self._new % TIDY == 0 or self._new == 1:
                self._tidy()

    def _tidy(self) -> None:
        with suppress(sqlite3.OperationalError):  # another process is at it
            self._base.execute("DELETE FROM kept WHERE at <= ?", (self._now() - self._seconds,))
            self._base.execute(
                "DELETE FROM kept WHERE key IN (SELECT key FROM kept ORDER BY at DESC LIMIT -1 OFFSET ?)",
                (self._entries,),
            )
