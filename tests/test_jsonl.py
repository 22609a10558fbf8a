"""Export to JSONL and import: what goes round comes back; what is broken is refused by line."""

import json
import random
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.record import export as jsonl
from coterie.record.rows import view
from coterie.record.store import Credit, Selection, Store
from coterie.record.tree import ItemKey, Secret, Task, Tree, hash_of, root_id
from coterie.record.turn import Message, Part, Request, Sample, Speaker, make_turn
from tests.random_trees import PICTURE, episodes, whole

GOLD = "the gold answer"
GOLD_PART = Part(GOLD, frozenset({"critic"}), "secret:gold")
TASKS = [
    Task("a", {"q": "¿é?"}, {"gold": Secret(GOLD, name="gold", readers=frozenset({"critic"}))}),
    Task("b", {"q": [1, {"x": None}]}),
    Task("unused", {}),
]


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
        leaf = next(iter(whole(7, "a").outcomes))
        store.select(0, "select", [Selection(leaf, "Alice", "plain", 0.25), Selection(leaf, "Bob")])


def with_secret_prompt() -> Tree:
    """A critic that is shown a secret and speaks twice, and an agent that is not."""
    tree = Tree("a", "rollout", 0)
    gold = Part(GOLD, frozenset({"critic"}), "secret:gold")
    node, previous, running, said = tree.root, None, (), ()
    for round_ in range(2):
        message = Message("user", (gold if round_ == 0 else Part("go on"),))
        prompt, messages = (*running, 5, round_), (*said, message)
        request = Request.make("critic", node, previous, prompt, messages, running, said)
        sample = Sample(request.id, (8,), (-1.0,), "end", "critic", "2", 1, 1.0, 1.0)
        turn = make_turn(node, Speaker("agent", "critic"), [Part("good")], sample=sample)
        tree.add(turn, request)
        running, said = (*prompt, 8), (*messages, Message("assistant", turn=turn.id))
        node = previous = turn.id
    request = Request.make("Alice", node, None, (1,), (Message.of("user", "hi"),))
    sample = Sample(request.id, (9,), (-1.0,), "end", "policy", "1", 1, 1.0, 1.0)
    tree.add(make_turn(node, Speaker("agent", "Alice"), [Part("yes")], sample=sample), request)
    return tree


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


def test_a_record_goes_round_and_comes_back_equal(tmp_path):
    fill(tmp_path / "a.db")
    export(tmp_path / "a.db", tmp_path / "a.jsonl", secrets=True)
    jsonl.import_(tmp_path / "a.jsonl", tmp_path / "b.db")
    export(tmp_path / "b.db", tmp_path / "b.jsonl", secrets=True)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    with Store.open(tmp_path / "a.db") as a, Store.open(tmp_path / "b.db") as b:
        assert [b.task(task.id) for task in TASKS] == TASKS
        for mine, theirs in zip(b.trees(0, "rollout"), a.trees(0, "rollout"), strict=True):
            assert mine == theirs == whole(7, mine.task)
            assert list(mine.turns) == list(theirs.turns)
        assert b.credit("s1", "value") == a.credit("s1", "value") != {}
        assert b.metrics(0, "rollout") == a.metrics(0, "rollout")
        assert b.failures() == a.failures() != []
        assert b.selections(0) == a.selections(0) != []
        with pytest.raises(ValueError, match="finished already"):
            b.finish(ItemKey(0, "rollout", "a", "1"))
    left = {path.suffix for path in tmp_path.iterdir()}
    assert left == {".db", ".jsonl", ".lock"}, "nothing half-made is left"


@pytest.mark.parametrize("seed", range(20))
def test_any_tree_goes_round(tmp_path, seed):
    tree = whole(seed, "t")
    store_of(tmp_path / "a.db", tree)
    export(tmp_path / "a.db", tmp_path / "a.jsonl")
    jsonl.import_(tmp_path / "a.jsonl", tmp_path / "b.db")
    with Store.open(tmp_path / "b.db") as store:
        assert store.tree(0, "rollout", "t") == tree


def test_images_come_once_and_before_what_shows_them(tmp_path):
    fill(tmp_path / "a.db")
    lines = export(tmp_path / "a.db", tmp_path / "a.jsonl")
    (place,) = [n for n, line in enumerate(lines) if line["kind"] == "blob"]
    shown = [n for n, line in enumerate(lines) if '"image"' in json.dumps(line)]
    assert place < min(shown)
    jsonl.import_(tmp_path / "a.jsonl", tmp_path / "b.db")
    with Store.open(tmp_path / "b.db", read_only=True) as store:
        assert store.image(hash_of(PICTURE)) == PICTURE


