"""The store: what goes in comes out, what does not fit is refused, nothing grows."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from coterie.errors import UserError
from coterie.record.rows import LabeledTrajectory, Row, Target, TrainedRow, Update, trained_rows
from coterie.record.store import Credit, Selection, Store
from coterie.record.store_file import copy_step
from coterie.record.tables import write_tree
from coterie.record.tree import (
    Ending,
    ItemKey,
    LeftOut,
    Outcome,
    Secret,
    Task,
    Tree,
    hash_of,
    shown_images,
)
from coterie.record.turn import Message, Part, Request, Sample, Speaker, Tool, Turn, make_turn
from tests.helpers.random_trees import PICTURE, episodes, item_key, one_turn_tree, random_tree

# What goes in comes out


@pytest.mark.parametrize("seed", range(40))
def test_a_tree_comes_back_equal_whatever_order_its_samples_finish_in(tmp_path, seed):
    order = list(enumerate(episodes(seed, "t")))
    random.Random(seed).shuffle(order)
    with Store.open(tmp_path / "s.db") as store:
        for sample, tree in order:
            store.finish(item_key("t", sample), tree=tree)
    with Store.open(tmp_path / "s.db", read_only=True) as store:
        stored = store.tree(0, "rollout", "t")
        assert store.image(hash_of(PICTURE)) == PICTURE
        with pytest.raises(KeyError, match="image ab is not in"):
            store.image("ab")
    expected = random_tree(seed, "t")
    assert stored == expected
    assert list(stored.turns) == list(expected.turns), "the order of turns, too"
    for request in expected.requests.values():
        assert stored.messages(stored.requests[request.id]) == expected.messages(request)


def test_a_turn_is_filed_under_the_first_sample_that_has_it(tmp_path):
    trees = [Tree("t", "rollout", 0) for _ in range(3)]
    speaker = Speaker("environment", "world")
    shared, other = (make_turn(trees[0].root, speaker, [Part(text)]) for text in ("x", "y"))
    for tree, turn in zip(trees, (shared, other, shared), strict=True):
        tree.add(turn)
    with Store.open(tmp_path / "s.db") as store:
        for sample in (2, 1, 0):
            store.finish(item_key("t", sample), tree=trees[sample])
        assert list(store.tree(0, "rollout", "t").turns.values()) == [shared, other]


def test_trees_stream_in_order_of_task_and_see_a_stage_only(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        for task in ("b", "c", "a"):
            store.finish(item_key(task), tree=one_turn_tree(task))
        assert [tree.task for tree in store.trees(0, "rollout")] == ["a", "b", "c"]
        assert store.tree_tasks(0, "rollout") == ["a", "b", "c"]
        assert store.tree_tasks(0, "evaluate") == []
        assert list(store.trees(0, "evaluate")) == list(store.trees(1, "rollout")) == []
        with pytest.raises(KeyError, match="no tree of 1/rollout/a"):
            store.tree(1, "rollout", "a")
        trees = store.trees(0, "rollout")
        next(trees)
        store.finish(item_key("d"), tree=one_turn_tree("d"))  # writing while reading is allowed
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
        with pytest.raises(UserError, match="plain JSON"):
            store.put_tasks([Task("u", {"pair": (1, 2)})])
        with pytest.raises(KeyError, match="task 'u'"):
            store.task("u")


def test_items_metrics_and_failures(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.finish(
            item_key("b"), tree=one_turn_tree("b"), metrics={"tokens": 3, "loss": 0.5, "end": "x"}
        )
        store.finish(item_key("a"), failure="the server gave no answer in 600 s")
        store.finish(ItemKey(1, "rollout", "a"))
        assert store.finished(item_key("a"))
        assert not store.finished(item_key("a", 1))
        assert store.finished_keys(0, "rollout") == {("a", "0"), ("b", "0")}
        assert store.failures() == [(item_key("a"), "the server gave no answer in 600 s")]
        assert store.failures(iteration=1) == []
        assert store.metrics_at(item_key("b")) == {"tokens": 3, "loss": 0.5, "end": "x"}
        assert store.metrics_at(replace(item_key("b"), iteration=1)) is None
        assert store.metrics_at(ItemKey(1, "rollout", "a")) == {}
        assert store.metrics(0, "rollout") == {
            item_key("a"): {},
            item_key("b"): {"tokens": 3, "loss": 0.5, "end": "x"},
        }
        with pytest.raises(ValueError, match="finished already"):
            store.finish(item_key("a"))


def test_credit_of_other_settings_stands_beside_it_and_none_is_overwritten(tmp_path):
    tree = random_tree(1, "t")
    nodes = [tree.root, *tree.turns]
    first = [Credit(n, "value", 1.0, "a") for n in nodes]
    with Store.open(tmp_path / "s.db") as store:
        store.finish(item_key("t"), tree=tree, credit=first)
        assert store.credit("a", "value") == dict.fromkeys(nodes, 1.0)
        other = [Credit(n, "value", float(i or -0.0), "b") for i, n in enumerate(nodes)]
        for sample in ("", "again"):
            store.finish(ItemKey(0, "rewards", "t", sample), credit=other)
        assert store.credit("a", "value") == dict.fromkeys(nodes, 1.0)
        assert store.credit("b", "value", nodes[:2]) == {nodes[0]: 0.0, nodes[1]: 1.0}
        assert store.credit("b", "value", iteration=0, stage="rollout").keys() == set(nodes)
        assert store.credit("a", "value", iteration=0, stage="evaluate") == {}
        assert store.credit("b", "value", iteration=1) == store.credit("b", "visits") == {}
        by_node = sorted(first, key=lambda one: one.node), sorted(other, key=lambda one: one.node)
        assert store.credit_of(tree) == [*by_node[0], *by_node[1]]
        assert store.credit_of(one_turn_tree("u")) == []
        with pytest.raises(ValueError, match=r"already has value = 1.0 under settings a"):
            store.finish(ItemKey(1, "rewards", "t"), credit=[Credit(nodes[0], "value", 2.0, "a")])
        assert not store.finished(ItemKey(1, "rewards", "t"))
    with pytest.raises(ValueError, match="not a number"):
        Credit("n", "value", float("nan"), "a")


def test_items_that_are_finished_together_are_all_there_or_none(tmp_path):
    def together(store: Store) -> None:
        with store.together():
            store.finish(item_key("a"), tree=one_turn_tree("a"))
            store.finish(item_key("b"), tree=one_turn_tree("b"))
            store.finish(item_key("a"))

    with Store.open(tmp_path / "s.db") as store:
        with pytest.raises(ValueError, match="finished already"):
            together(store)
        assert store.finished_keys(0, "rollout") == set()
        assert list(store.trees(0, "rollout")) == []
        store.finish(item_key("a"))


def test_a_tree_can_be_read_without_its_tokens(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        for seed, task in enumerate("abcd"):
            store.finish(item_key(task), tree=random_tree(seed, task))
        trees = list(store.trees(0, "rollout"))
        for tree, outline in zip(trees, store.outlines(0, "rollout"), strict=True):
            turns = [Turn(t.id, t.parent, t.speaker, t.parts) for t in tree.turns.values()]
            assert list(outline.turns.values()) == turns and not outline.requests
            assert outline.outcomes == tree.outcomes


def test_selections_are_references_in_stored_order(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.finish(item_key("b"), tree=one_turn_tree("b"))
        store.finish(item_key("a"), tree=one_turn_tree("a"))
        leaves = [next(iter(one_turn_tree(task).turns)) for task in ("b", "a")]
        chosen = [Selection(leaf, "Alice", "no_format", 0.5) for leaf in leaves]
        store.finish(ItemKey(0, "select", ""), selections=chosen, metrics={"kept": 2})
        assert store.selections(0) == [("b", chosen[0]), ("a", chosen[1])]
        assert store.selections(0, "other") == store.selections(1) == []
        assert store.metrics(0, "select")[ItemKey(0, "select", "")] == {"kept": 2}
        store.finish(ItemKey(0, "select", "b", "1"), selections=chosen[:1])
        assert store.finished_keys(0, "select") == {("", ""), ("b", "1")}
        with pytest.raises(ValueError, match="of a selection is not in the store"):
            store.finish(ItemKey(1, "select", ""), selections=[Selection("nowhere", "Alice")])


def test_a_score_is_any_number_or_none(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        for number, score in enumerate((None, 0.0, -2.5, 17.0)):
            tree, ending = Tree(f"t{number}", "rollout", 0), Ending("lost", bool(number % 2))
            tree.add(turn := make_turn(tree.root, Speaker("environment", "world"), [Part("x")]))
            tree.end(Outcome(turn.id, 0, ending, None, score))
            store.finish(item_key(tree.task), tree=tree)
            (outcome,) = store.tree(0, "rollout", tree.task).outcomes.values()
            assert (outcome.ending, outcome.score) == (ending, score)
            assert [o.score for o, _ in tree.graded()] == [score] * (score is not None)
    for score in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="it must be finite"):
            Outcome("leaf", 0, Ending("lost"), None, score)


# What does not fit is refused, and leaves nothing behind


def test_a_record_that_contradicts_the_store_is_refused_whole(tmp_path):
    tree = one_turn_tree("t")
    (leaf,) = tree.turns
    end = Outcome(leaf, 1, Ending("agreed"), "", 0)
    other = Tree("t", "rollout", 0, dict(tree.turns), {}, {leaf: end})
    orphan = make_turn("gone", Speaker("agent", "A"), [])
    sample = Sample("q", (1,), (-1.0,), "end", "p", "0", 0, 1.0, 1.0)
    unasked = make_turn(tree.root, Speaker("agent", "A"), [], sample=sample)
    refused = [
        (item_key("t", 2), {"tree": other}, "separate draws"),
        (item_key("t", 2), {"tree": Tree("t", "rollout", 0, {orphan.id: orphan})}, "node gone is not in its tree"),
        (item_key("t", 2), {"tree": Tree("t", "rollout", 0, {unasked.id: unasked})}, "request q of turn"),
        (item_key("u"), {"tree": tree}, "is not ItemKey"),
        (item_key("v"), {"tree": one_turn_tree("v"), "credit": [Credit("no", "value", 1, "s")]},
         "node no of credit 'value'"),
        (ItemKey(1, "select", ""), {"selections": [Selection(tree.root, "A")]}, "of a selection is not in the store"),
    ]  # fmt: skip
    with Store.open(tmp_path / "s.db") as store:
        store.finish(item_key("t"), tree=tree)
        store.finish(item_key("t", 1), tree=tree)  # equal work meets itself
        for item, results, problem in refused:
            with pytest.raises(ValueError, match=problem):
                store.finish(item, **results)
        assert [tree.task for tree in store.trees(0, "rollout")] == ["t"]
        assert store.finished_keys(0, "rollout") == {("t", "0"), ("t", "1")}
    with pytest.raises(ValueError, match="1 log-probs of 2 tokens"):
        replace(sample, ids=(1, 2))


# Parts of a store in another one


SEEDS = {"a": 3, "b": 5, "c": 8, "d": 13}
"""By task, of trees with calls, images and prompts."""


def asked(task: str) -> Task:
    gold = Secret(task, name="gold", readers=frozenset({"critic"}))
    return Task(task, {"question": "?"}, {"gold": gold})


def offered(task: str, *names: str) -> Tree:
    """A tree of turns after prompts that each offer one tool."""
    tree, agent = Tree(task, "rollout", 1), Speaker("agent", "Ann")
    for draw, name in enumerate(names):
        tools = (Tool(name, "It looks something up.", {"type": "object"}),)
        messages = (Message.of("user", name),)
        request = Request.make("Ann", tree.root, None, (1, 2), messages, tools=tools)
        turn = make_turn(tree.root, agent, [Part(name)], draw=draw, request=request.id)
        tree.add(turn, request)
    return tree


def test_what_is_copied_from_other_stores_is_what_it_was(tmp_path):
    """Images, calls, tools and secrets, too. Each store has a stage besides that is not copied."""
    tools = {"one": offered("a", "search", "count"), "two": offered("b", "count", "draw", "search")}
    for name, tasks in (("one", "ac"), ("two", "bd")):
        with Store.open(tmp_path / f"{name}.db") as store:
            for task in tasks:
                store.put_tasks([asked(task)])
                tree = random_tree(SEEDS[task], task)
                credit = [Credit(node, "value", 1.0, name) for node in tree.turns]
                store.finish(item_key(task), tree=tree, credit=credit, metrics={"tokens": 3})
                store.finish(ItemKey(0, "evaluate", task), tree=Tree(task, "evaluate", 0))
            store.finish(ItemKey(1, "rollout", tools[name].task), tree=tools[name])
    trees = {task: random_tree(seed, task) for task, seed in SEEDS.items()}
    with Store.open(tmp_path / "s.db") as store:
        store.finish(ItemKey(2, "rollout", "before"), tree=Tree("before", "rollout", 2))
        for name in ("two", "one"):
            with store.beside(tmp_path / f"{name}.db") as db:
                copy_step(db, 0, "rollout", {"one": "both", "two": "both"})
                copy_step(db, 1, "rollout", {})
        assert {tree.task: tree for tree in store.trees(0, "rollout")} == trees
        assert list(store.trees(1, "rollout")) == [*tools.values()]
        assert list(store.trees(0, "evaluate")) == []
        assert [item.metrics for item in store.items(0, "rollout")] == [{"tokens": 3}] * 4
        assert store.tasks_of(0, "rollout") == [*"abcd"]
        assert [store.task(task) for task in "abcd"] == [*map(asked, "abcd")]
        nodes = {node for tree in trees.values() for node in tree.turns}
        assert store.credit("both", "value") == dict.fromkeys(nodes, 1.0)
        images = {image for tree in trees.values() for image in shown_images(tree)}
        assert images and all(hash_of(store.image(image)) == image for image in images)


# Growth


def test_the_cost_of_a_turn_does_not_depend_on_the_size_of_the_store(tmp_path):
    """Counted in instructions of SQLite's virtual machine: no clock, no machine matters."""
    costs: dict[str, list[int]] = {"adding": [], "reading": []}
    size = 0

    @contextmanager
    def instructions(work: str) -> Iterator[None]:
        def step() -> None:
            costs[work][-1] += 1

        costs[work].append(0)
        store._db.set_progress_handler(step, 1)
        yield
        store._db.set_progress_handler(None, 1)

    with Store.open(tmp_path / "s.db") as store:
        for target in (100, 1_000, 10_000):
            with store.transaction() as db:
                for number in range(size, target):
                    write_tree(db, item_key(f"t{number}"), one_turn_tree(f"t{number}"))
            size = target
            with instructions("adding"):
                for number in range(10):
                    item = ItemKey(target, "rollout", f"measured {target} {number}")
                    tree = one_turn_tree(item.task, target)
                    credit = [Credit(tree.root, "value", 1.0, "s")]
                    store.finish(item, tree=tree, credit=credit, metrics={"n": 1})
            with instructions("reading"):
                tree = store.tree(target, "rollout", item.task)
                assert len(store.credit("s", "value", iteration=target, stage="rollout")) == 10
                assert store.credit("s", "value", [tree.root, *tree.turns]) == {tree.root: 1.0}
                assert len(store.finished_keys(target, "rollout")) == 10
                assert store.finished(item)
    for counts in costs.values():
        assert max(counts) <= 1.05 * counts[0], costs


