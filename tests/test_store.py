"""The store: real files, real processes, a really full disk."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import coterie
from coterie.errors import UserError
from coterie.trajectories.disk import unsafe_filesystem
from coterie.trajectories.item import ItemKey
from coterie.trajectories.store import Credit, Selection, Store
from coterie.trajectories.table import write_tree
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import Part, Sample, Speaker, Turn, make_turn
from random_trees import episodes, whole

Mount = namedtuple("Mount", "mountpoint fstype")
HERE = Path(__file__).parent
SOURCES = os.pathsep.join([str(Path(coterie.__file__).parents[1]), str(HERE)])


def key(task: str, sample: int = 0) -> ItemKey:
    return ItemKey(0, "rollout", task, str(sample))


def fill(store: Store, tasks: int) -> None:
    """Finish three samples of each of so many tasks."""
    for number in range(tasks):
        for sample, tree in enumerate(episodes(number, f"t{number:03}")):
            store.finish(key(f"t{number:03}", sample), tree=tree)


def fill_up(store: Store) -> None:
    """Finish items until an error."""
    for number in range(1000):
        store.finish(key(f"x{number}"), tree=whole(number, f"x{number}"))


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another Python process, its output a pipe."""
    return subprocess.Popen(
        [sys.executable, "-uc", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": SOURCES},
    )


def one_turn(task: str, iteration: int = 0) -> Tree:
    """A tree of a single turn."""
    tree = Tree(task, "rollout", iteration)
    speaker = Speaker("environment", "world")
    turn = make_turn(tree.root, speaker, [Part(task)], author="environment")
    tree.add(turn)
    tree.end(Outcome(turn.id, 0, "agreed", None, 1.0))
    return tree


# What goes in comes out


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_comes_back_equal_whatever_order_its_samples_finish_in(tmp_path, seed):
    order = list(enumerate(episodes(seed, "t")))
    random.Random(seed).shuffle(order)
    with Store.open(tmp_path / "s.db") as store:
        for sample, tree in order:
            store.finish(key("t", sample), tree=tree)
    with Store.open(tmp_path / "s.db", read_only=True) as store:
        stored = store.tree(0, "rollout", "t")
    expected = whole(seed, "t")
    assert stored == expected
    assert list(stored.turns) == list(expected.turns), "the order of turns, too"
    for request in expected.requests.values():
        assert stored.messages(stored.requests[request.id]) == expected.messages(request)


def test_trees_stream_in_order_of_task_and_see_a_stage_only(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        for task in ("b", "c", "a"):
            store.finish(key(task), tree=one_turn(task))
        assert [tree.task for tree in store.trees(0, "rollout")] == ["a", "b", "c"]
        assert list(store.trees(0, "evaluate")) == list(store.trees(1, "rollout")) == []
        with pytest.raises(KeyError, match="no tree of 1/rollout/a"):
            store.tree(1, "rollout", "a")
        trees = store.trees(0, "rollout")
        next(trees)
        store.finish(key("d"), tree=one_turn("d"))  # writing while reading is allowed
        assert [tree.task for tree in trees] == ["b", "c"]


def test_tasks_come_back_with_their_secrets_and_must_be_plain_json(tmp_path):
    secret = Secret("42", name="gold", readers=frozenset({"critic"}))
    task = Task("t", {"question": "6 × 7?", "levels": [1, 2.5, None]}, {"gold": secret})
    with Store.open(tmp_path / "s.db") as store:
        store.put_tasks([task])
        store.put_tasks([task])
        assert store.task("t") == task
        assert store.task("t").secrets["gold"].reveal("critic") == "42"
        with pytest.raises(ValueError, match="another task with id 't'"):
            store.put_tasks([Task("t", {"question": "?"})])
        with pytest.raises(ValueError, match="plain JSON"):
            store.put_tasks([Task("u", {"pair": (1, 2)})])
        with pytest.raises(KeyError, match="task 'u'"):
            store.task("u")


def test_items_metrics_and_failures(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.finish(key("b"), tree=one_turn("b"), metrics={"tokens": 3, "loss": 0.5, "end": "x"})
        store.finish(key("a"), failure="the server gave no answer in 600 s")
        store.finish(ItemKey(1, "rollout", "a"))
        assert store.finished(key("a"))
        assert not store.finished(key("a", 1))
        assert store.finished_keys(0, "rollout") == {("a", "0"), ("b", "0")}
        assert store.failures() == [(key("a"), "the server gave no answer in 600 s")]
        assert store.failures(iteration=1) == []
        assert store.metrics(0, "rollout") == {
            key("a"): {},
            key("b"): {"tokens": 3, "loss": 0.5, "end": "x"},
        }
        with pytest.raises(ValueError, match="finished already"):
            store.finish(key("a"))


def test_credit_adds_under_new_settings_and_never_overwrites(tmp_path):
    tree = whole(1, "t")
    nodes = [tree.root, *tree.turns]
    with Store.open(tmp_path / "s.db") as store:
        store.finish(key("t"), tree=tree, credit=[Credit(n, "value", 1.0, "a") for n in nodes])
        again = [Credit(n, "value", float(i), "b") for i, n in enumerate(nodes)]
        store.finish(ItemKey(0, "rewards", "t"), credit=again)
        store.finish(ItemKey(0, "rewards", "t", "again"), credit=again)
        assert store.credit("a", "value") == dict.fromkeys(nodes, 1.0)
        assert store.credit("b", "value", nodes[:2]) == {nodes[0]: 0.0, nodes[1]: 1.0}
        assert store.credit("b", "value", iteration=0, stage="rollout").keys() == set(nodes)
        assert store.credit("b", "value", iteration=1) == store.credit("b", "visits") == {}
        with pytest.raises(ValueError, match=r"has value = 1.0 under settings a already"):
            store.finish(ItemKey(1, "rewards", "t"), credit=[Credit(nodes[0], "value", 2.0, "a")])
        assert not store.finished(ItemKey(1, "rewards", "t"))
    with pytest.raises(ValueError, match="not a number"):
        Credit("n", "value", float("nan"), "a")


def test_selections_are_references_in_stored_order(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.finish(key("b"), tree=one_turn("b"))
        store.finish(key("a"), tree=one_turn("a"))
        leaves = [next(iter(one_turn(task).turns)) for task in ("b", "a")]
        chosen = [Selection(leaf, "Alice", "no_format", 0.5) for leaf in leaves]
        store.select(0, "select", chosen, metrics={"kept": 2})
        assert store.selections(0) == [("b", chosen[0]), ("a", chosen[1])]
        assert store.selections(0, "other") == store.selections(1) == []
        assert store.metrics(0, "select")[ItemKey(0, "select", "")] == {"kept": 2}
        with pytest.raises(ValueError, match="is no turn of the store"):
            store.select(1, "select", [Selection("nowhere", "Alice")])


# What does not fit is refused, and leaves nothing behind


def test_a_record_that_contradicts_the_store_is_refused_whole(tmp_path):
    tree = one_turn("t")
    (leaf,) = tree.turns
    other = Tree("t", "rollout", 0, dict(tree.turns), {}, {leaf: Outcome(leaf, 1, "agreed", "", 0)})
    with Store.open(tmp_path / "s.db") as store:
        store.finish(key("t"), tree=tree)
        store.finish(key("t", 1), tree=tree)  # equal work meets itself
        with pytest.raises(ValueError, match="separate draws"):
            store.finish(key("t", 2), tree=other)
        with pytest.raises(ValueError, match="is not ItemKey"):
            store.finish(key("u"), tree=tree)
        with pytest.raises(ValueError, match="node nowhere of credit 'value'"):
            store.finish(key("v"), tree=one_turn("v"), credit=[Credit("nowhere", "value", 1, "s")])
        assert [tree.task for tree in store.trees(0, "rollout")] == ["t"]
        assert store.finished_keys(0, "rollout") == {("t", "0"), ("t", "1")}


def test_a_turn_that_hangs_nowhere_or_answers_nothing_is_refused(tmp_path):
    speaker, sample = (
        Speaker("agent", "A"),
        Sample("q", (1,), (-1.0,), "end", "p", "0", 0, 1.0, 1.0),
    )
    tree = Tree("t", "rollout", 0)
    tree.add(make_turn(tree.root, speaker, [], sample=sample))
    orphan = Tree("t", "rollout", 0, {"x": Turn("x", "gone", speaker, ())})
    with Store.open(tmp_path / "s.db") as store:
        with pytest.raises(ValueError, match="request q of turn"):
            store.finish(key("t"), tree=tree)
        with pytest.raises(ValueError, match="node gone is not in its tree"):
            store.finish(key("t"), tree=orphan)
        assert not store.finished(key("t"))


# Files that are no store


def test_foreign_newer_and_missing_files_are_refused(tmp_path):
    foreign, text, newer = tmp_path / "f.db", tmp_path / "t.db", tmp_path / "n.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE mine (x)")
    text.write_text("not a database, but long enough to be read as the header of one " * 20)
    Store.open(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    for path, reason in [
        (foreign, "not a coterie store"),
        (text, "is not an SQLite file"),
        (newer, "store schema 99; this coterie knows schema 1"),
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "s.db", "does not exist"),
    ]:
        with pytest.raises(UserError, match=reason):
            Store.open(path)
    with pytest.raises(UserError, match="no store at"):
        Store.open(tmp_path / "none.db", read_only=True)
    assert text.read_text().startswith("not a database"), "refusing changes nothing"


def test_a_file_whose_creation_was_interrupted_is_made_anew(tmp_path):
    (tmp_path / "s.db").touch()
    with pytest.raises(UserError, match="is empty"):
        Store.open(tmp_path / "s.db", read_only=True)
    with Store.open(tmp_path / "s.db") as store:
        store.finish(key("t"))


def test_damage_is_named(tmp_path):
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        fill(store, 30)
    whole_file = path.read_bytes()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE turn SET parts = '{' WHERE key = 1")
    with Store.open(path) as store, pytest.raises(UserError, match="is damaged"):
        list(store.trees(0, "rollout"))
    path.write_bytes(whole_file[:8192] + os.urandom(len(whole_file) - 8192))
    with pytest.raises(UserError, match="is damaged"), Store.open(path) as store:
        list(store.trees(0, "rollout"))


def test_a_store_opened_to_be_read_cannot_be_written(tmp_path):
    Store.open(tmp_path / "s.db").close()
    with Store.open(tmp_path / "s.db", read_only=True) as store:
        with pytest.raises(UserError, match="read only"):
            store.finish(key("t"))


# Processes


def test_a_second_writer_is_refused_and_told_who_writes_but_readers_are_not(tmp_path):
    path = tmp_path / "s.db"
    writer = child(
        "import sys, time\n"
        "from test_store import *\n"
        "store = Store.open(sys.argv[1]); fill(store, 1)\n"
        "print('ready'); time.sleep(600)",
        path,
    )
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
        store.finish(key("after"))


KILLED = """
import sys, time
from test_store import *
store = Store.open(sys.argv[1])
fill(store, 5)
with store.transaction() as db:
    add_item(db, Item(key("half")))
    write_tree(db, key("half"), whole(9, "half"))
    db.execute("PRAGMA cache_spill = 1"); db.execute("PRAGMA cache_size = 1")
    for number in range(200):  # more than the cache: some of it is in the file already
        write_tree(db, key(f"x{number}"), whole(number, f"x{number}"))
    print("inside")
    time.sleep(600)
"""


def test_a_writer_killed_inside_a_transaction_loses_that_item_and_nothing_else(tmp_path):
    path = tmp_path / "s.db"
    writer = child(KILLED, path)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "inside\n"
    assert Path(f"{path}-wal").stat().st_size > 500_000, "some of the item is on disk already"
    os.kill(writer.pid, signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL
    with Store.open(path) as store:
        assert not store.finished(key("half"))
        assert list(store.trees(0, "rollout")) == [whole(n, f"t{n:03}") for n in range(5)]
        store.finish(key("half"), tree=whole(9, "half"))
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("lines", [1, 17, 60])
def test_a_writer_killed_at_any_instant_keeps_every_item_it_has_finished(tmp_path, lines):
    path = tmp_path / "s.db"
    writer = child(
        "import sys\n"
        "from test_store import *\n"
        "store = Store.open(sys.argv[1])\n"
        "for n in range(100_000):\n"
        "    store.finish(key(f't{n:06}'), tree=whole(n, f't{n:06}'))\n"
        "    print(n)",
        path,
    )
    assert writer.stdout is not None
    for _ in range(lines):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    told = lines + len(writer.stdout.read().splitlines())
    writer.wait()
    with Store.open(path) as store:
        trees = list(store.trees(0, "rollout"))
        assert told <= len(trees) <= told + 1
        assert trees == [whole(n, f"t{n:06}") for n in range(len(trees))]
        assert len(store.finished_keys(0, "rollout")) == len(trees)


# Disks


def test_a_full_file_rolls_the_item_back_and_keeps_the_rest(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        fill(store, 2)
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(UserError, match=r"MiB free.*nothing committed is lost") as told:
            fill_up(store)
        number = len(list(store.trees(0, "rollout"))) - 2
        assert "resumes" in told.value.todo
        assert isinstance(told.value.__cause__, sqlite3.OperationalError)
        assert not store.finished(key(f"x{number}"))
        assert store.tree(0, "rollout", "t001") == whole(1, "t001")
        store._db.execute("PRAGMA max_page_count = 1000000")
        store.finish(key(f"x{number}"), tree=whole(number, f"x{number}"))


FULL = """
import json, os, sys
from test_store import *
path = sys.argv[1] + "/s.db"
with open(sys.argv[1] + "/ballast", "wb") as file:
    file.write(bytes(2**20))
store, done = Store.open(path), 0
try:
    while True:
        store.finish(key(f"t{done:06}"), tree=whole(done, f"t{done:06}"))
        done += 1
except UserError as error:
    reason = str(error)
store.close()
os.remove(sys.argv[1] + "/ballast")
with Store.open(path) as store:
    kept = list(store.trees(0, "rollout")) == [whole(n, f"t{n:06}") for n in range(done)]
    store.finish(key(f"t{done:06}"), tree=whole(done, f"t{done:06}"))
    check = store._db.execute("PRAGMA integrity_check").fetchone()[0]
print(json.dumps({"reason": reason, "done": done, "kept": kept, "check": check}))
"""


def test_a_full_disk_loses_nothing_committed_and_the_run_resumes(tmp_path):
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=3m none {tmp_path}"
    if (
        not shutil.which("unshare")
        or subprocess.run([*inside, mount], capture_output=True).returncode
    ):
        pytest.skip("no permission to mount a small tmpfs in a namespace of one's own here")
    result = subprocess.run(
        [*inside, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": SOURCES},
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert "nothing committed is lost" in told["reason"]
    assert told["done"] > 10
    assert told["kept"]
    assert told["check"] == "ok"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/run.db", "nfs4"),
        ("/home/me/scratch/run.db", None),
        ("/home/meadow/run.db", None),
        ("/mnt/windows/run.db", "9p"),
        ("/mnt/far/run.db", "fuse.sshfs"),
        ("/mnt/share/run.db", "cifs"),
        ("/over/run.db", "nfs"),
        ("/run.db", None),
    ],
)
def test_the_file_system_of_the_longest_mount_point_counts(path, kind):
    # The mount table is made up: no machine of ours has these file systems.
    mounts = [
        Mount("/", "fuse.fuse-overlayfs"),
        Mount("/home/me/scratch", "ext4"),
        Mount("/home/me", "nfs4"),
        Mount("/mnt/windows", "9p"),
        Mount("/mnt/far", "fuse.sshfs"),
        Mount("/mnt/share", "CIFS"),
        Mount("/over", "ext4"),
        Mount("/over", "nfs"),
    ]
    assert unsafe_filesystem(Path(path), mounts) == kind


def test_a_store_on_an_unsafe_file_system_is_refused_with_advice(tmp_path, monkeypatch):
    table = [Mount("/", "ext4"), Mount(str(tmp_path), "nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: table)
    with pytest.raises(UserError, match=r"on a nfs4 file system.*\n.*local disk"):
        Store.open(tmp_path / "s.db")
    assert list(tmp_path.iterdir()) == []


# Growth


def test_the_cost_of_a_turn_does_not_depend_on_the_size_of_the_store(tmp_path):
    """Counted in instructions of SQLite's virtual machine: no clock, no machine matters."""
    adding, reading, size = {}, {}, 0
    with Store.open(tmp_path / "s.db") as store:
        for target in (100, 1_000, 10_000):
            with store.transaction() as db:
                for number in range(size, target):
                    write_tree(db, key(f"t{number}"), one_turn(f"t{number}"))
            size = target
            with instructions(store) as count:
                add_ten(store, target)
            adding[target] = count[0]
            with instructions(store) as count:
                read_one(store, f"measured {target} 0")
            reading[target] = count[0]
    assert max(adding.values()) <= 1.05 * adding[100], adding
    assert max(reading.values()) <= 1.05 * reading[100], reading


@contextmanager
def instructions(store: Store) -> Iterator[list[int]]:
    """Counts virtual machine instructions into the one number that it yields."""
    count = [0]

    def step() -> None:
        count[0] += 1

    store._db.set_progress_handler(step, 1)
    yield count
    store._db.set_progress_handler(None, 1)


def add_ten(store: Store, target: int) -> None:
    for number in range(10):
        item = ItemKey(target, "rollout", f"measured {target} {number}")
        tree = one_turn(item.task, target)
        credit = [Credit(tree.root, "value", 1.0, "s")]
        store.finish(item, tree=tree, credit=credit, metrics={"n": 1})


def read_one(store: Store, task: str) -> None:
    iteration = int(task.split()[1])
    tree = store.tree(iteration, "rollout", task)
    assert len(store.credit("s", "value", iteration=iteration, stage="rollout")) == 10
    assert store.credit("s", "value", [tree.root, *tree.turns]) == {tree.root: 1.0}
    assert len(store.finished_keys(iteration, "rollout")) == 10
    assert store.finished(ItemKey(iteration, "rollout", task))
