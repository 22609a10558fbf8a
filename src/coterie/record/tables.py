"""Tables of a store: schema, encodings, and writes of the record.

Functions take a connection inside a transaction. They skip equal existing rows and raise ``ValueError`` if an existing
row differs. Each row has a digest of its values, without the keys of rows in this file (:data:`PLACES`). Seals count
rows and sum hashes of their keys, so that missing rows and changed keys are found.
"""

import dataclasses
import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from coterie.errors import UserError
from coterie.record.rows import Update, packed
from coterie.record.tree import (
    Credit,
    Item,
    ItemKey,
    LeftOut,
    Metrics,
    Outcome,
    Selection,
    Task,
    Tree,
)
from coterie.record.turn import Message, Part, Request, Tool, ToolCall, ToolResult, Turn

T = TypeVar("T")

LATER = ConfigDict(defer_build=True)
"""Build validators with their first use: many commands read only columns."""
PARTS = TypeAdapter(tuple[Part, ...], config=LATER)
MESSAGES = TypeAdapter(tuple[Message, ...], config=LATER)
CALLS = TypeAdapter(tuple[ToolCall, ...], config=LATER)
RESULTS = TypeAdapter(tuple[ToolResult, ...], config=LATER)
TOOLS = TypeAdapter(tuple[Tool, ...], config=LATER)
READERS = TypeAdapter(frozenset[str], config=LATER)
VERSIONS = TypeAdapter(tuple[tuple[str, int], ...], config=LATER)
"""Spans of a turn with several weight versions, in the column of the version."""
PUBLIC: TypeAdapter[Mapping[str, object]] = TypeAdapter(dict[str, object], config=LATER)
METRICS: TypeAdapter[Metrics] = TypeAdapter(dict[str, float | int | str], config=LATER)


class BrokenRecord(Exception):
    """An invalid value in the store: the file was damaged or edited."""