# Rows of optimizer steps


def rows_of_a_step() -> list[TrainedRow]:
    tree = random_tree(1, "t")
    leaf = next(iter(tree.outcomes))
    tokens = np.array([-0.5, -1.25, -8.0])
    of_policy = {
        "advantage": np.array([0.1, 0.1, 0.1]), "logprob": tokens, "entropy": tokens + 9,
        "clipped": np.array([False, True, False]),
    }  # fmt: skip
    varied = {"advantage": np.array([1.0, -1.0, 0.5]), "reference": tokens}
    margin = {"loss": 0.5, "margin": 1.5}
    return [
        TrainedRow(f"{leaf}/Ann/0", None, None, 1.0, 3, {"loss": 0.5}, arrays=of_policy),
        TrainedRow(f"{leaf}/Ann/1", leaf, "plain", 0.5, 3, {}, arrays=varied),
        TrainedRow("rows.jsonl:3/1", None, None, 1.0, 3, margin, "chosen", 0),
        TrainedRow("rows.jsonl:4", None, None, 1.0, 3, margin, "rejected", 0),
    ]


def test_rows_of_an_optimizer_step_come_back_and_replace_those_of_an_earlier_attempt(tmp_path):
    rows = rows_of_a_step()
    reason = LeftOut("t", "1eaf", "groups_equal", "Ann", 0.5)
    with Store.open(tmp_path / "s.db") as store:
        store.finish(item_key("t"), tree=random_tree(1, "t"))
        step = Update(0, "reinforce", "policy", 1, rows, 7)
        key = ItemKey(0, "reinforce", "", "step-00007")
        store.finish(key, updates=[step], left_out=[reason, replace(reason, number=None)])
        for number, weight in ((1, 0.5), (1, 1.0), (2, 2.0)):
            attempt = [replace(rows[2], weight=weight)]
            store.put_update(Update(0, "train", "policy", number, attempt))
    with Store.open(tmp_path / "copy.db") as copied, copied.beside(tmp_path / "s.db") as db:
        copy_step(db, 0, "rollout", {}, marks=True)
        copy_step(db, 0, "reinforce", {}, marks=True)
    for name in ("s.db", "copy.db"):
        with Store.open(tmp_path / name, read_only=True) as store:
            stored = store.update(0, "reinforce", "policy", 1)
            assert stored.step == 7
            for row, before in zip(stored.rows, rows, strict=True):
                assert replace(row, arrays={}) == replace(before, arrays={})
                assert row.arrays.keys() == before.arrays.keys()
                for array, values in before.arrays.items():
                    assert row.arrays[array].tolist() == pytest.approx(values.tolist(), rel=1e-3)
            left_out = [(key, reason), (key, replace(reason, number=None))]
            assert store.left_out(0, "reinforce") == left_out
            numbers = [n for n in (1, 2, 3) if store.update(0, "train", "policy", n).rows]
            assert numbers == ([1, 2] if name == "s.db" else [])
    with Store.open(tmp_path / "s.db") as store:
        assert store.update(0, "train", "policy", 1).rows[0].weight == 1.0


