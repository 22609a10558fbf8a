"""Atomic creation of files and folders, and checks that a path is writable."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk."""


def expanded(path: str | Path) -> Path:
    """Expand ``~`` in a path. Raise ``UserError`` for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{path}: there is no such user on this machine", "give the full path"
        ) from error


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if missing. Raise ``UserError`` if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UserError(
            f"can't write in the folder {folder}: {reason_of(error)}",
            "give a writable folder",
        ) from error


def check_new_file(file: Path) -> None:
    """Create the folder of a new file. Raise ``UserError`` if the file exists or can't be created."""
    if file.exists() or file.is_symlink():
        raise UserError(f"{file} already exists", "remove it or give another name")
    make_folder(file.parent)


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Yield a temporary path and rename it to ``file`` at the end of the block. Remove it if the block fails.

    Raises ``UserError`` like :func:`check_new_file`.
    """
    check_new_file(file)
    part = file.with_name(f"{file.name}.part")
    try:
        yield part
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)


def check_new_folder(folder: Path, todo: str) -> None:
    """Create the parent of a new folder. Raise ``UserError`` if the folder exists or can't be created."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} already exists", todo)
    make_folder(folder.parent)


def reason_of(error: OSError) -> str:
    """Return the system's reason why a path can't be used."""
    if isinstance(error, FileExistsError):
        return "a file of that name already exists"
    return error.strerror or str(error)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, flush it to disk and rename it to ``target`` at the end of the block.

    Replaces an existing ``target``. Removes the temporary folder if the block fails. The caller must prevent
    concurrent calls for one target. Raises ``UserError`` if the parent is not writable.
    """
    make_folder(target.parent)
    partial = target.with_name(f".{target.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            flush(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def flush(path: Path) -> None:
    """Flush a file or the entries of a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
