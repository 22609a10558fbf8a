"""What numba compiled of an earlier version of a file: it is removed, since numba can fail to read it.

numba asks whether an index is stale only after reading it, and reading fails where a class in it was renamed.
"""

from contextlib import suppress
from pathlib import Path


def drop_stale(source: Path, cache: str | None) -> None:
    """Remove the indexes in the folder ``cache`` (if any) that are older than the file ``source`` which they are of."""
    if cache is None:
        return
    changed = source.stat().st_mtime
    for index in Path(cache).glob(f"{source.stem}.*.nbi"):
        with suppress(OSError):  # another process removed it, or nobody may
            if index.stat().st_mtime < changed:
                index.unlink()