def test_a_row_of_a_labeled_trajectory_has_its_label():
    row = Row((1, 2), (Target(1, 2, "policy@0"),), origin="rows.jsonl:1")
    items = [LabeledTrajectory((row,), success) for success in (True, False)]
    trained = trained_rows(items, [(0, {"loss": 0.5}), (1, {"loss": 0.5})], arrays=True)
    assert [one.metrics["success"] for one in trained] == [1.0, 0.0]


def test_a_row_of_a_step_takes_few_bytes(tmp_path):
    """With constant advantages and no clipped token, 6 bytes a token and the names of the row."""
    count = 60
    tokens = np.linspace(-8, 0, count)
    arrays = dict.fromkeys(("logprob", "reference", "entropy"), tokens)
    arrays |= {"advantage": np.ones(count), "clipped": np.zeros(count, bool)}
    row = TrainedRow("rows.jsonl:1", None, None, 1.0, count, {"loss": 0.5}, arrays=arrays)
    with Store.open(tmp_path / "s.db") as store:
        for number in range(1, 101):
            store.put_update(Update(0, "train", "policy", number, [row] * 4))
    with sqlite3.connect(tmp_path / "s.db") as db:
        (size,) = db.execute(
            "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%trained%' OR name LIKE '%optimizer_step%'"
        ).fetchone()
    assert size / (100 * 4 * count) < 12


