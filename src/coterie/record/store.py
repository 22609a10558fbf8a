"""Store of a run: one SQLite file in WAL mode with one writing process and any number of readers.

Each finished item (:class:`ItemKey`) is one transaction with all of its turns, credit and metrics. A killed process
loses only the current item.

``synchronous`` is NORMAL: a commit has reached the operating system when it returns, so ``kill -9`` loses no committed
item. A loss of power may undo the last commits, in order, but never damages the file. Recomputing them on resume is
cheaper than waiting for the disk (4 ms here) after every item.

:meth:`Store.beside` attaches another store as ``source``, from which :func:`copy_step` copies. Its row keys are shifted
behind the existing keys. Ids of turns and trees are content hashes, so they do not change.
"""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil

from coterie.errors import UserError
from coterie.record import reader, tables
from coterie.record.tables import BrokenRecord, digest_of, kind_key
from coterie.record.tree import Credit, Item, ItemKey, Metrics, Selection, Task, Tree
from coterie.record.turn import ToolCall, ToolResult

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
    """Exclusive right to write a store: an ``flock`` on ``PATH.lock``, which contains the writer's pid.

    The kernel releases it when the process ends, even by a signal. The file stays.
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


OF_STEP = "iteration = :iteration AND stage = :stage"
TREES = f"(SELECT key FROM source.tree WHERE {OF_STEP})"


def copy_step(
    db: sqlite3.Connection,
    iteration: int,
    stage: str,
    renamed: Mapping[str, str],
    *,
    marks: bool = False,
) -> None:
    """Copy a stage's items, their tasks, and its trees with their credit, but no selections.

    Args:
        renamed: Maps settings keys of credit in the source to keys in the target.
        marks: Also copy items of the whole stage, such as the mark that it is finished.
    """
    behind = {
        f"{table}s": db.execute(f"SELECT coalesce(max(key), 0) FROM main.{table}").fetchone()[0]
        for table in ("item", "tree")
    }
    values = {"iteration": iteration, "stage": stage, "marks": marks, **behind}
    of_request = {"tree": "tree + :trees", "toolset": "t.key", "digest": "r.digest"}
    of_task = f"(SELECT task FROM source.item WHERE {OF_STEP})"
    for statement in (
        f"INSERT OR IGNORE INTO main.task SELECT * FROM source.task WHERE id IN {of_task}",
        f"INSERT OR IGNORE INTO main.secret SELECT * FROM source.secret WHERE task IN {of_task}",
        f"INSERT INTO main.item SELECT {_moved(db, 'item', key='key + :items')} FROM source.item "
        f"WHERE {OF_STEP} AND (task != '' OR :marks)",
        f"INSERT INTO main.tree SELECT {_moved(db, 'tree', key='key + :trees')} FROM source.tree "
        f"WHERE {OF_STEP}",
        "INSERT OR IGNORE INTO main.blob SELECT * FROM source.blob",
        "INSERT OR IGNORE INTO main.toolset (tools, digest) SELECT tools, digest FROM source.toolset",
        f"INSERT INTO main.request SELECT {_moved(db, 'request', **of_request)} "
        "FROM source.request r LEFT JOIN source.toolset s ON s.key = r.toolset "
        f"LEFT JOIN main.toolset t ON t.tools = s.tools WHERE tree IN {TREES}",
        f"INSERT INTO main.turn SELECT {_moved(db, 'turn', key='NULL', tree='tree + :trees')} "
        f"FROM source.turn WHERE tree IN {TREES}",
        f"INSERT INTO main.outcome SELECT {_moved(db, 'outcome', tree='tree + :trees')} "
        f"FROM source.outcome WHERE tree IN {TREES}",
    ):
        db.execute(statement, values)
    for kind, settings, name in db.execute("SELECT * FROM source.credit_kind").fetchall():
        own = kind_key(db, renamed.get(settings, settings), name)
        db.execute(
            "INSERT INTO main.credit SELECT :own, tree + :trees, node, value, digest FROM source.credit "
            f"WHERE kind = :kind AND tree IN {TREES}",
            {**values, "own": own, "kind": kind},
        )


def _moved(db: sqlite3.Connection, table: str, **instead: str) -> str:
    names = [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
    return ", ".join(instead.get(name, name) for name in names)


__all__ = ["Credit", "ItemKey", "Metrics", "Selection", "Store"]

WAIT = 30.0
"""Seconds to wait while another program locks the file."""


class Store:
    """A run's record on disk. Use it only in the thread that opened it."""

    def __init__(self, path: Path, db: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.path = path
        self._db = db
        self._lock = lock
        self._joined = False

    @classmethod
    def open(cls, path: Path | str, *, read_only: bool = False) -> "Store":
        """Open a store, or create it (not with ``read_only``).

        Raises :class:`UserError` for a second writer, an unsafe file system, a file that is not a store, or another
        schema version.
        """
        path = Path(path).absolute()
        check_place(path)
        if read_only and not path.exists():
            raise UserError(f"there is no store at {path}", "check the path of the run folder")
        lock = None if read_only else WriterLock(path)
        db = None
        try:
            with explained(path):
                uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rwc'}"
                db = sqlite3.connect(uri, uri=True, timeout=WAIT, isolation_level=None)
                db.create_function("digest_of", -1, digest_of, deterministic=True)
                _prepare(db, path, read_only)
        except BaseException:
            if db is not None:
                db.close()
            if lock is not None:
                lock.release()
            raise
        return cls(path, db, lock)

    def close(self) -> None:
        """Close the file and release the writer lock. Closing twice is allowed."""
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run writes of :mod:`table` in one transaction; not nested."""
        if self._lock is None:
            raise UserError(f"{self.path} is opened read-only", "open it for writing")
        if self._joined:
            yield self._db
            return
        with self._within("BEGIN IMMEDIATE"):
            yield self._db

    @contextmanager
    def together(self) -> Iterator[None]:
        """Finish several items in one transaction."""
        with self.transaction():
            self._joined = True
            try:
                yield
            finally:
                self._joined = False

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Read one consistent state in several queries; not nested."""
        with self._within("BEGIN"):
            yield self._db

    @contextmanager
    def beside(self, other: Path) -> Iterator[sqlite3.Connection]:
        """Open a :meth:`transaction` with another store attached read-only as ``source``, for :mod:`store_copy`."""
        with explained(other):
            self._db.execute("ATTACH ? AS source", (f"{other.absolute().as_uri()}?mode=ro",))
        try:
            with self.transaction() as db:
                yield db
        finally:
            self._db.execute("DETACH source")

    def finish(
        self,
        key: ItemKey,
        *,
        tree: Tree | None = None,
        credit: Sequence[Credit] = (),
        metrics: Metrics | None = None,
        failure: str | None = None,
    ) -> None:
        """Write the results of an item and mark it as finished, in one transaction.

        Existing turns, requests and outcomes stay, so samples of a task may share beginnings. Pass only the own paths
        of a sample as its tree; the stored tree merges the samples in key order, whatever order they finish in. Raises
        ``ValueError`` for a finished key, and for contradictions to the record.
        """
        with self.transaction() as db:
            tables.write_item(db, Item(key, failure, metrics or {}), tree, credit, ())

    def select(
        self,
        iteration: int,
        stage: str,
        selections: Sequence[Selection],
        *,
        task: str = "",
        sample: str = "",
        metrics: Metrics | None = None,
    ) -> None:
        """Write the selections of a stage, in order, as one finished item."""
        item = Item(ItemKey(iteration, stage, task, sample), None, metrics or {})
        with self.transaction() as db:
            tables.write_item(db, item, None, (), selections)

    def put_tasks(self, tasks: Iterable[Task]) -> None:
        """Write tasks in one transaction; the store may have equal ones."""
        with self.transaction() as db:
            for task in tasks:
                tables.add_task(db, task)

    def task(self, id_: str) -> Task:
        """Return a task with its secrets; ``KeyError`` for an unknown id."""
        with explained(self.path):
            task = reader.task(self._db, id_)
        if task is None:
            raise KeyError(f"task {id_!r} is not in {self.path}")
        return task

    def image(self, hash_: str) -> bytes:
        """Return the bytes of an image by SHA-256; ``KeyError`` for an unknown one."""
        with explained(self.path):
            data = reader.blob(self._db, hash_)
        if data is None:
            raise KeyError(f"image {hash_} is not in {self.path}")
        return data

    def is_empty(self) -> bool:
        """Return True if no item is finished."""
        with explained(self.path):
            return next(iter(reader.items(self._db, None, None)), None) is None

    def finished(self, key: ItemKey) -> bool:
        with explained(self.path):
            return tables.item_row(self._db, key) is not None

    def finished_keys(self, iteration: int, stage: str) -> set[tuple[str, str]]:
        """Return (task, sample) of the finished items of a stage."""
        with explained(self.path):
            return reader.item_keys(self._db, iteration, stage)

    def iterations(self, stage: str) -> list[int]:
        """Return the iterations with finished items of a stage, sorted."""
        with explained(self.path):
            return reader.iterations(self._db, stage)

    def tasks_of(self, iteration: int, stage: str) -> list[str]:
        """Return the ids of tasks with finished items of a stage, sorted."""
        with explained(self.path):
            return reader.tasks_of(self._db, iteration, stage)

    def failures(self, iteration: int | None = None) -> list[tuple[ItemKey, str]]:
        """Return failed items with their reasons, in key order."""
        with explained(self.path):
            return reader.failures(self._db, iteration)

    def items(self, iteration: int, stage: str, task: str | None = None) -> list[Item]:
        """Return the finished items of a stage, optionally of one task, in key order."""
        with explained(self.path):
            return [item for _, item in reader.items(self._db, iteration, stage, task=task)]

    def metrics(self, iteration: int, stage: str) -> dict[ItemKey, dict[str, float | int | str]]:
        return {item.key: dict(item.metrics) for item in self.items(iteration, stage)}

    def metrics_at(self, key: ItemKey) -> Metrics | None:
        """Return the metrics of an item; ``None`` if it is not finished."""
        with explained(self.path):
            items = reader.items(self._db, key.iteration, key.stage, key.sample, key.task)
            return next((item.metrics for _, item in items), None)

    def metrics_of(self, sample: str) -> list[Metrics]:
        """Return the metrics of finished items with this sample name, in all iterations and stages."""
        with explained(self.path):
            return [item.metrics for _, item in reader.items(self._db, sample=sample)]

    def tree(self, iteration: int, stage: str, task: str) -> Tree:
        """Return the tree of a task; ``KeyError`` without one."""
        with explained(self.path):
            keys = reader.tree_keys(self._db, iteration, stage, task)
            if not keys:
                raise KeyError(f"no tree of {iteration}/{stage}/{task} in {self.path}")
            return reader.tree(self._db, keys[0])

    def tree_tasks(self, iteration: int, stage: str) -> list[str]:
        with explained(self.path):
            return [task for *_, task in reader.tree_keys(self._db, iteration, stage)]

    def trees(self, iteration: int, stage: str) -> Iterator[Tree]:
        """Yield the trees of a stage in order of task, one in memory at a time."""
        return self._each(reader.tree, iteration, stage)

    def outlines(self, iteration: int, stage: str) -> Iterator[Tree]:
        """Yield trees like :meth:`trees`, whose turns have only speakers and parts."""
        return self._each(reader.outline, iteration, stage)

    def size(self, iteration: int, stage: str) -> tuple[int, int]:
        """Return the numbers of trees and turns of a stage."""
        with explained(self.path):
            return reader.size(self._db, iteration, stage)

    def calls(self) -> Iterator[tuple[ToolCall, ToolResult]]:
        with explained(self.path):
            yield from reader.calls(self._db)

    def scores(self, iteration: int, stage: str) -> dict[str, float | None]:
        with explained(self.path):
            return reader.scores(self._db, iteration, stage)

    def credit(
        self,
        settings: str,
        name: str,
        nodes: Iterable[str] | None = None,
        *,
        iteration: int | None = None,
        stage: str | None = None,
    ) -> dict[str, float]:
        with explained(self.path):
            if nodes is not None:
                return reader.credit_of_nodes(self._db, settings, name, list(nodes))
            return reader.credit(self._db, settings, name, iteration, stage)

    def credit_of(self, tree: Tree) -> list[Credit]:
        with explained(self.path):
            keys = reader.tree_keys(self._db, tree.iteration, tree.stage, tree.task)
            return [one for row in keys for one in reader.credit_of_tree(self._db, row[0])]

    def selections(self, iteration: int, stage: str | None = None) -> list[tuple[str, Selection]]:
        """Return (task of the tree, selection) of an iteration, in the order of storing."""
        with explained(self.path):
            rows = reader.selections(self._db, iteration, stage)
        return [(task, selection) for _, _, task, selection in rows]

    def _each(
        self, read: Callable[[sqlite3.Connection, reader.TreeKey], Tree], iteration: int, stage: str
    ) -> Iterator[Tree]:
        with explained(self.path):
            keys = reader.tree_keys(self._db, iteration, stage)
        for key in keys:
            with explained(self.path):
                tree = read(self._db, key)
            yield tree

    @contextmanager
    def _within(self, begin: str) -> Iterator[None]:
        with explained(self.path):
            self._db.execute(begin)
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back when the disk is full
                    self._db.execute("ROLLBACK")
                raise


def _prepare(db: sqlite3.Connection, path: Path, read_only: bool) -> None:
    """Create the tables of a new file, or check an existing one."""
    if tables.is_empty(db):
        if read_only:
            raise UserError(f"{path} is empty", "open the store of a run")
        db.execute("PRAGMA journal_mode = WAL")
        tables.create(db)
    tables.check(db, path)
    if not read_only:
        (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise UserError(
                f"SQLite cannot use its WAL mode for {path}", "put the run folder on a local disk"
            )
        db.execute("PRAGMA synchronous = NORMAL")
