"""Where a store can go wrong: foreign files, kill -9, second writers, full and unsafe disks."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

import coterie
from coterie.errors import UserError
from coterie.record.store import Store
from coterie.record.store_file import unsafe_filesystem
from coterie.record.tables import write_item, write_tree
from coterie.record.tree import Item
from tests.helpers.random_trees import fill_store, item_key, random_tree

Mount = namedtuple("Mount", "mountpoint fstype")
HERE = Path(__file__).parent
SOURCES = os.pathsep.join([str(Path(coterie.__file__).parents[1]), str(HERE)])


def child(function: str, path: Path) -> subprocess.Popen[str]:
    """Another Python process that runs a function of this module, its output a pipe."""
    run = "import sys, test_store_disk as t; getattr(t, sys.argv[1])(t.Path(sys.argv[2]))"
    command, sources = [sys.executable, "-uc", run, function, str(path)], {"PYTHONPATH": SOURCES}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | sources)


# Files that are not a store


def test_foreign_newer_and_missing_files_are_refused(tmp_path):
    foreign, text, newer = tmp_path / "f.db", tmp_path / "t.db", tmp_path / "n.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE mine (x)")
    text.write_text("not a database, but long enough to be read as the header of one " * 20)
    older = tmp_path / "older.db"
    for file, version in ((newer, 99), (older, 2)):
        Store.open(file).close()
        with sqlite3.connect(file) as db:
            db.execute(f"PRAGMA user_version = {version}")
    for path, reason in [
        (foreign, "not a coterie store"),
        (text, "is not an SQLite file"),
        (newer, "store schema 99; this version of coterie reads schema 5"),
        (older, "store schema 2; this version of coterie reads schema 5\n.*start a new run folder"),
    ]:
        with pytest.raises(UserError, match=reason):
            Store.open(path)
    with pytest.raises(UserError, match="no store at"):
        Store.open(tmp_path / "none.db", read_only=True)
    assert text.read_text().startswith("not a database"), "refusing changes nothing"


def test_a_file_whose_creation_was_interrupted_is_made_anew_and_readers_write_nothing(tmp_path):
    path = tmp_path / "s.db"
    path.touch()
    with pytest.raises(UserError, match="not a coterie store"):
        Store.open(path, read_only=True)
    with Store.open(path) as store:
        store.finish(item_key("t"))
    with Store.open(path, read_only=True) as store, pytest.raises(UserError, match="readonly"):
        store.finish(item_key("u"))


def test_damage_is_named(tmp_path):
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        fill_store(store, 30)
    whole_file = path.read_bytes()
    for change in (
        "turn SET parts = replace(parts, 't', 'T')", "turn SET logprobs = zeroblob(length(logprobs))",
        "turn SET temperature = temperature + 1", "turn SET parent = 'x'", "request SET ids = zeroblob(4)",
        "outcome SET score = 0.125",
    ):  # fmt: skip
        path.write_bytes(whole_file)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            assert db.execute(f"UPDATE {change}").rowcount, change
        said = rf"{path} is damaged: .*item 0/rollout/.* differs from its digest"
        with Store.open(path) as store, pytest.raises(UserError, match=said):
            _ = list(store.trees(0, "rollout")), store.items(0, "rollout")
        assert drop_damage(path) < 30
    path.write_bytes(whole_file[:8192] + os.urandom(len(whole_file) - 8192))
    with pytest.raises(UserError, match="is damaged"), Store.open(path) as store:
        list(store.trees(0, "rollout"))


def drop_damage(path: Path) -> int:
    """Return the number of trees that are left, all of which can be read."""
    with Store.open(path, check=False) as store:
        store.repair()
    with Store.open(path) as store:
        return len(list(store.trees(0, "rollout")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE item SET metrics = '{\"a\":1}' WHERE key = 7", "item 0/rollout/t002/0 differs"),
        ("UPDATE item SET stage = 'reward' WHERE key = 7", "item 0/reward/t002/0 differs"),
        ("UPDATE item SET key = 999 WHERE key = 7", "90 of 90 rows of 'item'"),
        ("DELETE FROM item WHERE key = 7", "89 of 90 rows of 'item'"),
        ("DELETE FROM tree WHERE key = 7", "29 of 30 rows of 'tree'"),
        ("UPDATE tree SET task = 'x' WHERE key = 7", "30 of 30 rows of 'tree'"),
        ("DELETE FROM outcome WHERE tree = 7 AND sample = 0", "item 0/rollout/t006: .* of 'outcome 7'"),
        ("DELETE FROM turn WHERE key = (SELECT max(key) FROM turn WHERE tree = 7)", "'turn 7'"),
        ("UPDATE turn SET sample = '9' WHERE tree = 7", "rows of 'turn 7', or changed keys"),
        ("UPDATE turn SET tree = 8 WHERE tree = 7", "item 0/rollout/t00[67]: .* rows of 'turn [78]'"),
        ("UPDATE request SET toolset = 99 WHERE tree = 7", "rows of 'request 7', or changed keys"),
        ("UPDATE turn SET parts = CAST(x'ff' AS TEXT) WHERE tree = 7", "user-defined function"),
    ],
)  # fmt: skip
def test_missing_rows_and_changed_keys_are_named_and_dropped(tmp_path, change, said):
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        fill_store(store, 30)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute(change).rowcount
    with pytest.raises(UserError, match=f"is damaged: .*{said}"), Store.open(path) as store:
        list(store.trees(0, "rollout"))
    assert drop_damage(path) in (28, 29, 30)


def test_a_store_without_seals_is_read_and_sealed_when_it_is_written(tmp_path):
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        fill_store(store, 3)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        seals = db.execute("SELECT * FROM seal").fetchall()
        db.execute("DROP TABLE seal")
    with Store.open(path, read_only=True) as store:
        assert len(list(store.trees(0, "rollout"))) == 3
    with Store.open(path) as store:
        store.finish(item_key("more"), tree=random_tree(9, "more"))
        assert len(list(store.trees(0, "rollout"))) == 4
    with Store.open(path) as store, contextlib.closing(sqlite3.connect(path)) as db:
        changed = {name for name, *_ in {*seals} - {*db.execute("SELECT * FROM seal")}}
        assert {"item", "tree"} <= changed <= {"item", "tree", "toolset"}


# Processes


def write_and_wait(path: Path) -> None:
    store = Store.open(path)
    fill_store(store, 1)
    print("ready")
    time.sleep(600)


def test_a_second_writer_is_refused_and_told_who_writes_but_readers_are_not(tmp_path):
    path = tmp_path / "s.db"
    writer = child("write_and_wait", path)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        with pytest.raises(UserError, match=f"written by process {writer.pid} "):
            Store.open(path)
        with Store.open(path, read_only=True) as store:
            assert len(store.finished_keys(0, "rollout")) == 3
    finally:
        writer.kill()
        writer.wait()
    with Store.open(path) as store:
        store.finish(item_key("after"))


def wait_inside_a_transaction(path: Path) -> None:
    store = Store.open(path)
    fill_store(store, 5)
    with store.transaction() as db:
        db.execute("PRAGMA cache_size = 1")  # what does not fit is written before the commit
        write_item(db, Item(item_key("half")))
        for number in range(200):
            write_tree(db, item_key(f"x{number}"), random_tree(number, f"x{number}"))
        print("inside")
        time.sleep(600)


def test_a_writer_killed_inside_a_transaction_loses_that_item_and_nothing_else(tmp_path):
    path = tmp_path / "s.db"
    writer = child("wait_inside_a_transaction", path)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "inside\n"
    assert Path(f"{path}-wal").stat().st_size > 500_000, "some of the item is on disk already"
    os.kill(writer.pid, signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL
    with Store.open(path) as store:
        assert not store.finished(item_key("half"))
        assert list(store.trees(0, "rollout")) == [random_tree(n, f"t{n:03}") for n in range(5)]
        store.finish(item_key("half"), tree=random_tree(9, "half"))
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# Disks


def fill_up(store: Store) -> None:
    for number in range(1000):
        store.finish(item_key(f"x{number}"), tree=random_tree(number, f"x{number}"))


def test_a_full_file_rolls_the_item_back_and_keeps_the_rest(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        fill_store(store, 2)
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(UserError, match=r"MiB free.*nothing committed is lost.*\n.*resumes"):
            fill_up(store)
        number = len(list(store.trees(0, "rollout"))) - 2
        assert not store.finished(item_key(f"x{number}"))
        assert store.tree(0, "rollout", "t001") == random_tree(1, "t001")
        store._db.execute("PRAGMA max_page_count = 1000000")
        store.finish(item_key(f"x{number}"), tree=random_tree(number, f"x{number}"))


MOUNTS = [
    Mount(*one)
    for one in (
        ("/", "fuse.fuse-overlayfs"), ("/home/me/scratch", "ext4"), ("/home/me", "nfs4"),
        ("/mnt/far", "fuse.sshfs"), ("/mnt/share", "CIFS"), ("/over", "ext4"), ("/over", "nfs"),
    )
]  # fmt: skip
"""Made up: no machine of ours has these file systems."""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/run.db", "nfs4"), ("/home/me/scratch/run.db", None), ("/home/meadow/run.db", None),
        ("/mnt/far/run.db", "fuse.sshfs"), ("/mnt/share/run.db", "cifs"), ("/over/run.db", "nfs"),
    ],
)  # fmt: skip
def test_the_file_system_of_the_longest_mount_point_counts(path, kind):
    assert unsafe_filesystem(Path(path), MOUNTS) == kind


def test_a_store_on_an_unsafe_file_system_is_refused_with_advice(tmp_path, monkeypatch):
    table = [Mount("/", "ext4"), Mount(str(tmp_path), "nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: table)
    with pytest.raises(UserError, match=r"on a nfs4 file system.*\n.*local disk"):
        Store.open(tmp_path / "s.db")
    assert list(tmp_path.iterdir()) == []
