"""Disk access of a store: safe file systems, the writer lock, and explanations of SQLite errors."""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from coterie.errors import UserError
from coterie.trajectories.codec import BrokenRecord

UNSAFE = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "glusterfs"),
        *("gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "prl_fs", "smb2", "smb3", "smbfs"),
        *("vboxsf", "vmhgfs"),
    }
)
"""File systems that lack the shared memory or locks of SQLite's WAL mode."""
SAFE_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.overlayfs"})
"""FUSE file systems on a local disk; others may be remote."""


class Mount(Protocol):
    """Entry of the mount table, as in psutil."""

    @property
    def mountpoint(self) -> str: ...

    @property
    def fstype(self) -> str:
        """Type of the file system."""
        ...


def unsafe_filesystem(path: Path, mounts: Sequence[Mount]) -> str | None:
    """Return the type of the file system of ``path`` if WAL mode is unsafe there, else ``None``."""
    real, best = path.resolve(), ("", "")
    for mount in mounts:
        # Of equal mount points, the later one hides the earlier one.
        if real.is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= len(best[0]):
            best = (mount.mountpoint, mount.fstype.lower())
    kind = best[1]
    foreign_fuse = kind.startswith("fuse.") and kind not in SAFE_FUSE
    return kind if kind in UNSAFE or foreign_fuse else None


def check_place(path: Path) -> None:
    """Raise :class:`UserError` for a path where a store is unsafe."""
    if not path.parent.is_dir():
        raise UserError(f"the folder of {path} does not exist", "make it, or correct the path")
    if path.is_dir():
        raise UserError(f"{path} is a folder", "give the path of a file")
    kind = unsafe_filesystem(path, psutil.disk_partitions(all=True))
    if kind:
        raise UserError(
            f"{path} is on a {kind} file system, where SQLite can lose committed work",
            "put the run folder on a local disk; copy or export it when the run has ended",
        )


class WriterLock:
    """The right to write one store: an ``flock`` on ``PATH.lock``, which holds the writer's pid.

    The kernel drops it when the process ends, however it ends; the file stays.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = open(f"{path}.lock", "a+", encoding="ascii")  # noqa: SIM115
        except OSError as error:
            raise UserError(
                f"cannot write {path}.lock: {error.strerror}", "make its folder writable"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            pid = self._file.read().strip() or "unknown"
            self._file.close()
            raise UserError(
                f"{path} is being written by process {pid} (or by a child process of it)",
                "wait for it or end it; to read the store meanwhile, open it read-only",
            ) from error
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Convert SQLite errors that users can fix to :class:`UserError`."""
    try:
        yield
    except BrokenRecord as error:
        raise UserError(
            f"{path} is damaged: {error}", "restore it from a copy or from a JSONL export"
        ) from error
    except sqlite3.DatabaseError as error:
        explanation = _explanation(path, error)
        if explanation is None:
            raise
        raise explanation from error


def _explanation(path: Path, error: sqlite3.DatabaseError) -> UserError | None:
    """Explain an SQLite error; ``None`` for a bug of the program."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        free = shutil.disk_usage(path.parent).free / 2**20
        return UserError(
            f"could not write or read {path}: {error} ({free:.1f} MiB free on its disk); "
            "the current item was rolled back, and nothing committed is lost",
            "free some space or fix the disk, then run again: the run resumes where it stopped",
        )
    if code == sqlite3.SQLITE_NOTADB:
        return UserError(f"{path} is not an SQLite file", "give the path of a run's store")
    if code == sqlite3.SQLITE_CORRUPT:
        return UserError(
            f"{path} is damaged: {error}", "restore it from a copy or from a JSONL export"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return UserError(
            f"{path} is locked by a program other than coterie: {error}",
            "close the program that has it open (an SQLite shell, a backup)",
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return UserError(
            f"cannot open {path}: {error}",
            "check its permissions; WAL mode needs a writable folder, even for readers",
        )
    return None
