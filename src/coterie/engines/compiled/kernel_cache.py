"""Removal of numba's stale compilation caches.

Numba checks if an index is stale only after reading it, and reading fails if a class in it was renamed.
"""

from contextlib import suppress
from pathlib import Path


def drop_stale(source: Path, cache: str | None) -> None:
    """Remove the indexes of the file ``source`` in the folder ``cache`` (if any) that are older than the file."""
    if cache is None:
        return
    changed = source.stat().st_mtime
    for index in Path(cache).glob(f"{source.stem}.*.nbi"):
        with suppress(OSError):  # removed by another process, or read-only
            if index.stat().st_mtime < changed:
                index.unlink()
