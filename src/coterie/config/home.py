"""The folder in which coterie keeps what it downloads and converts, and how things get into it whole.

It is ``$COTERIE_HOME``, or ``~/.cache/coterie``; data sets lie in ``data``, converted models in ``models``.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import UserError


def home() -> Path:
    """The folder itself, which need not exist yet."""
    chosen = os.environ.get("COTERIE_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "coterie"


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``target``, whole and on disk, when the block ends well.

    An older ``target`` is replaced. If the block fails, nothing is left. Raises ``UserError`` while
    another process makes the same folder, or if it can't be made.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = open(target.with_name(f".{target.name}.lock"), "a", encoding="ascii")  # noqa: SIM115
    except OSError as error:
        raise UserError(
            f"can't make {target}: {error.strerror}",
            "make its folder writable, or set COTERIE_HOME to another folder",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another command is making {target} just now", "wait until it has ended"
            ) from None
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            for path in [*partial.rglob("*"), partial]:
                _flush(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _replace(partial, target)


def sha256(file: Path) -> str:
    """Checksum of a file's bytes, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _replace(partial: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    _flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
