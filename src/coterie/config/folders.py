r"""Atomic writes of files and folders, coterie's home folder, valid text in JSON, and the date of a run.

JSON and YAML can contain a lone surrogate (``"\ud800"``), half of a character, which tokenizers, files and servers
reject. A run may take several days. Everything that is loaded while it is open uses the date on which its folder was
made.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from coterie.errors import UserError

MAX_DEPTH = 100
"""Maximum nesting of values for :func:`shallow`, far below Python's recursion limit."""

_SPELLED = re.compile(r"\\u[dD][89a-fA-F]")


def encoded(text: str, name: str) -> bytes:
    """Encode a text. Raise ``UserError``, which names the text ``name``, for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        wrong = _explain(error)
        raise UserError(f"{name} holds {wrong}", "write the full character or remove it") from error


def read_json(text: str) -> Any:
    """Parse JSON. Raise ``ValueError`` for invalid JSON, a lone surrogate or too deep nesting."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    # JSON spells a lone surrogate only by an escape, so the slow check is rarely needed.
    return whole(value) if _SPELLED.search(text) else value


def whole(value: Any) -> Any:
    """Return a JSON value unchanged. Raise ``ValueError`` if it contains a lone surrogate."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds {_explain(error)}") from error
    return value


def shallow(value: Any) -> Any:
    """Return a JSON value unchanged. Raise ``ValueError`` if it nests deeper than ``MAX_DEPTH`` levels."""
    # The value is searched level by level, because a recursion could exceed its limit.
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [
            value.values() if isinstance(value, Mapping) else value
            for value in level
            if isinstance(value, Mapping | list | tuple)
        ]
        if not inner:
            return value
        level = [value for several in inner for value in several]
    raise ValueError(f"it nests too deep (more than {MAX_DEPTH} levels)")


def _explain(error: UnicodeEncodeError) -> str:
    code = f"\\u{ord(error.object[error.start]):04x}"
    return f"half a character (the lone surrogate {code}, at character {error.start + 1})"


_pinned: list[list[date]] = []


@contextmanager
def pinned(day: date) -> Iterator[None]:
    """Freeze :func:`today` inside the block."""
    entry = [day]
    _pinned.append(entry)
    try:
        yield
    finally:
        # Blocks may end in another order than they began, so the entry is found by identity.
        _pinned[:] = [pin for pin in _pinned if pin is not entry]


def today() -> date:
    """Return the date that was pinned last, or else the current date."""
    return _pinned[-1][0] if _pinned else date.today()


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


def check_name(path: Path) -> None:
    """Raise ``UserError`` for a path with control characters, which begin new lines in batch files and logs."""
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", str(path)):
        problem = f"the path {str(path)!r} has control characters"
        raise UserError(problem, "give a name without them")


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if missing. Raise ``UserError`` if it is not writable."""
    check_name(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Only writing a file tells whether the folder is writable.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UserError(
            f"can't write in the folder {folder}: {reason_of(error)}", "give a writable folder"
        ) from error


def check_new(path: Path, todo: str = "remove it or give another name") -> None:
    """Create the parent of a new file or folder. Raise ``UserError`` if it exists or can't be created."""
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} already exists", todo)
    make_folder(path.parent)


@contextmanager
def atomic_file(file: Path) -> Iterator[Path]:
    """Yield a temporary path and rename it to ``file`` at the end of the block. Remove it if the block fails.

    Raises ``UserError`` like :func:`check_new`.
    """
    check_new(file)
    # In the same folder, because a rename is atomic only within a file system.
    part = file.with_name(f"{file.name}.part")
    try:
        yield part
        part.rename(file)
    finally:
        part.unlink(missing_ok=True)


def reason_of(error: OSError) -> str:
    """Return the system's reason why a path can't be used."""
    if isinstance(error, FileExistsError):
        return "a file of that name already exists"
    return error.strerror or str(error)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, flush it to disk and rename it to ``target`` at the end of the block.

    Replaces an existing ``target``. Removes the temporary folder if the block fails. The caller must prevent
    concurrent calls for one target. Raises ``UserError`` if the parent is not writable.
    """
    make_folder(target.parent)
    partial = target.with_name(f".{target.name}.partial")
    # A process that was killed may have left it.
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        yield partial
        # Flushed before the rename, so that a crash leaves no incomplete folder under the final name.
        for path in [*partial.rglob("*"), partial]:
            flush(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    # A folder that is not empty cannot be replaced by a rename, so the old one moves away first.
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    # The rename is on disk only when the parent is flushed.
    flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def flush(path: Path) -> None:
    """Flush a file or the entries of a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def home() -> Path:
    """Return the folder, which may not exist yet."""
    folder = os.environ.get("COTERIE_HOME")
    return expanded(folder) if folder else Path.home() / ".cache" / "coterie"


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Create a :func:`atomic_folder` under a lock.

    Raises ``UserError`` if another process holds the lock or the folder can't be created.
    """
    try:
        make_folder(target.parent)
    except UserError as error:
        raise UserError(
            error.what, "make it writable, or set COTERIE_HOME to another folder"
        ) from error
    # The system releases the lock when the process ends, even if it is killed.
    with open(target.with_name(f".{target.name}.lock"), "a", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another command is creating {target}", "wait until it ends") from None
        with atomic_folder(target) as partial:
            yield partial


def sha256(file: Path) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
