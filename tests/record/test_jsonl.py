"""Export to JSONL: it has the whole record, and no secret unless asked for."""

import json
import random
from base64 import b64decode
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.record import export as jsonl
from coterie.record.rows import view
from coterie.record.store import Credit, Selection, Store
from coterie.record.tree import Ending, ItemKey, Outcome, Secret, Task, Tree
from coterie.record.turn import Message, Part, Request, Sample, Speaker, Turn, make_turn
from coterie.reports.inspect_logs import LogHead, eval_log
from tests.helpers.random_trees import episodes, random_tree
from tests.helpers.read_exports import read_export, trees_of

GOLD = "the gold answer"
GOLD_PART = Part(GOLD, frozenset({"critic"}), "secret:gold")
TASKS = [
    Task("a", {"q": "¿é?"}, {"gold": Secret(GOLD, name="gold", readers=frozenset({"critic"}))}),
    Task("b", {"q": [1, {"x": None}]}),
    Task("unused", {}),
]
KINDS = ("task", "credit", "item", "selection")


def fill(path: Path) -> None:
    """A store with something of everything, its items finished out of order."""
    with Store.open(path) as store:
        store.put_tasks(TASKS)
        for task in ("b", "a"):
            order = list(enumerate(episodes(7, task)))
            random.Random(task).shuffle(order)
            for sample, tree in order:
                credit = [Credit(node, "value", 0.1, "s1") for node in tree.turns if sample == 2]
                key = ItemKey(0, "rollout", task, str(sample))
                store.finish(key, tree=tree, credit=credit, metrics={"tokens": 3, "loss": 1e-9})
        store.finish(ItemKey(1, "rollout", "a"), failure="timeout")
        leaf = next(iter(random_tree(7, "a").outcomes))
        chosen = [Selection(leaf, "Alice", "plain", 0.25), Selection(leaf, "Bob")]
        store.finish(ItemKey(0, "select", ""), selections=chosen)


def with_secret_prompt() -> Tree:
    """A critic that is shown a secret and speaks twice, and an agent that is not."""
    tree = Tree("a", "rollout", 0)
    node, previous, running, shown = tree.root, None, (), ()
    for round_, part in enumerate((GOLD_PART, Part("go on"))):
        prompt, messages = (*running, 5, round_), (*shown, Message("user", (part,)))
        request = Request.make("critic", node, previous, prompt, messages, running, shown)
        turn = sampled(node, "critic", request, 8)
        tree.add(turn, request)
        running, shown = (*prompt, 8), (*messages, Message("assistant", turn=turn.id))
        node = previous = turn.id
    request = Request.make("Alice", node, None, (1,), (Message.of("user", "hi"),))
    tree.add(sampled(node, "Alice", request, 9), request)
    return tree


def sampled(parent: str, name: str, request: Request, token: int, finish: str = "end") -> Turn:
    sample = Sample(request.id, (token,), (-1.0,), finish, name, "2", 1, 1.0, 1.0)
    return make_turn(parent, Speaker("agent", name), [Part("yes")], sample=sample)


def store_of(path: Path, tree: Tree) -> Path:
    """A store of one tree, and the tasks."""
    with Store.open(path) as store:
        store.put_tasks(TASKS)
        store.finish(ItemKey(0, "rollout", tree.task), tree=tree)
        assert store.tree(0, "rollout", tree.task) == tree
    return path


def export(store: Path, path: Path, **limits: object) -> list[dict]:
    with Store.open(store, read_only=True) as opened:
        jsonl.export(opened, path, **limits)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_an_export_has_the_whole_record(tmp_path):
    fill(tmp_path / "a.db")
    lines = export(tmp_path / "a.db", tmp_path / "a.jsonl", secrets=True)
    assert {key.task: tree for key, tree in trees_of(lines).items()} == {
        task: random_tree(7, task) for task in "ab"
    }
    by_kind = {kind: [one for one in lines if one["kind"] == kind] for kind in KINDS}
    assert [(one["id"], one["public"]) for one in by_kind["task"]] == [
        (task.id, task.public) for task in TASKS
    ]
    assert by_kind["task"][0]["secrets"] == {"gold": {"text": GOLD, "readers": ["critic"]}}
    with Store.open(tmp_path / "a.db") as a:
        credit = {one["credit"]["node"]: one["credit"]["value"] for one in by_kind["credit"]}
        assert credit == a.credit("s1", "value") != {}
        failures = [one["item"].get("failure") for one in by_kind["item"]]
        assert failures == [None] * 7 + ["timeout"]
        chosen = [Selection(**one["selection"]) for one in by_kind["selection"]]
        assert chosen == [one for _, one in a.selections(0)] != []


@pytest.mark.parametrize("seed", range(8))
def test_any_tree_goes_round(tmp_path, seed):
    tree = random_tree(seed, "t")
    store_of(tmp_path / "a.db", tree)
    export(tmp_path / "a.db", tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="already exists"):
        export(tmp_path / "a.db", tmp_path / "a.jsonl")
    read_export(tmp_path / "a.jsonl", tmp_path / "b.db")
    with Store.open(tmp_path / "b.db") as store:
        assert store.tree(0, "rollout", "t") == tree