def digest_of(*values: object) -> bytes:
    """Return a digest of a row's values as SQLite returns them."""
    # `repr` is exact for floats, and differs for 1 and 1.0 as SQLite's types do.
    text = repr([*values])
    if "-0.0" in text:  # which SQLite returns as 0.0
        text = repr([value + 0.0 if isinstance(value, float) else value for value in values])
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def plain(value: object) -> Any:
    """Convert a dataclass of the record to JSON-able values, without fields at their default."""
    # Leaving out defaults saves space, and a field that is added later with a default does not
    # change the digests of existing rows.
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: plain(getattr(value, name))
            for name, default in _defaults(type(value))
            if getattr(value, name) != default
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        # Sets have no order, and equal rows need equal text.
        return sorted(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def json_of(value: object) -> str:
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"))


def value_of(adapter: TypeAdapter[T], text: str) -> T:
    """Parse a value of :func:`json_of`."""
    # Strict: a number in place of a text is damage, not something to convert.
    return adapter.validate_json(text, strict=True)


@cache
def _defaults(record_type: type) -> list[tuple[str, object]]:
    """Return the fields of a dataclass with their defaults (``MISSING`` without one)."""
    missing = dataclasses.MISSING
    return [
        (field.name, field.default if field.default_factory is missing else field.default_factory())
        for field in dataclasses.fields(record_type)
    ]


# Little-endian on all machines, so that stores can be copied.
IDS, LOGPROBS = "<i4", "<f4"


def numbers_of(blob: bytes, dtype: str) -> tuple[Any, ...]:
    """Return the numbers of an array; ``dtype`` is :data:`IDS` or :data:`LOGPROBS`."""
    return tuple(np.frombuffer(blob, dtype=dtype).tolist())


# "COTE" in ASCII: SQLite's header field for the type of a file.
APPLICATION = 0x434F5445
VERSION = 5

OF_STEP = "FROM optimizer_step WHERE (iteration, stage, role, updates) = (?, ?, ?, ?)"
NAMES = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
TABLES = """
CREATE TABLE task (
    id TEXT PRIMARY KEY NOT NULL, public TEXT NOT NULL, digest BLOB NOT NULL
);
CREATE TABLE secret (
    task TEXT NOT NULL REFERENCES task (id), name TEXT NOT NULL,
    text TEXT NOT NULL, readers TEXT NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (task, name)
) WITHOUT ROWID;
CREATE TABLE item (
    key INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL, stage TEXT NOT NULL, task TEXT NOT NULL, sample TEXT NOT NULL,
    failure TEXT, metrics TEXT NOT NULL, digest BLOB NOT NULL,
    UNIQUE (iteration, stage, task, sample)
);
CREATE TABLE tree (
    key INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL, stage TEXT NOT NULL, task TEXT NOT NULL,
    root TEXT NOT NULL UNIQUE,
    UNIQUE (iteration, stage, task)
);
CREATE TABLE blob (hash TEXT PRIMARY KEY NOT NULL, data BLOB NOT NULL);
CREATE TABLE toolset (key INTEGER PRIMARY KEY, tools TEXT NOT NULL UNIQUE, digest BLOB NOT NULL);
CREATE TABLE request (
    tree INTEGER NOT NULL REFERENCES tree (key), toolset INTEGER REFERENCES toolset (key),
    id TEXT NOT NULL, agent TEXT NOT NULL, parent TEXT NOT NULL, previous TEXT,
    keep INTEGER NOT NULL, ids BLOB NOT NULL,
    keep_messages INTEGER NOT NULL, messages TEXT NOT NULL, digest BLOB NOT NULL,
    UNIQUE (tree, id)
);
CREATE TABLE turn (
    key INTEGER PRIMARY KEY,
    tree INTEGER NOT NULL REFERENCES tree (key), sample TEXT NOT NULL, position INTEGER NOT NULL,
    id TEXT NOT NULL UNIQUE, parent TEXT NOT NULL, kind TEXT NOT NULL, speaker TEXT NOT NULL,
    parts TEXT NOT NULL, ids BLOB NOT NULL, calls TEXT NOT NULL, results TEXT NOT NULL,
    author TEXT NOT NULL, draw INTEGER NOT NULL, request TEXT, truncated INTEGER NOT NULL,
    logprobs BLOB, finish TEXT, policy TEXT, version TEXT, seed TEXT, temperature REAL, top_p REAL,
    digest BLOB NOT NULL
);
CREATE INDEX turn_order ON turn (tree, sample, position);
CREATE TABLE outcome (
    tree INTEGER NOT NULL REFERENCES tree (key), leaf TEXT NOT NULL, sample INTEGER NOT NULL,
    reason TEXT NOT NULL, truncated INTEGER NOT NULL, answer TEXT, score REAL,
    digest BLOB NOT NULL,
    PRIMARY KEY (tree, leaf)
) WITHOUT ROWID;
CREATE TABLE credit_kind (
    key INTEGER PRIMARY KEY, settings TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (settings, name)
);
CREATE TABLE credit (
    kind INTEGER NOT NULL REFERENCES credit_kind (key), tree INTEGER NOT NULL REFERENCES tree (key),
    node TEXT NOT NULL, value REAL NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (kind, tree, node)
) WITHOUT ROWID;
CREATE TABLE selection (
    item INTEGER NOT NULL REFERENCES item (key), position INTEGER NOT NULL,
    leaf TEXT NOT NULL, agent TEXT NOT NULL, context TEXT, weight REAL NOT NULL, rejected TEXT,
    digest BLOB NOT NULL,
    PRIMARY KEY (item, position)
) WITHOUT ROWID;
CREATE TABLE left_out (
    item INTEGER NOT NULL REFERENCES item (key), position INTEGER NOT NULL,
    task TEXT NOT NULL, node BLOB NOT NULL, agent TEXT NOT NULL, reason TEXT NOT NULL, number REAL,
    digest BLOB NOT NULL,
    PRIMARY KEY (item, position)
) WITHOUT ROWID;
CREATE INDEX left_out_node ON left_out (node);
CREATE TABLE optimizer_step (
    key INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL, stage TEXT NOT NULL, role TEXT NOT NULL, updates INTEGER NOT NULL,
    step INTEGER, digest BLOB NOT NULL,
    UNIQUE (iteration, stage, role, updates)
);
CREATE TABLE trained (
    optimizer_step INTEGER NOT NULL REFERENCES optimizer_step (key), position INTEGER NOT NULL,
    origin TEXT, leaf BLOB, agent TEXT, segment INTEGER, turn BLOB, context TEXT,
    side TEXT NOT NULL, pair INTEGER, weight REAL NOT NULL, tokens INTEGER NOT NULL,
    advantage BLOB, logprob BLOB, reference BLOB, teacher BLOB, entropy BLOB, clipped BLOB,
    metrics TEXT NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (optimizer_step, position)
);
CREATE INDEX trained_leaf ON trained (leaf);
"""

SEAL = """CREATE TABLE seal (
    scope TEXT PRIMARY KEY NOT NULL, rows INTEGER NOT NULL, sum INTEGER NOT NULL
) WITHOUT ROWID"""
"""Seals of whole tables, and of the rows of each scope. Files of earlier versions get them when they are written."""
OF_TREES = ("turn", "request", "outcome", "credit")
"""Tables whose seals are checked when a tree is read; seals of :data:`OF_FILE` are checked when a file is opened."""
SCOPES = {
    **dict.fromkeys(OF_TREES, ("tree",)),
    "left_out": ("item",),
    "trained": ("optimizer_step",),
}
"""Columns whose values name a seal, for tables that are sealed in parts."""
OF_FILE = (
    "task", "secret", "item", "tree", "toolset", "credit_kind", "selection", "optimizer_step"
)  # fmt: skip
PLACES = {
    "task": 0, "secret": 0, "item": 1, "toolset": 1, "request": 2, "turn": 4, "outcome": 1, "credit": 2, "selection": 1,
    "left_out": 1, "optimizer_step": 1, "trained": 1
}  # fmt: skip
"""Number of first columns of each table that the digest excludes."""
NAMED = {"item": 4, "secret": 2, "optimizer_step": 4}
"""Number of columns that name a row in messages, if it is not 1."""


@cache
def _schema() -> tuple[set[tuple[str, str]], dict[str, list[str]]]:
    """Return names and statements of all tables and indices, and the columns of each table."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(TABLES + SEAL)
        existing = set(db.execute(NAMES))
        columns = {
            table: [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            for table in (*OF_FILE, *SCOPES)
        }
    return existing, columns


def whole(table: str, alias: str = "") -> str:
    """Return an SQL condition that is true if a row's digest fits its values."""
    # Column names come from the schema itself, so that the two can't differ.
    columns = _schema()[1][table][PLACES[table] : -1]
    values = ", ".join(f"{alias or table}.{name}" for name in columns)
    return f"digest_of({values}) = {alias or table}.digest"


def seal_of(*values: object) -> int:
    """Return a hash of a row for a seal: 40 bits, so that an SQLite integer holds the sum of 8 million."""
    return int.from_bytes(digest_of(*values)[:5])


def _sealed(table: str, row: str = "") -> tuple[str, str]:
    """Return SQL expressions of the scope and the hash of a row.

    Digests protect the values of large rows, so the hash has only their keys and digests.
    """
    columns = _schema()[1][table]
    scope = [f"'{table}'", *(row + name for name in SCOPES.get(table, ()))]
    if table in SCOPES:
        columns = [*columns[: PLACES[table]], "digest"]
    return " || ' ' || ".join(scope), f"seal_of({', '.join(row + name for name in columns)})"


def keep_seals(db: sqlite3.Connection) -> None:
    """Update seals with every row that this connection writes."""
    for table in (*OF_FILE, *SCOPES):
        changes = []
        for row, sign in (("OLD.", -1), ("NEW.", 1)):
            scope, sealed = _sealed(table, row)
            changes.append(
                f"INSERT INTO seal VALUES ({scope}, {sign}, {sign} * {sealed}) ON CONFLICT (scope) "
                "DO UPDATE SET rows = rows + excluded.rows, sum = sum + excluded.sum;"
            )
        for event, change in (
            ("DELETE", changes[0]),
            ("INSERT", changes[1]),
            ("UPDATE", "".join(changes)),
        ):
            db.execute(
                f"CREATE TEMP TRIGGER {event}_{table} AFTER {event} ON main.{table} BEGIN {change} END"
            )


def make_seals(db: sqlite3.Connection) -> None:
    """Seal the rows as they are."""
    db.execute("DELETE FROM seal")
    for table in (*OF_FILE, *SCOPES):
        scope, sealed = _sealed(table)
        db.execute(
            f"INSERT INTO seal SELECT {scope}, count(*), sum({sealed}) FROM {table} GROUP BY 1"
        )


def check_seals(db: sqlite3.Connection, names: Sequence[str], *values: object) -> None:
    """Raise :class:`BrokenRecord` unless the rows of tables, all or those of a scope, are the sealed rows.

    ``values`` are the values of the columns in :data:`SCOPES`, such as the key of a tree.
    """
    for table in names:
        scope, rows, where = " ".join(map(str, (table, *values))), f"main.{table}", ""
        if values:
            where = f"WHERE ({', '.join(SCOPES[table])}) = ({', '.join('?' * len(values))})"
        if table == "credit":  # its primary key begins with the kind
            rows = f"main.credit_kind k CROSS JOIN {rows} ON kind = k.key"
        # One statement, since a reader's file may be written between two.
        count, total, sealed = db.execute(
            f"SELECT count(*), coalesce(sum({_sealed(table)[1]}), 0), "
            f"(SELECT rows || ' ' || sum FROM seal WHERE scope = ?) FROM {rows} {where}",
            (scope, *values),
        ).fetchone()
        if (sealed or "0 0") != f"{count} {total}":
            if not values and table in PLACES:
                find = f"SELECT * FROM {table} WHERE NOT ({whole(table)}) LIMIT 1"
                start = PLACES[table]
                for row in db.execute(find):  # a secret's text is not named
                    name = "/".join(map(str, row[start : start + NAMED.get(table, 1)]))
                    raise BrokenRecord(f"{table} {name} differs from its digest")
            expected = (sealed or "0").partition(" ")[0]
            raise BrokenRecord(f"it has {count} of {expected} rows of '{scope}', or changed keys")


def insert(db: sqlite3.Connection, table: str, row: Sequence[object]) -> int:
    """Insert a row with the digest of its values, and return its row id."""
    placeholders = ", ".join("?" * (len(row) + 1))
    # Keys that are numbered in order of insertion differ between equal stores, so the digest skips them.
    values = (*row, digest_of(*row[PLACES[table] :]))
    return db.execute(f"INSERT INTO {table} VALUES ({placeholders})", values).lastrowid or 0


def prepare(db: sqlite3.Connection, path: Path, *, read_only: bool, check: bool = True) -> bool:
    """Create the tables of a new file, or of one whose creation was interrupted, and check the tables of other files.

    Returns False for a file without seals, which an earlier version wrote.
    """

    def pragma(name: str) -> Any:
        return db.execute(f"PRAGMA {name}").fetchone()[0]

    (count,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    # An empty file is new, or was left by a process that was killed before this transaction.
    # Another program's file without tables has an application id or a version.
    if not (read_only or count or pragma("application_id") or pragma("user_version")):
        db.executescript(
            f"BEGIN IMMEDIATE; {TABLES}"
            f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"
        )
    if pragma("application_id") != APPLICATION:
        raise UserError(
            f"{path} is an SQLite file, but not a coterie store",
            "give the path of a run's store, or of a new file",
        )
    if (version := pragma("user_version")) != VERSION:
        raise UserError(
            f"{path} has store schema {version}; this version of coterie reads schema {VERSION}",
            "open it with the version that wrote it, or start a new run folder",
        )
    if not read_only:
        # In this mode readers (such as a report of a running run) and the writer don't block each other.
        if pragma("journal_mode = WAL") != "wal":
            raise UserError(
                f"SQLite cannot use its WAL mode for {path}", "put the run folder on a local disk"
            )
        # A commit reaches the operating system, but does not wait for the disk (4 ms).
        db.execute("PRAGMA synchronous = NORMAL")
    names = set(db.execute(NAMES))
    is_sealed = any(name == "seal" for name, _ in names)
    if names | {("seal", SEAL)} != _schema()[0]:
        raise BrokenRecord("its tables are not those of a store")
    db.create_function("digest_of", -1, digest_of, deterministic=True)
    db.create_function("seal_of", -1, seal_of, deterministic=True)
    db.create_function(
        "unhex", 1, bytes.fromhex, deterministic=True
    )  # from SQLite 3.41 on built in
    if is_sealed and check:
        for table in OF_FILE:
            if (verdict := db.execute(f"PRAGMA integrity_check({table})").fetchone()) != ("ok",):
                raise BrokenRecord(verdict[0])
        check_seals(db, OF_FILE)
    if not read_only:
        if not is_sealed:
            db.execute("BEGIN IMMEDIATE")
            db.execute(SEAL)
            make_seals(db)
            db.execute("COMMIT")
        keep_seals(db)
    return is_sealed or not read_only


def add_task(db: sqlite3.Connection, task: Task) -> None:
    """Write a task, whose public fields must be plain JSON."""
    public = dict(task.public)
    try:
        text = json.dumps(public, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        stored_public = value_of(PUBLIC, text)  # fails for more levels than can be read again
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"public fields of task {task.id!r} are not JSON: {str(error)[:200]}"
        raise UserError(problem, "use numbers, strings, flat lists and dicts") from error
    if stored_public != public:  # JSON would change tuples, and keys that are not strings
        raise UserError(
            f"public fields of task {task.id!r} are not plain JSON",
            "use lists instead of tuples, and strings as keys",
        )
    secrets = [
        # Any reader's name opens it; readers are stored, and apply again when it is read.
        (task.id, name, secret.reveal(min(secret.readers)), json_of(secret.readers))
        for name, secret in sorted(task.secrets.items())
    ]
    # A resumed run adds its tasks again; only a difference is an error.
    old = db.execute("SELECT public FROM task WHERE id = ?", (task.id,)).fetchone()
    if old:
        stored = db.execute(
            "SELECT task, name, text, readers FROM secret WHERE task = ? ORDER BY name", (task.id,)
        )
        if old != (text,) or stored.fetchall() != secrets:
            raise ValueError(f"the store already has another task with id {task.id!r}")
        return
    insert(db, "task", (task.id, text))
    for secret in secrets:
        insert(db, "secret", secret)


def write_item(
    db: sqlite3.Connection,
    item: Item,
    tree: Tree | None = None,
    credit: Sequence[Credit] = (),
    selections: Sequence[Selection] = (),
    left_out: Sequence[LeftOut] = (),
) -> None:
    """Write an item that is not finished yet, with its results."""
    # A finished item is final: a resumed run must not do it twice.
    if item_row(db, item.key) is not None:
        raise ValueError(f"{item.key} is finished already")
    key = (item.key.iteration, item.key.stage, item.key.task, item.key.sample)
    row = insert(db, "item", (None, *key, item.failure, json_of(item.metrics)))
    if tree is not None:
        write_tree(db, item.key, tree)
    kinds = dict[tuple[str, str], int]()
    for credit_value in credit:
        _add_credit(db, credit_value, kinds)
    for position, selection in enumerate(selections):
        for turn in (selection.leaf, selection.rejected):
            # A selection may be of a tree that an earlier stage has written.
            find = "SELECT 1 FROM turn WHERE id = ?"
            if turn is not None and not db.execute(find, (turn,)).fetchone():
                raise ValueError(f"turn {turn} of a selection is not in the store")
        leaf, weight = (selection.leaf, selection.agent, selection.context), float(selection.weight)
        insert(db, "selection", (row, position, *leaf, weight, selection.rejected))
    for position, entry in enumerate(left_out):
        number = None if entry.number is None else float(entry.number)
        names = (entry.task, bytes.fromhex(entry.node), entry.agent, entry.reason)
        insert(db, "left_out", (row, position, *names, number))


def write_update(db: sqlite3.Connection, update: Update) -> None:
    """Write the rows of an optimizer step in place of the rows of an earlier attempt."""
    scope = (update.iteration, update.stage, update.role, update.number)
    # A training that was killed repeats the steps after its last checkpoint.
    db.execute(f"DELETE FROM trained WHERE optimizer_step IN (SELECT key {OF_STEP})", scope)
    db.execute(f"DELETE {OF_STEP}", scope)
    step = insert(db, "optimizer_step", (None, *scope, update.step)) if update.rows else 0
    for position, row in enumerate(update.rows):
        leaf, _, rest = row.origin.partition("/")
        agent, _, segment = rest.rpartition("/")
        # Rows of files have an origin, too, but no path in the store.
        in_tree = db.execute("SELECT 1 FROM turn WHERE id = ?", (leaf,)).fetchone()
        path: tuple[object, ...] = (row.origin, *[None] * 4)
        if in_tree:  # ids as text would take a fifth of the space of a short row
            turn = row.turn and bytes.fromhex(row.turn)
            path = (None, bytes.fromhex(leaf), agent, int(segment), turn)
        of_item = (row.context, row.side, row.pair, row.weight, row.tokens)
        values = (*of_item, *packed(row), json_of(row.metrics))
        insert(db, "trained", (step, position, *path, *values))


def item_row(db: sqlite3.Connection, key: ItemKey) -> int | None:
    """Return the key of a finished item in the tables; ``None`` if it is not finished."""
    row = db.execute(
        "SELECT key FROM item WHERE (iteration, stage, task, sample) = (?, ?, ?, ?)",
        (key.iteration, key.stage, key.task, key.sample),
    ).fetchone()
    return row[0] if row else None


def write_tree(db: sqlite3.Connection, key: ItemKey, tree: Tree) -> None:
    """Write the turns of an item's tree that the store does not have.

    ``sample`` and ``position`` (among turns and requests) of a turn are the minimum over all items that contain it, so
    a tree does not depend on the order in which its items finished.
    """
    if (tree.iteration, tree.stage, tree.task) != (key.iteration, key.stage, key.task):
        raise ValueError(f"the tree of {tree.iteration}/{tree.stage}/{tree.task} is not {key}'s")
    # All samples of a task are items of their own, and add their turns to one tree.
    tree_key = (tree.iteration, tree.stage, tree.task, tree.root)
    db.execute("INSERT OR IGNORE INTO tree VALUES (NULL, ?, ?, ?, ?)", tree_key)
    find = "SELECT key FROM tree WHERE root = ?"
    row: int = db.execute(find, (tree.root,)).fetchone()[0]
    db.executemany("INSERT OR IGNORE INTO blob VALUES (?, ?)", tree.images.items())
    # A request gets its place right before its first turn. Several turns may have the same request
    # (candidates), and some requests no turn.
    waiting, position = dict(tree.requests), -1
    for turn in tree.turns.values():
        position += 1
        if turn.prompt in waiting:
            _add_request(db, row, waiting.pop(turn.prompt))
            position += 1
        find = "SELECT sample, position FROM turn WHERE id = ?"
        old = db.execute(find, (turn.id,)).fetchone()
        if old is None:
            # A turn whose references are missing could never be trained or shown.
            if turn.prompt is not None and turn.prompt not in tree.requests:
                raise ValueError(f"request {turn.prompt} of turn {turn.id} is not in its tree")
            if turn.parent != tree.root and not db.execute(find, (turn.parent,)).fetchone():
                raise ValueError(f"parent of turn {turn.id}: node {turn.parent} is not in its tree")
            # Images may have been written with an earlier tree, so they are looked up in the store.
            for image in filter(None, (part.image for part in turn.parts)):
                if not db.execute("SELECT 1 FROM blob WHERE hash = ?", (image,)).fetchone():
                    raise ValueError(f"image {image} of turn {turn.id} is not in the store")
            _insert_turn(db, row, turn, key.sample, position)
        elif (key.sample, position) < old:
            # Equal turns of several samples are one row; the digest excludes these two columns.
            move = "UPDATE turn SET sample = ?, position = ? WHERE id = ?"
            db.execute(move, (key.sample, position, turn.id))
    for request in waiting.values():
        _add_request(db, row, request)
    for outcome in tree.outcomes.values():
        _add_outcome(db, row, outcome)


def _add_request(db: sqlite3.Connection, tree: int, request: Request) -> None:
    if db.execute("SELECT 1 FROM request WHERE (tree, id) = (?, ?)", (tree, request.id)).fetchone():
        return
    toolset = None
    if request.tools:
        # Nearly all requests of a run offer the same tools, so they are stored once.
        text = json_of(request.tools)
        row = db.execute("SELECT key FROM toolset WHERE tools = ?", (text,)).fetchone()
        toolset = row[0] if row else insert(db, "toolset", (None, text))
    header = (request.agent, request.parent, request.previous, request.keep)
    # Four bytes for each token, less than as JSON text.
    ids = np.array(request.ids, dtype=IDS).tobytes()
    message_delta = (request.keep_messages, json_of(request.messages))
    insert(db, "request", (tree, toolset, request.id, *header, ids, *message_delta))


def _insert_turn(db: sqlite3.Connection, tree: int, turn: Turn, sample: str, position: int) -> None:
    row = (
        *(None, tree, sample, position, turn.id, turn.parent, turn.speaker.kind, turn.speaker.name),
        *(json_of(turn.parts), np.array(turn.ids, dtype=IDS).tobytes()),
        *(json_of(turn.calls), json_of(turn.results), turn.author, turn.draw, turn.prompt),
        int(turn.truncated),
    )
    result = turn.sample
    # Columns of the sample are NULL for an unsampled turn.
    sampled = result and (
        np.array(result.logprobs, dtype=LOGPROBS).tobytes(),
        result.finish,
        result.policy,
        json_of(result.versions) if result.versions else result.version,
        str(result.seed),  # unsigned 64-bit seeds exceed an SQLite integer
        float(result.temperature),
        float(result.top_p),
    )
    insert(db, "turn", (*row, *(sampled or (None,) * 7)))


def _add_outcome(db: sqlite3.Connection, tree: int, outcome: Outcome) -> None:
    ending, score = outcome.ending, None if outcome.score is None else float(outcome.score)
    header = (outcome.leaf, outcome.sample, ending.reason, int(ending.truncated))
    row = (*header, outcome.answer, score)
    find = "SELECT leaf, sample, reason, truncated, answer, score FROM outcome WHERE (tree, leaf) = (?, ?)"
    old = db.execute(find, (tree, outcome.leaf)).fetchone()
    if old is None:
        insert(db, "outcome", (tree, *row))
    elif old != row:
        raise ValueError(
            f"leaf {outcome.leaf} already has the outcome {old[1:]}, not {row[1:]}; "
            "use separate draws for separate samples"
        )


def _add_credit(db: sqlite3.Connection, credit: Credit, kinds: dict[tuple[str, str], int]) -> None:
    """Write a value of credit; ``kinds`` has the keys of the kinds that the item had so far."""
    # Credit is on a turn or on a root. Its own tree need not be given: node ids are unique.
    find = "SELECT tree FROM turn WHERE id = ? UNION ALL SELECT key FROM tree WHERE root = ?"
    trees = db.execute(find, (credit.node, credit.node)).fetchone()
    if trees is None:
        raise ValueError(f"node {credit.node} of credit {credit.name!r} is not in the store")
    (tree,), kind = trees, (credit.settings, credit.name)
    if kind not in kinds:
        kinds[kind] = kind_key(db, *kind)
    kind_id = kinds[kind]
    find = "SELECT value FROM credit WHERE (kind, tree, node) = (?, ?, ?)"
    old = db.execute(find, (kind_id, tree, credit.node)).fetchone()
    if old is None:
        insert(db, "credit", (kind_id, tree, credit.node, float(credit.value)))
    # Repeating a stage must give the same number; new settings have another kind.
    elif old != (credit.value,):
        raise ValueError(
            f"node {credit.node} already has {credit.name} = {old[0]} under settings {credit.settings}, "
            f"not {credit.value}"
        )


def kind_key(db: sqlite3.Connection, settings: str, name: str) -> int:
    db.execute("INSERT OR IGNORE INTO credit_kind VALUES (NULL, ?, ?)", (settings, name))
    find = "SELECT key FROM credit_kind WHERE (settings, name) = (?, ?)"
    key: int = db.execute(find, (settings, name)).fetchone()[0]
    return key
