"""Tables of a store, and the check of its schema version.

Turns and requests belong to their tree. ``sample`` and ``position`` of a turn are the minimum over all items that
contain it, so a tree reads the same whatever order its items finished in. Each row has a digest of its values, without
the keys of rows in this file (:data:`PLACES`).
"""

import sqlite3
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from coterie.errors import UserError
from coterie.trajectories.codec import digest_of

APPLICATION = 0x434F5445
"""The SQLite application id of a store (``COTE``)."""
VERSION = 4

TABLES = """
CREATE TABLE task (
    id TEXT PRIMARY KEY NOT NULL,
    public TEXT NOT NULL,
    digest BLOB NOT NULL
);
CREATE TABLE secret (
    task TEXT NOT NULL REFERENCES task (id),
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    readers TEXT NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (task, name)
) WITHOUT ROWID;
CREATE TABLE item (
    key INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL,
    stage TEXT NOT NULL,
    task TEXT NOT NULL,
    sample TEXT NOT NULL,
    failure TEXT,
    metrics TEXT NOT NULL,
    digest BLOB NOT NULL,
    UNIQUE (iteration, stage, task, sample)
);
CREATE TABLE tree (
    key INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL,
    stage TEXT NOT NULL,
    task TEXT NOT NULL,
    root TEXT NOT NULL UNIQUE,
    UNIQUE (iteration, stage, task)
);
CREATE TABLE blob (
    hash TEXT PRIMARY KEY NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE toolset (
    key INTEGER PRIMARY KEY,
    tools TEXT NOT NULL UNIQUE,
    digest BLOB NOT NULL
);
CREATE TABLE request (
    tree INTEGER NOT NULL REFERENCES tree (key),
    toolset INTEGER REFERENCES toolset (key),
    id TEXT NOT NULL,
    agent TEXT NOT NULL,
    parent TEXT NOT NULL,
    previous TEXT,
    keep INTEGER NOT NULL,
    ids BLOB NOT NULL,
    keep_messages INTEGER NOT NULL,
    messages TEXT NOT NULL,
    digest BLOB NOT NULL,
    UNIQUE (tree, id)
);
CREATE TABLE turn (
    key INTEGER PRIMARY KEY,
    tree INTEGER NOT NULL REFERENCES tree (key),
    sample TEXT NOT NULL,
    position INTEGER NOT NULL,
    id TEXT NOT NULL UNIQUE,
    parent TEXT NOT NULL,
    kind TEXT NOT NULL,
    speaker TEXT NOT NULL,
    parts TEXT NOT NULL,
    ids BLOB NOT NULL,
    calls TEXT NOT NULL,
    results TEXT NOT NULL,
    author TEXT NOT NULL,
    draw INTEGER NOT NULL,
    request TEXT,
    truncated INTEGER NOT NULL,
    logprobs BLOB,
    finish TEXT,
    policy TEXT,
    version TEXT,
    seed TEXT,
    temperature REAL,
    top_p REAL,
    digest BLOB NOT NULL
);
CREATE INDEX turn_order ON turn (tree, sample, position);
CREATE TABLE outcome (
    tree INTEGER NOT NULL REFERENCES tree (key),
    leaf TEXT NOT NULL,
    sample INTEGER NOT NULL,
    reason TEXT NOT NULL,
    truncated INTEGER NOT NULL,
    answer TEXT,
    score REAL,
    digest BLOB NOT NULL,
    PRIMARY KEY (tree, leaf)
) WITHOUT ROWID;
CREATE TABLE credit_kind (
    key INTEGER PRIMARY KEY,
    settings TEXT NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (settings, name)
);
CREATE TABLE credit (
    kind INTEGER NOT NULL REFERENCES credit_kind (key),
    tree INTEGER NOT NULL REFERENCES tree (key),
    node TEXT NOT NULL,
    value REAL NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (kind, tree, node)
) WITHOUT ROWID;
CREATE TABLE selection (
    item INTEGER NOT NULL REFERENCES item (key),
    position INTEGER NOT NULL,
    leaf TEXT NOT NULL,
    agent TEXT NOT NULL,
    context TEXT,
    weight REAL NOT NULL,
    rejected TEXT,
    digest BLOB NOT NULL,
    PRIMARY KEY (item, position)
) WITHOUT ROWID;
"""

PLACES = {
    "task": 0, "secret": 0, "item": 1, "toolset": 1, "request": 2, "turn": 4, "outcome": 1, "credit": 2, "selection": 1
}  # fmt: skip
"""Number of first columns of each table that the digest excludes."""


@cache
def whole(table: str, alias: str) -> str:
    """Return an SQL condition that is true if a row's digest fits its values."""
    db = sqlite3.connect(":memory:")
    db.executescript(TABLES)
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    values = ", ".join(f"{alias}.{name}" for name in columns[PLACES[table] : -1])
    return f"digest_of({values}) = {alias}.digest"


def insert(db: sqlite3.Connection, table: str, row: Sequence[object]) -> int:
    """Insert a row with the digest of its values, and return its row id."""
    places = ", ".join("?" * (len(row) + 1))
    values = (*row, digest_of(*row[PLACES[table] :]))
    return db.execute(f"INSERT INTO {table} VALUES ({places})", values).lastrowid or 0


def is_empty(db: sqlite3.Connection) -> bool:
    """Return True for a new file, or one whose creation was interrupted."""
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return tables == 0 and _pragma(db, "application_id") == 0 and _pragma(db, "user_version") == 0


def create(db: sqlite3.Connection) -> None:
    """Create the tables of a new store in one transaction."""
    db.executescript(
        f"BEGIN IMMEDIATE; {TABLES}"
        f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"
    )


def check(db: sqlite3.Connection, path: Path) -> None:
    """Raise :class:`UserError` for a file that is not a store or has another schema version."""
    if _pragma(db, "application_id") != APPLICATION:
        raise UserError(
            f"{path} is an SQLite file, but not a coterie store",
            "give the path of a run's store, or of a new file",
        )
    version = _pragma(db, "user_version")
    if version != VERSION:
        raise UserError(
            f"{path} has store schema {version}; this version of coterie reads schema {VERSION}",
            "open it with the version that wrote it, or start a new run folder",
        )


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"PRAGMA {name}").fetchone()[0]
    return value