def test_that_a_turn_was_cut_off_comes_back_also_where_its_sample_does_not(tmp_path):
    tree = Tree("a", "rollout", 0)
    said = Speaker("agent", "Alice")
    short, cut = (make_turn(tree.root, said, [Part("x")], truncated=cut) for cut in (False, True))
    request = Request.make("Bob", tree.root, None, (1,), (Message("user", (GOLD_PART,)),))
    sample = Sample(request.id, (9,), (-1.0,), "length", "policy", "1", 1, 1.0, 1.0)
    sampled = make_turn(tree.root, Speaker("agent", "Bob"), [Part("y")], sample=sample)
    tree.add(sampled, request)
    tree.add(short)
    tree.add(cut)
    assert short.id != cut.id and sampled.truncated
    store_of(tmp_path / "a.db", tree)
    for secrets in (True, False):
        export(tmp_path / "a.db", tmp_path / f"{secrets}.jsonl", secrets=secrets)
        jsonl.import_(tmp_path / f"{secrets}.jsonl", tmp_path / f"{secrets}.db")
        with Store.open(tmp_path / f"{secrets}.db") as store:
            turns = store.tree(0, "rollout", "a").turns
            assert [turn.id for turn in turns.values() if turn.truncated] == [sampled.id, cut.id]
            assert (turns[sampled.id].sample is not None) == secrets


def test_an_image_that_only_a_secret_shows_stays_home(tmp_path):
    tree = Tree("a", "rollout", 0)
    gold, seen = tree.add_image(b"the answer"), tree.add_image(b"the question")
    secret = replace(GOLD_PART, image=gold)
    world = Speaker("environment", "world")
    asked = make_turn(tree.root, world, [Part("look", image=seen), secret])
    tree.add(asked)
    request = Request.make("critic", asked.id, None, (1,), (Message("user", (secret,)),))
    sample = Sample(request.id, (9,), (-1.0,), "end", "policy", "1", 1, 1.0, 1.0)
    tree.add(make_turn(asked.id, Speaker("agent", "critic"), [Part("y")], sample=sample), request)
    store_of(tmp_path / "a.db", tree)
    for secrets, expected in ((True, {b"the answer", b"the question"}), (False, {b"the question"})):
        lines = export(tmp_path / "a.db", tmp_path / f"{secrets}.jsonl", secrets=secrets)
        found = {b64decode(line["base64"]) for line in lines if line["kind"] == "blob"}
        assert found == expected
        assert secrets or gold not in json.dumps(lines)
        jsonl.import_(tmp_path / f"{secrets}.jsonl", tmp_path / f"{secrets}.db")


@pytest.mark.parametrize(
    "change",
    [
        {"calls": [{"id": "call_7", "name": "look", "arguments": "{}"}]},
        {"results": [{"call_id": "c0", "text": "a"}, {"call_id": "c0", "text": "b"}]},
    ],
    ids=["calls", "results"],
)
def test_calls_and_results_that_are_not_by_place_are_refused(tmp_path, change):
    tree = Tree("b", "rollout", 0)
    tree.add(make_turn(tree.root, Speaker("agent", "Alice"), [Part("x")]))
    store_of(tmp_path / "a.db", tree)
    lines = export(tmp_path / "a.db", tmp_path / "a.jsonl")
    for line in lines:
        if line["kind"] == "turn":
            line["turn"] |= change
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "b.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"line [0-9]+: (call ids must|two results)"):
        jsonl.import_(tmp_path / "b.jsonl", tmp_path / "b.db")


def test_part_of_a_record_comes_with_what_it_needs_only(tmp_path):
    fill(tmp_path / "a.db")
    lines = export(tmp_path / "a.db", tmp_path / "a.jsonl", stages=["rollout"], iterations=[0])
    kinds = {line["kind"] for line in lines}
    assert kinds == {"header", "task", "blob", "request", "turn", "outcome", "credit", "item"}
    assert [line["id"] for line in lines if line["kind"] == "task"] == ["a", "b"]
    filed = {line["item"].get("sample") for line in lines if line["kind"] == "turn"}
    assert filed == {"0", "1", "2"}, "each turn under the sample that made it"
    jsonl.import_(tmp_path / "a.jsonl", tmp_path / "b.db")
    lines = export(tmp_path / "a.db", tmp_path / "select.jsonl", stages=["select"])
    assert [line["kind"] for line in lines] == ["header", "item"], "no tree to select from"
    lines = export(tmp_path / "a.db", tmp_path / "none.jsonl", iterations=[5])
    assert [line["kind"] for line in lines] == ["header"]


