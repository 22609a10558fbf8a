"""The folder in which coterie keeps what it downloads and converts, and how things get into it whole.

It is ``$COTERIE_HOME``, or ``~/.cache/coterie``; data sets lie in ``data``, converted models in ``models``.
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
    """The folder itself, which need not exist yet."""
    chosen = os.environ.get("COTERIE_HOME")
    return expanded(chosen) if chosen else Path.home() / ".cache" / "coterie"


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A :func:`~coterie.config.folders.whole_folder` that one process at a time makes.

    Raises ``UserError`` while another one does, or if it can't be made.
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
            raise UserError(
                f"another command is making {target} just now", "wait until it has ended"
            ) from None
        with whole_folder(target) as partial:
            yield partial


def sha256(file: Path) -> str:
    """Checksum of a file's bytes, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
