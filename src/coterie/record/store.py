"""Store of a run: one SQLite file in WAL mode with one writing process and any number of readers.

Each finished item (:class:`ItemKey`) is one transaction with all of its turns, credit and metrics, so a killed process
loses only the current item. A loss of power may undo the last commits, in order, but never damages the file.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

from coterie.errors import UserError
from coterie.record import tables
from coterie.record.rows import DTYPES, TrainedRow, Update, unpacked
from coterie.record.store_file import explained, unsafe_filesystem, writer_lock
from coterie.record.tables import IDS, LOGPROBS, BrokenRecord, numbers_of, value_of, whole
from coterie.record.tree import (
    Credit,
    Ending,
    Item,
    ItemKey,
    LeftOut,
    Metrics,
    Outcome,
    Secret,
    Selection,
    Task,
    Tree,
    hash_of,
)
from coterie.record.turn import Request, Sample, Speaker, Tool, Turn

__all__ = ["Credit", "ItemKey", "Metrics", "Selection", "Store"]

WAIT = 30.0
"""Seconds to wait for another program's lock."""
TreeKey = tuple[int, int, str, str]
REQUESTS = (
    "SELECT id, agent, parent, previous, keep, ids, keep_messages, messages, tools, "
    f"{whole('request', 'r')} AND (tools IS NULL OR {whole('toolset', 's')}) "
    "FROM request r LEFT JOIN toolset s ON s.key = toolset"
)
"""Query of requests with their tools; the last column is false for a damaged row."""