def test_secrets_stay_home_unless_asked_for(tmp_path):
    store_of(tmp_path / "a.db", with_secret_prompt())
    export(tmp_path / "a.db", tmp_path / "open.jsonl", secrets=True)
    export(tmp_path / "a.db", tmp_path / "shut.jsonl")
    assert GOLD in (tmp_path / "open.jsonl").read_text()
    assert GOLD not in (tmp_path / "shut.jsonl").read_text()
    jsonl.import_(tmp_path / "shut.jsonl", tmp_path / "b.db")
    with Store.open(tmp_path / "b.db") as store:
        tree = store.tree(0, "rollout", "a")
    first, second, third = tree.turns.values()
    assert (first.sample, second.sample) == (None, None), "no prompt spells the secret in ids"
    assert first.writer == second.writer == "critic@2"
    assert (first.ids, third.ids) == ((8,), (9,))
    assert view(tree, third.id, "Alice") == view(with_secret_prompt(), third.id, "Alice")


def test_ids_that_spell_a_secret_stay_home(tmp_path):
    store_of(tmp_path / "a.db", with_secret_prompt())
    lines = export(tmp_path / "a.db", tmp_path / "a.jsonl")
    asked = [line["request"]["agent"] for line in lines if line["kind"] == "request"]
    assert asked == ["Alice"], "no prompt of the critic, whose ids spell the secret"


def test_text_that_nobody_sampled_is_tokenised_once(tmp_path):
    speaker = Speaker("agent", "Alice")
    tree = Tree("t", "rollout", 0)
    said = make_turn(tree.root, speaker, [Part("so "), Part("be it")], author="import:chat.json")
    known = make_turn(said.id, speaker, [Part("known")], ids=(7,), author="script:x")
    seen = make_turn(known.id, Speaker("environment", "world"), [Part("rain")], author="world")
    for turn in (said, known, seen):
        tree.add(turn)
    store_of(tmp_path / "a.db", tree)
    export(tmp_path / "a.db", tmp_path / "a.jsonl")
    asked: list[str] = []

    def tokenize(text: str) -> list[int]:
        asked.append(text)
        return [len(text)]

    jsonl.import_(tmp_path / "a.jsonl", tmp_path / "b.db", tokenize=tokenize)
    with Store.open(tmp_path / "b.db") as store:
        ids = {turn.text: turn.ids for turn in store.tree(0, "rollout", "t").turns.values()}
    assert ids == {"so be it": (8,), "known": (7,), "rain": ()}
    assert asked == ["so be it"]


TURN = (
    '{"kind":"turn","item":{"iteration":0,"stage":"rollout","task":"t"},"turn":{"id":"x",'
    '"parent":"gone","speaker":{"kind":"agent","name":"A"},"parts":[{"text":5}]}}'
)
CREDIT = '{"kind":"credit","credit":{"node":"x","name":"v","value":%s,"settings":"s"%s}}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"kind":"task",}', r"not JSON: trailing comma"),
        ("[1, 2]", r"the line: .*object"),
        ('{"kind":"spell"}', r"the line: must be one of header, task"),
        ('{"kind":"task","id":"x"}', r"public: is missing"),
        (TURN, "turn.parts.0.text: must be text"),
        (TURN.replace("5", '"five"'), r"parent of turn x: node gone is not in its tree"),
        (CREDIT % ('"1"', ""), r"value: must be a number"),
        (CREDIT % ("NaN", ""), r"is not a number"),
        (CREDIT % (1, ""), r"node x of credit 'v' is not in the store"),
        ('{"kind":"header","format":"coterie-9"}', r"format: must be coterie-2"),
        ('{"kind":"task","id":"a","public":{}}', r"the store already has another task with id 'a'"),
        (b'{"kind":"task","id":"\xff","public":{}}', r"not JSON: invalid unicode"),
        (
            TURN.replace("gone", root_id(0, "rollout", "t"))
            .replace(":5}", ':"y"}')
            .replace('"parts"', '"ids":[4294967296],"parts"'),
            r"out of bounds for int32",
        ),
    ],
)
def test_a_broken_line_is_refused_by_number_and_reason(tmp_path, line, reason):
    fill(tmp_path / "a.db")
    lines = export(tmp_path / "a.db", tmp_path / "a.jsonl")
    data = (tmp_path / "a.jsonl").read_bytes()
    data += line if isinstance(line, bytes) else line.encode()
    (tmp_path / "broken.jsonl").write_bytes(data + b"\n")
    before = set(tmp_path.iterdir())
    with pytest.raises(UserError, match=rf"broken.jsonl, line {len(lines) + 1}: .*{reason}"):
        jsonl.import_(tmp_path / "broken.jsonl", tmp_path / "b.db")
    assert set(tmp_path.iterdir()) == before, "nothing is written"


def test_existing_files_are_not_overwritten(tmp_path):
    fill(tmp_path / "a.db")
    export(tmp_path / "a.db", tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="already exists"):
        export(tmp_path / "a.db", tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="already exists"):
        jsonl.import_(tmp_path / "a.jsonl", tmp_path / "a.db")
    with pytest.raises(UserError, match="there is no file"):
        jsonl.import_(tmp_path / "none.jsonl", tmp_path / "c.db")
