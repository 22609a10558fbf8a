"""Folder of downloads and converted models: ``$COTERIE_HOME``, by default ``~/.cache/coterie``.

Data sets are in ``data``, converted models in ``models``.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.config.folders import expanded, make_folder, whole_folder
from coterie.errors import UserError


def home() -> Path:
    """Return the folder, which may not exist yet."""
    folder = os.environ.get("COTERIE_HOME")
    return expanded(folder) if folder else Path.home() / ".cache" / "coterie"


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Create a :func:`~coterie.config.folders.whole_folder` under a lock.

    Raises ``UserError`` if another process holds the lock or the folder can't be created.
    """
    try:
        make_folder(target.parent)
    except UserError as error:
        raise UserError(
            error.what, "make it writable, or set COTERIE_HOME to another folder"
        ) from error
    with open(target.with_name(f".{target.name}.lock"), "a", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another command is creating {target}", "wait until it ends") from None
        with whole_folder(target) as partial:
            yield partial


def sha256(file: Path) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
