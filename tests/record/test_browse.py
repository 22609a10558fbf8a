"""What the viewer reads equals the store, whatever a tree looks like, and nothing is written."""

import json
import random
import sqlite3
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from coterie.errors import UserError
from coterie.record import lineage
from coterie.record.browse import Browser
from coterie.record.rows import TrainedRow, Update, prompts, rows, view
from coterie.record.store import Credit, Selection, Store
from coterie.record.tree import ItemKey, LeftOut, Tree
from tests.helpers.random_trees import fill_store, item_key

TASKS = 8
AGENTS = ("Alice", "Bob")


def training_rows(tree: Tree) -> list[TrainedRow]:
    """All rows of a tree's paths, with random numbers for each trained token."""
    trained, rng = list[TrainedRow](), np.random.default_rng(0)
    for leaf in tree.outcomes:
        for agent in AGENTS:
            for row in rows(view(tree, leaf, agent)):
                tokens = sum(map(len, row.predicted))
                arrays = {
                    "advantage": rng.normal(size=tokens), "logprob": rng.normal(size=tokens),
                    "entropy": rng.normal(size=tokens), "clipped": np.arange(tokens) % 3 == 0,
                }  # fmt: skip
                turn = row.targets[0].turn if len(row.targets) == 1 else None
                facts = {"loss": 0.5}
                trained.append(
                    TrainedRow(row.origin, turn, None, 1.0, tokens, facts, arrays=arrays)
                )
    return trained


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A store of random trees with credit, selections, training rows and rollouts that were left out."""
    path = tmp_path_factory.mktemp("browse") / "store.sqlite"
    with Store.open(path) as store:
        fill_store(store, TASKS)
        store.finish(item_key("failed"), failure="the server gave no answer")
        trees = [*store.trees(0, "rollout")]
        first = trees[0]
        leaves = [*first.outcomes]
        credit = [Credit(n, "value", k / 7, "old") for t in trees for k, n in enumerate(t.turns)]
        credit += [Credit(c.node, "value", c.value + 1, "settings") for c in credit]
        store.finish(
            ItemKey(0, "select", ""), credit=credit,
            selections=[Selection(leaves[0], "Alice", weight=0.5, rejected=leaves[1])],
            left_out=[
                LeftOut("t000", leaves[2], "outside_share", "Alice", 0.25),
                LeftOut("t001", trees[1].root, "groups_equal"),
            ],
            updates=[Update(0, "reinforce", "policy", n, training_rows(t), n) for n, t in enumerate(trees, 1)],
        )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def browser(file) -> Browser:
    return Browser(file, secrets=True)


@pytest.fixture(scope="module")
def trees(file) -> list[Tree]:
    with Store.open(file, read_only=True) as store:
        return [*store.trees(0, "rollout")]


def test_columns_of_rollouts_equal_the_trees(browser, trees):
    columns = browser.answer(Browser.tasks, 0, "rollout")
    rollouts = {
        leaf: (columns["tasks"][columns["task"][i]], *(columns[n][i] for n in ("score", "turns", "tokens", "reason")))
        for i, leaf in enumerate(columns["leaf"])
    }  # fmt: skip
    failed = rollouts.pop(None)
    assert failed[0] == "failed" and columns["failure"].count("the server gave no answer") == 1
    assert rollouts == {
        outcome.leaf: (
            tree.task, outcome.score, len(path), sum(len(t.ids) for t in path if t.sample), outcome.ending.reason
        )
        for tree in trees for outcome, path in tree.trajectories()
    }  # fmt: skip
    assert columns["damaged"] == []
    task = browser.answer(Browser.tasks, 0, "rollout", ["t001"])
    assert task["tasks"] == ["t001"] and set(task["left_out"]) == {"groups_equal"}


def test_a_path_has_the_turns_prompts_and_messages_of_the_tree(browser, trees):
    for tree in trees:
        for outcome, path in tree.trajectories():
            shown = browser.answer(lineage.path, outcome.leaf)
            assert [turn["id"] for turn in shown["turns"]] == [turn.id for turn in path]
            for turn, fields in zip(path, shown["turns"], strict=True):
                assert [part["text"] for part in fields["parts"]] == [
                    part.text for part in turn.parts
                ]
                assert fields["siblings"] == len(tree.children(turn.parent))
                assert (fields["tokens"] or {"ids": ()})["ids"] == turn.ids
                if turn.sample:
                    logprobs = fields["tokens"]["logprob"]
                    assert logprobs == pytest.approx(turn.sample.logprobs, rel=1e-4)
            for agent in AGENTS:
                for ids, turn in prompts(tree, outcome.leaf, agent):
                    prompt = browser.answer(lineage.prompt, turn.id)
                    assert prompt["ids"] == ids
                    messages = tree.messages(tree.requests[turn.prompt])
                    assert [m["turn"] for m in prompt["messages"]] == [m.turn for m in messages]


def test_nodes_of_a_tree_are_those_of_the_store_parents_first(browser, trees):
    for tree in trees:
        answer = browser.answer(Browser.tree, 0, "rollout", tree.task)
        ids, parents = answer["id"], answer["parent"]
        assert ids[0] == tree.root and parents[0] == -1
        assert {id_: ids[parent] for id_, parent in zip(ids[1:], parents[1:], strict=True)} == {
            turn.id: turn.parent for turn in tree.turns.values()
        }
        assert all(parent < number for number, parent in enumerate(parents))
        assert answer["depth"][1:] == [len(tree.path(id_)) for id_ in ids[1:]]
        scores = [o.score for o in tree.outcomes.values() if o.score is not None]
        assert answer["visits"][0] == len(scores)
        assert answer["value"][0] == (pytest.approx(np.mean(scores), rel=1e-4) if scores else None)
        # Of two settings, the later credit is shown.
        position = ids.index(next(iter(tree.turns)))
        assert answer["value"][position] == 1.0


def test_each_trained_token_is_shown_with_its_numbers_and_each_turn_lists_its_rows(browser, trees):
    for update, tree in enumerate(trees, 1):
        trained, listed = training_rows(tree), Counter[tuple[str, int]]()
        expected = Counter[tuple[str, int]]()
        for position, row in enumerate(trained):
            shown = browser.answer(lineage.row, 0, "reinforce", "policy", update, position)
            leaf, agent, segment = row.origin.split("/")
            source = [*rows(view(tree, leaf, agent))][int(segment)]
            assert shown["ids"] == source.ids and shown["metrics"] == {"loss": 0.5}
            assert shown["advantage"] == pytest.approx(row.arrays["advantage"], rel=1e-3)
            assert shown["clipped"] == row.arrays["clipped"].tolist()
            path = {turn["id"]: turn for turn in browser.answer(lineage.path, leaf)["turns"]}
            values = list[float]()
            for target in source.targets:
                expected[target.turn, position] += 1
                of_turn = [
                    t for t in path[target.turn]["tokens"]["trained"] if t["row"] == shown["row"]
                ]
                assert (
                    len(of_turn) == 1 and len(of_turn[0]["entropy"]) == target.stop - target.start
                )
                values += [value for value in of_turn[0]["entropy"] if value is not None]
            assert values == pytest.approx(row.arrays["entropy"], rel=1e-2, abs=1e-3)
        for turn in tree.turns:
            listed.update(
                (turn, row["position"]) for row in browser.answer(lineage.turn, turn)["rows"]
            )
        assert listed == expected


def test_selections_and_reasons_are_on_their_nodes(browser, trees):
    task = browser.answer(Browser.task, 0, "rollout", "t000")
    by_leaf = {rollout["leaf"]: rollout for rollout in task["rollouts"]}
    chosen, rejected, left_out = trees[0].outcomes
    facts = task["facts"]
    assert {n: [(s["side"], s["against"], s["weight"]) for s in of] for n, of in facts["selected"].items()} == {
        chosen: [("chosen", rejected, 0.5)], rejected: [("rejected", chosen, 0.5)]
    }  # fmt: skip
    assert [by_leaf[leaf]["selected"] for leaf in trees[0].outcomes] == [1, 2, 0]
    reasons = [
        (f["reason"], f["agent"], f["number"], f["stage"]) for f in facts["left_out"][left_out]
    ]
    assert reasons == [("outside_share", "Alice", 0.25, "select")]
    assert by_leaf[left_out]["left_out"] == "outside_share"
    for leaf, rollout in by_leaf.items():
        path = [task["ids"][number] for number in rollout["path"]]
        assert path == [turn.id for turn in trees[0].path(leaf)]
        assert rollout["trained"] == sum(len(facts["trained"].get(node, ())) for node in path)
    group = browser.answer(Browser.task, 0, "rollout", "t001")
    assert all(rollout["left_out"] == "groups_equal" for rollout in group["rollouts"])
    assert [*group["facts"]["left_out"]] == [trees[1].root]


def test_a_search_finds_texts_and_nothing_of_json(browser, trees):
    text = "naïve café"
    expected = {
        outcome.leaf
        for tree in trees for outcome, path in tree.trajectories()
        if any(text in field for turn in path for field in (turn.whole_text, *(r.text for r in turn.results)))
    }  # fmt: skip
    assert (
        expected and set(browser.answer(Browser.search, 0, "rollout", text)["leaves"]) == expected
    )
    assert browser.answer(Browser.search, 0, "rollout", "100%_")["leaves"] == []


def damage(file: Path, target: Path, *changes: str) -> Browser:
    target.write_bytes(file.read_bytes())
    with sqlite3.connect(target) as db:
        for change in changes:
            db.execute(change)
    db.close()
    return Browser(target, secrets=True)


def test_a_task_with_candidates_alone_is_listed_with_what_became_of_them(file, trees, tmp_path):
    of_task = "DELETE FROM outcome WHERE tree IN (SELECT key FROM tree WHERE task = 't000')"
    columns = damage(file, tmp_path / "s.sqlite", of_task).answer(Browser.tasks, 0, "rollout")
    assert columns["tasks"].count("t000") == 1
    index = columns["task"].index(columns["tasks"].index("t000"))
    shown = {
        name: columns[name][index] for name in ("leaf", "turns", "selected", "left_out", "trained")
    }
    rows = len(training_rows(trees[0]))
    expected = {
        "leaf": None,
        "turns": None,
        "selected": 3,
        "left_out": "outside_share",
        "trained": rows,
    }
    assert shown == expected


def test_damaged_rows_are_named_where_they_are_shown(file, trees, tmp_path):
    tree = max(trees, key=lambda tree: len(tree.path(next(iter(tree.outcomes)))))
    leaf = next(iter(tree.outcomes))
    first, last = tree.path(leaf)[0].id, tree.path(leaf)[-1].id
    sampled = next(turn for turn in tree.path(leaf) if turn.sample)
    cases = {
        f"UPDATE turn SET parts = '[]', ids = x'00' WHERE id = '{last}'": f"turn {last} differs",
        f"UPDATE turn SET parts = '[' WHERE id = '{first}'": f"turn {first} differs",
        f"DELETE FROM turn WHERE id = '{first}'": f"turn {first} is missing",
        f"DELETE FROM turn WHERE id = '{sampled.id}'": f"turn {sampled.id} is missing",
        f"UPDATE request SET ids = zeroblob(4) WHERE id = '{sampled.prompt}'": f"prompt {sampled.prompt} differs",
        f"UPDATE outcome SET score = 9 WHERE leaf = '{leaf}'": f"outcome of leaf {leaf} differs",
        "UPDATE credit SET value = 9": "credit of node",
        f"UPDATE turn SET parent = '{last}' WHERE id = '{first}'": f"turn {first} differs",
    }  # fmt: skip
    for number, (change, expected) in enumerate(cases.items()):
        browser = damage(file, tmp_path / f"{number}.sqlite", change)
        for question, values in (
            (lineage.path, (leaf,)), (Browser.task, (0, "rollout", tree.task)),
            (Browser.tree, (0, "rollout", tree.task)), (lineage.turn, (last,)),
        ):  # fmt: skip
            answer = browser.answer(question, *values)
            if question is lineage.path:
                assert any(expected in line for line in answer["damaged"]), change
        other = next(t for t in trees if t is not tree)
        if "credit" not in change:
            assert browser.answer(Browser.task, 0, "rollout", other.task)["damaged"] == []
        browser.close()
    whole = damage(file, tmp_path / "cut.sqlite")
    whole.close()
    (tmp_path / "cut.sqlite").write_bytes(file.read_bytes()[:9000])
    with pytest.raises(UserError, match="is damaged"):
        Browser(tmp_path / "cut.sqlite").answer(Browser.tasks, 0, "rollout")


def test_unknown_nodes_and_foreign_files_are_refused(browser, tmp_path):
    for question, values in (
        (lineage.path, ("x",)), (lineage.prompt, ("x",)), (lineage.turn, ("x",)), (Browser.task, (0, "rollout", "x")),
        (Browser.tree, (0, "rollout", "failed")), (lineage.row, (0, "reinforce", "policy", 99, 0)),
    ):  # fmt: skip
        with pytest.raises(KeyError):
            browser.answer(question, *values)
    with pytest.raises(UserError, match="there is no store"):
        Browser(tmp_path / "store.sqlite").version()
    (tmp_path / "text").write_text("no store" * 200)
    with pytest.raises(UserError, match="not an SQLite file"):
        Browser(tmp_path / "text").version()


def test_a_reader_sees_what_is_written_and_writes_nothing(file, tmp_path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(file.read_bytes())
    before = path.stat().st_mtime_ns
    browser = Browser(path)
    count, version = len(browser.answer(Browser.tasks, 0, "rollout")["leaf"]), browser.version()
    assert version == browser.version()
    assert [p.name for p in tmp_path.iterdir()] == ["store.sqlite"]
    assert path.stat().st_mtime_ns == before
    # A run goes on: its commits are in another file at first, and later in the store.
    with Store.open(path) as store:
        store.finish(item_key("late"), failure="stopped")
        assert browser.version() != version
        assert len(browser.answer(Browser.tasks, 0, "rollout")["leaf"]) == count + 1
        version = browser.version()
        store.finish(item_key("later"), failure="stopped")
        assert browser.version() != version
    assert len(browser.answer(Browser.tasks, 0, "rollout")["leaf"]) == count + 2
    browser.close()


def test_tokens_are_decoded_with_offsets_in_javascript_units():
    from tokenizers import Tokenizer

    from coterie.models.loading import resolve

    tokenizer = Tokenizer.from_file(f"{resolve('tiny-exchange')}/tokenizer.json")
    texts = ("naïve café", "数学 🤝🏽 family", "the answer is <A>lizard</A> yes", "a\nb", "")
    rng = random.Random(0)
    samples = [tokenizer.encode(text).ids for text in texts]
    samples += [[rng.randrange(tokenizer.get_vocab_size()) for _ in range(40)] for _ in range(50)]
    for ids in samples:
        text, offsets = lineage.decode(tokenizer, ids)
        assert text == tokenizer.decode(ids, skip_special_tokens=False)
        assert len(offsets) == len(ids) + 1 and offsets == sorted(offsets)
        assert offsets[-1] == len(text.encode("utf-16-le")) // 2
    ids = samples[2]
    text, offsets = lineage.decode(tokenizer, ids)
    pieces = [text[start:stop].strip() for start, stop in pairwise(offsets)]
    assert pieces == [tokenizer.decode([id_], skip_special_tokens=False).strip() for id_ in ids]
    assert json.dumps(pieces)