@dataclass(eq=False)
class Store:
    """A run's record on disk, for the thread that opened it. Results do not depend on the order of finishing."""

    path: Path
    _db: sqlite3.Connection
    _files: ExitStack
    _is_sealed: bool
    """False for a read-only file of an earlier version: only the values of its rows are checked."""
    _joined: bool = False

    @classmethod
    def open(cls, path: Path | str, *, read_only: bool = False, check: bool = True) -> "Store":
        """Open a store, or create it (not with ``read_only``).

        Raises ``UserError`` if another process writes it, or if it is damaged (not without ``check``).
        """
        path = Path(path).absolute()
        if filesystem := unsafe_filesystem(path, psutil.disk_partitions(all=True)):
            raise UserError(
                f"{path} is on a {filesystem} file system, where SQLite can lose committed work",
                "put the run folder on a local disk; copy or export it when the run has ended",
            )
        if read_only and not path.exists():
            raise UserError(f"there is no store at {path}", "check the path of the run folder")
        with ExitStack() as files:
            if not read_only:
                files.enter_context(writer_lock(path))
            with explained(path):
                uri = f"{path.as_uri()}?mode={'ro' if read_only else 'rwc'}"
                db = sqlite3.connect(uri, uri=True, timeout=WAIT, isolation_level=None)
                files.enter_context(closing(db))
                is_sealed = tables.prepare(db, path, read_only=read_only, check=check)
            return cls(path, db, files.pop_all(), is_sealed)

    def close(self) -> None:
        self._files.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writes -------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run writes of :mod:`tables` in one transaction; not nested."""
        if self._joined:
            yield self._db
            return
        with self._within("BEGIN IMMEDIATE"):
            yield self._db

    @contextmanager
    def together(self) -> Iterator[None]:
        with self.transaction():
            self._joined = True
            try:
                yield
            finally:
                self._joined = False

    @contextmanager
    def beside(self, other_path: Path) -> Iterator[sqlite3.Connection]:
        """Open a :meth:`transaction` with another store attached read-only as ``source``, for :func:`copy_step`."""
        with explained(other_path):
            self._db.execute("ATTACH ? AS source", (f"{other_path.absolute().as_uri()}?mode=ro",))
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
        selections: Sequence[Selection] = (),
        left_out: Sequence[LeftOut] = (),
        updates: Sequence[Update] = (),
        metrics: Metrics | None = None,
        failure: str | None = None,
    ) -> None:
        """Write the results of an item and mark it as finished, in one transaction.

        Existing turns, requests and outcomes stay, so samples of a task may share beginnings. Pass only the own paths
        of a sample as its tree. Raises ``ValueError`` for a finished key, and for contradictions to the record.
        """
        with self.transaction() as db:
            item = Item(key, failure, metrics or {})
            tables.write_item(db, item, tree, credit, selections, left_out)
            for update in updates:
                tables.write_update(db, update)

    def put_update(self, update: Update) -> None:
        """Write the rows of an optimizer step between two items, in place of the rows of an earlier attempt."""
        with self.transaction() as db:
            tables.write_update(db, update)

    def put_tasks(self, tasks: Iterable[Task]) -> None:
        """Write tasks in one transaction; the store may have equal ones."""
        with self.transaction() as db:
            for task in tasks:
                tables.add_task(db, task)

    def repair(self) -> list[str]:
        """Drop damaged rows, and whole trees with a damaged or missing row together with their items.

        Returns the names of what was dropped. A run plays dropped items again, unless their stage is finished.
        """
        dropped = []
        with self.transaction() as db:
            for key in self.tree_keys():
                try:
                    self.read_tree(key)
                    self.items(*key[1:])
                except UserError:
                    dropped.append(_name(key))
                    of_step = "(iteration, stage, task) = (?, ?, ?)"
                    db.execute(f"DELETE FROM item WHERE {of_step}", key[1:])
                    db.execute("DELETE FROM tree WHERE key = ?", key[:1])
            # Rows of trees that were dropped, now or when the file was damaged.
            for table in tables.OF_TREES:
                db.execute(f"DELETE FROM {table} WHERE tree NOT IN (SELECT key FROM tree)")
            for table in tables.PLACES:
                count = db.execute(f"DELETE FROM {table} WHERE NOT ({whole(table)})").rowcount
                dropped += [f"{count} rows of {table}"] * bool(count)
            owners = {"selection": "item", "left_out": "item", "trained": "optimizer_step"}
            for table, owner in owners.items():
                db.execute(f"DELETE FROM {table} WHERE {owner} NOT IN (SELECT key FROM {owner})")
            tables.make_seals(db)
        return dropped

    # -- reads --------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one consistent state in several calls; not nested."""
        with self._within("BEGIN"):
            yield

    def task(self, id_: str) -> Task:
        """Return a task with its secrets; ``KeyError`` for an unknown id."""
        secrets = f"SELECT name, text, readers, {whole('secret')} FROM secret WHERE task = ?"
        public = f"SELECT public, {whole('task')} FROM task WHERE id = ?"
        with explained(self.path):
            for (text,) in self._checked(public, (id_,), f"task {id_}"):
                return Task(
                    id_,
                    value_of(tables.PUBLIC, text),
                    {
                        name: Secret(gold, name=name, readers=value_of(tables.READERS, readers))
                        for name, gold, readers in self._checked(secrets, (id_,), f"task {id_}")
                    },
                )
        raise KeyError(f"task {id_!r} is not in {self.path}")

    def task_ids(self) -> list[str]:
        return [id_ for (id_,) in self._fetch("SELECT id FROM task ORDER BY id")]

    def image(self, hash_: str) -> bytes:
        """Return the bytes of an image by SHA-256; ``KeyError`` for an unknown one."""
        rows: list[tuple[bytes]] = self._fetch("SELECT data FROM blob WHERE hash = ?", (hash_,))
        if not rows:
            raise KeyError(f"image {hash_} is not in {self.path}")
        with explained(self.path):
            if hash_of(rows[0][0]) != hash_:
                raise BrokenRecord(f"image {hash_} differs from its digest")
        return rows[0][0]

    def is_empty(self) -> bool:
        return not self._fetch("SELECT 1 FROM item LIMIT 1")

    def remove(self, key: ItemKey) -> None:
        """Remove a finished item without tree, credit and selections."""
        with self.transaction() as db:
            where, values = _where(
                iteration=key.iteration, stage=key.stage, task=key.task, sample=key.sample
            )
            db.execute(f"DELETE FROM item {where}", values)

    def finished(self, key: ItemKey) -> bool:
        with explained(self.path):
            return tables.item_row(self._db, key) is not None

    def finished_keys(self, iteration: int, stage: str) -> set[tuple[str, str]]:
        """Return (task, sample) of the finished items of a stage."""
        find = "SELECT task, sample FROM item WHERE (iteration, stage) = (?, ?)"
        return set(self._fetch(find, (iteration, stage)))

    def iterations(self, stage: str) -> list[int]:
        find = "SELECT DISTINCT iteration FROM item WHERE stage = ? ORDER BY iteration"
        return [iteration for (iteration,) in self._fetch(find, (stage,))]

    def stages(self, iteration: int, pattern: str) -> list[str]:
        """Return the stages with finished items whose names match a GLOB pattern."""
        find = "SELECT DISTINCT stage FROM item WHERE iteration = ? AND stage GLOB ? ORDER BY stage"
        return [stage for (stage,) in self._fetch(find, (iteration, pattern))]

    def trained_stage(self, iteration: int, role: str) -> str | None:
        """Return the stage that trained a role in an iteration."""
        find = "SELECT stage FROM optimizer_step WHERE iteration = ? AND role = ? LIMIT 1"
        return next((stage for (stage,) in self._fetch(find, (iteration, role))), None)

    def tasks_of(self, iteration: int, stage: str) -> list[str]:
        return sorted({task for task, _ in self.finished_keys(iteration, stage) if task})

    def failures(
        self, iteration: int | None = None, stage: str | None = None
    ) -> list[tuple[ItemKey, str]]:
        items = self.items(iteration, stage)
        return [(item.key, item.failure) for item in items if item.failure is not None]

    def items(
        self,
        iteration: int | None = None,
        stage: str | None = None,
        task: str | None = None,
        sample: str | None = None,
    ) -> list[Item]:
        """Return finished items in key order; ``None`` matches all."""
        where, values = _where(iteration=iteration, stage=stage, task=task, sample=sample)
        find = (
            f"SELECT iteration, stage, task, sample, failure, metrics, {whole('item')} FROM item "
            f"{where} ORDER BY iteration, stage, task, sample"
        )
        with explained(self.path):
            rows = self._checked(find, values, f"item {iteration}/{stage}/{task}")
            return [
                Item(ItemKey(*names), failure, value_of(tables.METRICS, metrics))
                for *names, failure, metrics in rows
            ]

    def metrics(self, iteration: int, stage: str) -> dict[ItemKey, dict[str, float | int | str]]:
        return {item.key: dict(item.metrics) for item in self.items(iteration, stage)}

    def metrics_at(self, key: ItemKey) -> Metrics | None:
        items = self.items(key.iteration, key.stage, key.task, key.sample)
        return items[0].metrics if items else None

    def tree(self, iteration: int, stage: str, task: str) -> Tree:
        keys = self.tree_keys(iteration, stage, task)
        if not keys:
            raise KeyError(f"no tree of {iteration}/{stage}/{task} in {self.path}")
        return self.read_tree(keys[0])

    def tree_keys(
        self, iteration: int | None = None, stage: str | None = None, task: str | None = None
    ) -> list[TreeKey]:
        """Return the trees of an iteration, stage and task, sorted; ``None`` matches all."""
        where, values = _where(iteration=iteration, stage=stage, task=task)
        columns = "iteration, stage, task"
        return self._fetch(f"SELECT key, {columns} FROM tree {where} ORDER BY {columns}", values)

    def tree_tasks(self, iteration: int, stage: str) -> list[str]:
        return [task for *_, task in self.tree_keys(iteration, stage)]

    def trees(self, iteration: int, stage: str) -> Iterator[Tree]:
        """Yield the trees of a stage in order of task, one in memory at a time."""
        return map(self.read_tree, self.tree_keys(iteration, stage))

    def outlines(self, iteration: int, stage: str) -> Iterator[Tree]:
        """Yield trees like :meth:`trees`, whose turns have only speakers and parts."""
        return map(self._outline, self.tree_keys(iteration, stage))

    def stage_counts(self) -> list[dict[str, Any]]:
        """Return iteration, stage and shares of rollouts of each stage with trees; digests are not checked.

        ``failed_share`` counts failed rollouts, and ungraded ones where others are graded; ``truncated`` those that a
        limit cut off.
        """
        find = (
            "SELECT t.iteration, t.stage, count(*), sum(o.truncated), sum(o.score IS NULL), ("
            "SELECT count(*) FROM item i WHERE i.failure NOTNULL AND i.task != '' "
            "AND (i.iteration, i.stage) = (t.iteration, t.stage)) "
            "FROM tree t JOIN outcome o ON o.tree = t.key GROUP BY 1, 2"
        )
        return [
            {
                "iteration": iteration,
                "stage": stage,
                "truncated": cut_off / outcomes,
                "failed_share": (failed + ungraded * (ungraded < outcomes)) / (outcomes + failed),
            }
            for iteration, stage, outcomes, cut_off, ungraded, failed in self._fetch(find)
        ]

    def credit(
        self,
        settings: str,
        name: str,
        nodes: Iterable[str] | None = None,
        *,
        iteration: int | None = None,
        stage: str | None = None,
    ) -> dict[str, float]:
        """Return one kind of credit: of some nodes, or on the trees of an iteration or stage."""
        where, values = _where(iteration=iteration, stage=stage)
        find = (
            f"SELECT c.node, c.value, {whole('credit', 'c')} FROM credit_kind k CROSS JOIN tree CROSS JOIN credit c "
            "ON (k.settings, k.name) = (?, ?) AND (c.kind, c.tree) = (k.key, tree.key) "
            f"{where} ORDER BY iteration, stage, task, c.node"
        )
        if nodes is not None:
            values = [json.dumps(list(nodes))]
            find = (
                "WITH node (id) AS (SELECT value FROM json_each(?3)), place (tree, id) AS ("
                "SELECT t.tree, t.id FROM node CROSS JOIN turn t ON t.id = node.id UNION ALL "
                "SELECT t.key, t.root FROM node CROSS JOIN tree t ON t.root = node.id) "
                f"SELECT c.node, c.value, {whole('credit', 'c')} FROM credit_kind k CROSS JOIN place p "
                "CROSS JOIN credit c ON (c.kind, c.tree, c.node) = (k.key, p.tree, p.id) "
                "WHERE (k.settings, k.name) = (?1, ?2)"
            )
        return dict(self._checked(find, (settings, name, *values), f"credit {name}"))

    def credit_of(self, tree: Tree) -> list[Credit]:
        keys = self.tree_keys(tree.iteration, tree.stage, tree.task)
        with explained(self.path):
            for key in keys:
                self._check_tree(key)
        find = (
            f"SELECT c.node, k.name, c.value, k.settings, {whole('credit', 'c')} FROM credit_kind k CROSS JOIN "
            "credit c ON (c.kind, c.tree) = (k.key, ?) ORDER BY k.settings, k.name, c.node"
        )
        return [Credit(*row) for key in keys for row in self._checked(find, key[:1], "credit")]

    def selections(
        self, iteration: int | None = None, stage: str | None = None
    ) -> list[tuple[str, Selection]]:
        """Return (task of the tree, selection), in the order of storing; ``None`` matches all."""
        return [(key[3], selection) for _, key, selection in self.selected(iteration, stage)]

    def selected(
        self, iteration: int | None = None, stage: str | None = None
    ) -> list[tuple[ItemKey, TreeKey, Selection]]:
        where, values = _where("i.", iteration=iteration, stage=stage)
        find = (
            "SELECT i.iteration, i.stage, i.task, i.sample, r.key, r.iteration, r.stage, r.task, s.leaf, s.agent, "
            f"s.context, s.weight, s.rejected, {whole('selection', 's')} FROM item i CROSS JOIN selection s ON "
            f"s.item = i.key JOIN turn t ON t.id = s.leaf JOIN tree r ON r.key = t.tree {where} "
            "ORDER BY s.item, s.position"
        )
        return [
            (ItemKey(*row[:4]), (row[4], row[5], row[6], row[7]), Selection(*row[8:]))
            for row in self._checked(find, values, f"the selections of {iteration}/{stage}")
        ]

    def left_out(self, iteration: int, stage: str) -> list[tuple[ItemKey, LeftOut]]:
        """Return what the items of a stage left out, in the order of items."""
        find = (
            "SELECT i.iteration, i.stage, i.task, i.sample, l.task, lower(hex(l.node)), l.reason, l.agent, l.number, "
            f"{whole('left_out', 'l')} FROM item i JOIN left_out l ON l.item = i.key "
            "WHERE (i.iteration, i.stage) = (?, ?) ORDER BY i.task, i.sample, l.position"
        )
        of_stage = "SELECT key FROM item WHERE (iteration, stage) = (?, ?)"
        for (item,) in self._fetch(of_stage, (iteration, stage)):
            self._check_scope("left_out", item)
        rows = self._checked(find, (iteration, stage), f"what {stage} {iteration} left out")
        return [(ItemKey(*row[:4]), LeftOut(*row[4:])) for row in rows]

    def update(self, iteration: int, stage: str, role: str, number: int) -> Update:
        """Return an optimizer step with the rows that it trained on."""
        names = (iteration, stage, role, number)
        origin = "coalesce(origin, lower(hex(leaf)) || '/' || agent || '/' || segment)"
        columns = f"{origin}, turn, context, weight, tokens, metrics, side, pair"
        find = (
            f"SELECT {columns}, {', '.join(DTYPES)}, {whole('trained')} FROM trained "
            "WHERE optimizer_step = ? ORDER BY position"
        )
        ((key, step),) = self._fetch(f"SELECT key, step {tables.OF_STEP}", names) or [(0, None)]
        self._check_scope("trained", key)
        rows = list[TrainedRow]()
        with explained(self.path):
            for row in self._checked(find, (key,), f"optimizer step {number} of {role}"):
                name, turn, context, weight, tokens, metrics, side, pair = row[:8]
                facts, arrays = value_of(tables.METRICS, metrics), unpacked(row[8:], tokens)
                of_row = (context, weight, tokens, facts, side, pair, arrays)
                rows.append(TrainedRow(name, turn and turn.hex(), *of_row))
        return Update(*names, rows, step)

    def read_tree(self, key: TreeKey) -> Tree:
        """Return a tree with turns in the order of items, then in order within each item."""
        find = f"{REQUESTS} WHERE tree = ? ORDER BY id"
        with explained(self.path):
            tree = self._fill(key, (turn for _, turn in self.turns(key)))
            for row in self._checked(find, key[:1], _name(key)):
                request = request_of(row)
                tree.requests[request.id] = request
            return tree

    def turns(self, key: TreeKey) -> Iterator[tuple[str, Turn]]:
        """Yield the turns of a tree in order, each with the sample name of its item."""
        find = f"SELECT *, {whole('turn')} FROM turn WHERE tree = ? ORDER BY sample, position"
        for row in self._checked(find, key[:1], _name(key)):
            yield row[2], turn_of(row[4:-1])

    def _outline(self, key: TreeKey) -> Tree:
        find = (
            f"SELECT id, parent, kind, speaker, parts, {whole('turn')} FROM turn WHERE tree = ? "
            "ORDER BY sample, position"
        )
        with explained(self.path):
            turns = (
                Turn(id_, parent, Speaker(kind, speaker), value_of(tables.PARTS, parts))
                for id_, parent, kind, speaker, parts in self._checked(find, key[:1], _name(key))
            )
            return self._fill(key, turns)

    def _fill(self, key: TreeKey, turns: Iterable[Turn]) -> Tree:
        tree = Tree(key[3], key[2], key[1])
        self._check_tree(key)
        try:
            for turn in turns:
                tree.add(turn)
        except KeyError as error:
            raise BrokenRecord(f"a turn of {_name(key)} is missing: {error}") from error
        for outcome in self._outcomes(key):
            tree.end(outcome)
        return tree

    def _check_tree(self, key: TreeKey) -> None:
        """Raise :class:`BrokenRecord` if rows of a tree are missing or have other keys."""
        if self._is_sealed:
            try:
                tables.check_seals(self._db, tables.OF_TREES, key[0])
            except BrokenRecord as error:
                raise BrokenRecord(f"{_name(key)}: {error}") from error

    def _check_scope(self, table: str, *values: object) -> None:
        """Raise ``UserError`` if rows of a scope of a table are missing or have other keys."""
        if self._is_sealed:
            with explained(self.path):
                tables.check_seals(self._db, (table,), *values)

    def _outcomes(self, key: TreeKey) -> list[Outcome]:
        columns = "leaf, sample, reason, truncated, answer, score"
        find = f"SELECT {columns}, {whole('outcome')} FROM outcome WHERE tree = ? ORDER BY sample, leaf"
        return [
            Outcome(leaf, sample, Ending(reason, bool(cut)), answer, score)
            for leaf, sample, reason, cut, answer, score in self._checked(find, key[:1], _name(key))
        ]

    def _fetch(self, find: str, values: Sequence[object] = ()) -> list[Any]:
        with explained(self.path):
            return self._db.execute(find, values).fetchall()

    def _checked(self, find: str, values: Sequence[object], where: str) -> Iterator[Any]:
        """Yield rows without their last column, the digest check; raise ``UserError`` if it is false."""
        with explained(self.path):
            for *row, is_whole in self._db.execute(find, values):
                if not is_whole:
                    raise BrokenRecord(f"a row of {where} differs from its digest")
                yield row

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


