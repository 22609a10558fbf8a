"""Folders and files that are there whole and on disk, or not at all, whenever a process is killed; and whether a
place can be written to, asked before the work that is to be kept there."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Of a disk without room."""


def expanded(path: str | Path) -> Path:
    """A path as a person writes it, with ``~`` for a home folder; ``UserError`` for that of nobody here."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{path}: nobody of that name has a home folder on this machine", "give the whole path"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, unless it is there; ``UserError`` if nothing can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UserError(
            f"can't write in the folder {folder}: {reason_of(error)}",
            "give a folder that you may write in",
        ) from error


def check_new_file(file: Path) -> None:
    """Refuse (``UserError``) a file that is there already, or that can't be made; its folder is made."""
    if file.exists() or file.is_symlink():
        raise UserError(f"{file} exists already", "remove it, or give another name")
    make_folder(file.parent)


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """A temporary path that becomes the new ``file`` when the block ends well; if it fails, nothing is left.

    Raises ``UserError`` as :func:`check_new_file`.
    """
    check_new_file(file)
    part = file.with_name(f"{file.name}.part")
    try:
        yield part
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)


def check_new_folder(folder: Path, todo: str) -> None:
    """Refuse (``UserError``, with what to do) a folder that is there already, or that can't be made."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists already", todo)
    make_folder(folder.parent)


def reason_of(error: OSError) -> str:
    """Why a path can't be used, in the system's words."""
    if isinstance(error, FileExistsError):
        return "a file of that name is in the way"
    return error.strerror or str(error)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``target``, whole and on disk, when the block ends well.

    An older ``target`` is replaced. If the block fails, nothing is left. One process at a time may make
    a folder; see to that elsewhere. Raises ``UserError`` for a place that can't be written to.
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
