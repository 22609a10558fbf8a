"""Files of stores: unsafe file systems, one writing process, errors with a fix, and copies of a stage between files."""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.errors import UserError
from coterie.record.tables import BrokenRecord, kind_key

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
RESTORE = "restore it from a copy, or start a new run folder"
REPAIR = "restore it from a copy, or drop its damaged items (coterie repair RUN) and run again"
SYMPTOMS = ("user-defined function raised", "Could not decode", "unsupported file format")
"""Parts of SQLite's messages about damage that have no error code: invalid UTF-8, and a version of the format."""
PROBLEMS = {
    (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR): (
        "could not write or read {path}: {error} ({free:.1f} MiB free on its disk); the current item was rolled "
        "back, and nothing committed is lost",
        "free some space or fix the disk, then run again: the run resumes where it stopped",
    ),
    (sqlite3.SQLITE_NOTADB,): ("{path} is not an SQLite file", "give the path of a run's store"),
    (sqlite3.SQLITE_CORRUPT,): ("{path} is damaged: {error}", RESTORE),
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED): (
        "{path} is locked by a program other than coterie: {error}",
        "close the program that has it open (an SQLite shell, a backup)",
    ),
    (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM): (
        "cannot read or write {path}: {error}",
        "check its permissions; WAL mode needs a writable folder, even for readers",
    ),
}
"""Problems and fixes by primary error codes of SQLite. Other errors are bugs of the program."""


def unsafe_filesystem(path: Path, mounts: Iterable[Any]) -> str | None:
    """Return the type of the file system of ``path`` if WAL mode is unsafe there; ``mounts`` are psutil's."""
    real, best = path.resolve(), ("", "")
    for mount in mounts:
        # Of equal mount points, the later one hides the earlier one.
        if real.is_relative_to(mount.mountpoint) and len(mount.mountpoint) >= len(best[0]):
            best = (mount.mountpoint, mount.fstype.lower())
    filesystem = best[1]
    foreign_fuse = filesystem.startswith("fuse.") and filesystem not in SAFE_FUSE
    return filesystem if filesystem in UNSAFE or foreign_fuse else None


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold an ``flock`` on ``PATH.lock``, which has the writer's pid. The kernel releases it if the process dies."""
    with open(f"{path}.lock", "a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise UserError(
                f"{path} is being written by process {file.read().strip() or 'unknown'} (or by a child process of it)",
                "wait for it or end it; to read the store meanwhile, open it read-only",
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and damaged rows within the block as ``UserError`` with a fix."""
    try:
        yield
    except BrokenRecord as error:
        raise UserError(f"{path} is damaged: {error}", REPAIR) from error
    except sqlite3.DatabaseError as error:
        if any(symptom in str(error) for symptom in SYMPTOMS):
            raise UserError(f"{path} is damaged: {error}", REPAIR) from error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        for codes, (problem, fix) in PROBLEMS.items():
            if code in codes:
                free = shutil.disk_usage(path.parent).free / 2**20
                raise UserError(problem.format(path=path, error=error, free=free), fix) from error
        raise


def copy_step(
    db: sqlite3.Connection,
    iteration: int,
    stage: str,
    renamed: Mapping[str, str],
    *,
    marks: bool = False,
) -> None:
    """Copy a stage's items, their tasks, and its trees with their credit from ``source`` (``Store.beside``).

    Row keys are shifted behind the existing keys. ``renamed`` maps settings keys of credit to keys in the target.
    ``marks`` copies also items of the whole stage, such as the mark that it is finished, its selections and trained
    rows, and stages whose names begin with the stage's (``STAGE/00001``).
    """
    behind = {
        f"{table}s": db.execute(f"SELECT coalesce(max(key), 0) FROM main.{table}").fetchone()[0]
        for table in ("item", "tree", "optimizer_step")
    }
    values = {"iteration": iteration, "stage": stage, "marks": marks, **behind}
    of_step = "iteration = :iteration AND (stage = :stage OR :marks AND stage GLOB :stage || '/*')"
    items = f"(SELECT key FROM source.item WHERE {of_step} AND (task != '' OR :marks))"
    trees = f"(SELECT key FROM source.tree WHERE {of_step})"
    of_request = {"tree": "tree + :trees", "toolset": "t.key", "digest": "r.digest"}
    of_row = {"optimizer_step": "optimizer_step + :optimizer_steps"}
    of_task = f"(SELECT task FROM source.item WHERE {of_step})"
    for statement in (
        f"INSERT OR IGNORE INTO main.task SELECT * FROM source.task WHERE id IN {of_task}",
        f"INSERT OR IGNORE INTO main.secret SELECT * FROM source.secret WHERE task IN {of_task}",
        f"INSERT INTO main.item SELECT {_moved(db, 'item', key='key + :items')} FROM source.item "
        f"WHERE key IN {items}",
        f"INSERT INTO main.tree SELECT {_moved(db, 'tree', key='key + :trees')} FROM source.tree "
        f"WHERE {of_step}",
        "INSERT OR IGNORE INTO main.blob SELECT * FROM source.blob",
        "INSERT OR IGNORE INTO main.toolset (tools, digest) SELECT tools, digest FROM source.toolset",
        f"INSERT INTO main.request SELECT {_moved(db, 'request', **of_request)} "
        "FROM source.request r LEFT JOIN source.toolset s ON s.key = r.toolset "
        f"LEFT JOIN main.toolset t ON t.tools = s.tools WHERE tree IN {trees}",
        f"INSERT INTO main.turn SELECT {_moved(db, 'turn', key='NULL', tree='tree + :trees')} "
        f"FROM source.turn WHERE tree IN {trees}",
        f"INSERT INTO main.outcome SELECT {_moved(db, 'outcome', tree='tree + :trees')} "
        f"FROM source.outcome WHERE tree IN {trees}",
        f"INSERT INTO main.selection SELECT {_moved(db, 'selection', item='item + :items')} "
        f"FROM source.selection WHERE :marks AND item IN {items}",
        f"INSERT INTO main.left_out SELECT {_moved(db, 'left_out', item='item + :items')} "
        f"FROM source.left_out WHERE item IN {items}",
        f"INSERT INTO main.optimizer_step SELECT {_moved(db, 'optimizer_step', key='key + :optimizer_steps')} "
        f"FROM source.optimizer_step WHERE :marks AND {of_step}",
        f"INSERT INTO main.trained SELECT {_moved(db, 'trained', **of_row)} FROM source.trained "
        f"WHERE :marks AND optimizer_step IN (SELECT key FROM source.optimizer_step WHERE {of_step})",
    ):
        db.execute(statement, values)
    for setting_name, settings, name in db.execute("SELECT * FROM source.credit_kind").fetchall():
        kind_id = kind_key(db, renamed.get(settings, settings), name)
        db.execute(
            "INSERT INTO main.credit SELECT :own, tree + :trees, node, value, digest FROM source.credit "
            f"WHERE kind = :kind AND tree IN {trees}",
            {**values, "own": kind_id, "kind": setting_name},
        )


def _moved(db: sqlite3.Connection, table: str, **instead: str) -> str:
    names = [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
    return ", ".join(instead.get(name, name) for name in names)