def test_that_a_turn_was_cut_off_comes_back_also_where_its_sample_does_not(tmp_path):
    tree = Tree("a", "rollout", 0)
    alice = Speaker("agent", "Alice")
    short, cut = (make_turn(tree.root, alice, [Part("x")], truncated=cut) for cut in (False, True))
    request = Request.make("Bob", tree.root, None, (1,), (Message("user", (GOLD_PART,)),))
    long = sampled(tree.root, "Bob", request, 9, "length")
    tree.add(long, request)
    tree.add(short)
    tree.add(cut)
    assert short.id != cut.id and long.truncated
    store_of(tmp_path / "a.db", tree)
    for secrets in (True, False):
        export(tmp_path / "a.db", tmp_path / f"{secrets}.jsonl", secrets=secrets)
        read_export(tmp_path / f"{secrets}.jsonl", tmp_path / f"{secrets}.db")
        with Store.open(tmp_path / f"{secrets}.db") as store:
            turns = store.tree(0, "rollout", "a").turns
        assert [turn.id for turn in turns.values() if turn.truncated] == [long.id, cut.id]
        assert (turns[long.id].sample is not None) == secrets


def test_an_image_that_only_a_secret_shows_stays_home(tmp_path):
    tree = Tree("a", "rollout", 0)
    gold, seen = tree.add_image(b"the answer"), tree.add_image(b"the question")
    secret = replace(GOLD_PART, image=gold)
    world = Speaker("environment", "world")
    asked = make_turn(tree.root, world, [Part("look", image=seen), secret])
    tree.add(asked)
    request = Request.make("critic", asked.id, None, (1,), (Message("user", (secret,)),))
    tree.add(sampled(asked.id, "critic", request, 9), request)
    store_of(tmp_path / "a.db", tree)
    for secrets, expected in ((True, {b"the answer", b"the question"}), (False, {b"the question"})):
        lines = export(tmp_path / "a.db", tmp_path / f"{secrets}.jsonl", secrets=secrets)
        blobs = [b64decode(line["base64"]) for line in lines if line["kind"] == "blob"]
        assert set(blobs) == expected and len(blobs) == len(expected), "once each"
        places = [n for n, line in enumerate(lines) if line["kind"] == "blob"]
        shown = [n for n, line in enumerate(lines) if '"image"' in json.dumps(line)]
        assert max(places) < min(shown), "before what shows them"
        assert secrets or gold not in json.dumps(lines)


def test_part_of_a_record_comes_with_what_it_needs_only(tmp_path):
    fill(tmp_path / "a.db")
    lines = export(tmp_path / "a.db", tmp_path / "a.jsonl", iterations=[0])
    assert {line["kind"] for line in lines} == {
        *("header", "task", "blob", "request", "turn", "outcome", "credit", "item", "selection")
    }
    assert [line["id"] for line in lines if line["kind"] == "task"] == ["a", "b"]
    filed = {line["item"].get("sample") for line in lines if line["kind"] == "turn"}
    assert filed == {"0", "1", "2"}, "each turn under the sample that made it"
    lines = export(tmp_path / "a.db", tmp_path / "failed.jsonl", iterations=[1])
    assert [line["kind"] for line in lines] == ["header", "task", "item"], "no tree, no selections"
    lines = export(tmp_path / "a.db", tmp_path / "none.jsonl", iterations=[5])
    assert [line["kind"] for line in lines] == ["header"]


def test_secrets_stay_home_unless_asked_for(tmp_path):
    store_of(tmp_path / "a.db", with_secret_prompt())
    export(tmp_path / "a.db", tmp_path / "open.jsonl", secrets=True)
    export(tmp_path / "a.db", tmp_path / "shut.jsonl")
    assert GOLD in (tmp_path / "open.jsonl").read_text()
    assert GOLD not in (tmp_path / "shut.jsonl").read_text()
    read_export(tmp_path / "shut.jsonl", tmp_path / "b.db")
    with Store.open(tmp_path / "b.db") as store:
        tree = store.tree(0, "rollout", "a")
    first, second, third = tree.turns.values()
    assert (first.sample, second.sample) == (None, None), "no prompt spells the secret in ids"
    assert first.writer == second.writer == "critic@2"
    assert (first.ids, third.ids) == ((8,), (9,))
    assert view(tree, third.id, "Alice") == view(with_secret_prompt(), third.id, "Alice")


def test_secrets_are_out_of_logs_for_inspect_unless_asked_for(tmp_path: Path) -> None:
    tree = with_secret_prompt()
    tree.end(Outcome(tree.leaves()[-1].id, 0, Ending("answered"), "yes", None))
    start = datetime(2026, 1, 1)
    head = LogHead("riddles", "model@2", "exact match", start, start)
    with Store.open(store_of(tmp_path / "store.sqlite", tree), read_only=True) as store:
        hidden, shown = (
            eval_log(store, 0, "rollout", head, secrets=secrets) for secrets in (False, True)
        )
    assert GOLD not in json.dumps(hidden) and GOLD in json.dumps(shown)
    ((sample,), (other,)) = hidden["samples"], shown["samples"]
    assert sample["messages"][0]["content"] == "<secret:gold>" and not sample["scores"]
    roles = [message["role"] for message in sample["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert other["messages"][1:] == sample["messages"][1:]
    assert sample["model_usage"]["critic@2"] == {
        "input_tokens": 2 + 5, "output_tokens": 2, "total_tokens": 9,
    }  # fmt: skip