def _name(key: TreeKey) -> str:
    return f"item {key[1]}/{key[2]}/{key[3]}"


def _where(prefix: str = "", **columns: int | str | None) -> tuple[str, list[int | str]]:
    """Return a WHERE clause on the columns that are not ``None``, and its values."""
    filters = {name: value for name, value in columns.items() if value is not None}
    tests = " AND ".join(f"{prefix}{name} = ?" for name in filters)
    return (f"WHERE {tests}" if tests else ""), list(filters.values())


@lru_cache(maxsize=64)
def _tools(text: str) -> tuple[Tool, ...]:
    return value_of(tables.TOOLS, text)


def request_of(values: Sequence[Any]) -> Request:
    """Return a request from a row of :data:`REQUESTS`, without the column of its digest."""
    id_, agent, parent, previous, keep, ids, kept_messages, messages, tools = values
    delta = (numbers_of(ids, IDS), kept_messages, value_of(tables.MESSAGES, messages))
    return Request(id_, agent, parent, previous, keep, *delta, _tools(tools) if tools else ())


def turn_of(values: Sequence[Any]) -> Turn:
    """Return a turn from its columns in the order of the table, ``id`` to ``top_p``."""
    id_, parent, kind, speaker, parts, blob, called, returned, author, *rest = values
    draw, request, truncated, logprobs, *sampled = rest
    ids, sample = numbers_of(blob, IDS), None
    if request is not None and logprobs is not None:
        finish, policy, version, seed, temperature, top_p = sampled
        spans = value_of(tables.VERSIONS, version) if version.startswith("[") else ()
        behavior = (
            numbers_of(logprobs, LOGPROBS),
            finish,
            policy,
            spans[-1][0] if spans else version,
        )
        sample = Sample(request, ids, *behavior, int(seed), temperature, top_p, spans)
    calls, results = value_of(tables.CALLS, called), value_of(tables.RESULTS, returned)
    tail: Any = (calls, results, author, draw, None if sample else request, bool(truncated))
    content = value_of(tables.PARTS, parts)
    return Turn(id_, parent, Speaker(kind, speaker), content, ids, sample, *tail)
