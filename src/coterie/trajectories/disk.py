"""The ground under a store: which file systems are safe, who writes, and what an error means."""

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
"""File systems without the shared memory or the locks that SQLite's WAL mode needs."""
SAFE_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.overlayfs"})
"""FUSE file systems over a local disk; any other ``fuse.*`` may lie on another machine."""


class Mount(Protocol):
    """What is needed of an entry of the mount table (as psutil gives it)."""

    @property
    def mountpoint(self) -> str: ...

    @property
    def fstype(self) -> str:
        """Type of the file system."""
        ...


def unsafe_filesystem(path: Path, mounts: Sequence[Mount]) -> str | None:
    """The type of the file system under ``path`` if WAL mode is unsafe on it, else ``None``."""
    real, found = path.resolve(), ("", "")
    for mount in mounts:
        # With equal mount points the later one hides the earlier one.
        if real.is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= len(found[0]):
            found = (mount.mountpoint, mount.fstype.lower())
    kind = found[1]
    foreign_fuse = kind.startswith("fuse.") and kind not in SAFE_FUSE
    return kind if kind in UNSAFE or foreign_fuse else None


def check_place(path: Path) -> None:
    """Refuse, with :class:`UserError`, a place where a store cannot safely be."""
    if not path.parent.is_dir():
        raise UserError(f"the folder of {path} does not exist", "make it, or correct the path")
    if path.is_dir():
        raise UserError(f"{path} is a folder", "give the path of a file")
    kind = unsafe_filesystem(path, psutil.disk_partitions(all=True))
    if kind:
        raise UserError(
            f"{path} lies on a {kind} file system, on which SQLite can lose committed work",
            "put the run folder on a local disk; copy it over when the run has ended, "
            "or export it there as JSONL",
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
                f"{path} is being written by process {pid} (or by a child that it left behind)",
                "wait for it or end it; to look at the store meanwhile, open it read-only",
            ) from error
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an SQLite error that a person can fix into a :class:`UserError`; let others pass."""
    try:
        yield
    except BrokenRecord as error:
        raise UserError(
            f"{path} is damaged: {error}", "restore it from a copy or from a JSONL export"
        ) from error
    except sqlite3.DatabaseError as error:
        meaning = _meaning(path, error)
        if meaning is None:
            raise
        raise meaning from error


def _meaning(path: Path, error: sqlite3.DatabaseError) -> UserError | None:
    """What an SQLite error means to a person; ``None`` for a mistake of the program."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        free = shutil.disk_usage(path.parent).free / 2**20
        return UserError(
            f"could not write or read {path}: {error} ({free:.1f} MiB free on its disk); "
            "the item in hand was rolled back, and nothing committed is lost",
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