def test_damage_in_rows_of_a_step_is_named_and_dropped(tmp_path):
    path = tmp_path / "s.db"
    for change, said in (
        ("UPDATE trained SET logprob = zeroblob(6) WHERE position = 0", "optimizer step 1 of policy"),
        ("DELETE FROM trained WHERE position = 2", "3 of 4 rows of 'trained 1'"),
        ("UPDATE trained SET optimizer_step = 9", "0 of 4 rows of 'trained 1'"),
        ("UPDATE left_out SET reason = 'x'", "what reinforce 0 left out"),
        ("DELETE FROM left_out", "0 of 1 rows of 'left_out 2'"),
    ):  # fmt: skip
        path.unlink(missing_ok=True)
        with Store.open(path) as store:
            store.finish(item_key("t"), tree=random_tree(1, "t"))
            step = Update(0, "reinforce", "policy", 1, rows_of_a_step())
            reason = LeftOut("t", "1eaf", "groups_equal")
            store.finish(ItemKey(0, "reinforce", ""), updates=[step], left_out=[reason])
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            assert db.execute(change).rowcount
        with Store.open(path) as store, pytest.raises(UserError, match=f"is damaged: .*{said}"):
            _ = store.update(0, "reinforce", "policy", 1), store.left_out(0, "reinforce")
        with Store.open(path, check=False) as store:
            store.repair()
        with Store.open(path) as store:
            _ = store.update(0, "reinforce", "policy", 1), store.left_out(0, "reinforce")
