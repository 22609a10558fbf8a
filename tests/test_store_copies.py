"""Parts of a store in another one: what is copied is what it was, whatever has been there before."""

from coterie.record.store import Store, copy_step
from coterie.record.tree import Credit, ItemKey, Secret, Task, Tree, hash_of, shown_images
from coterie.record.turn import Message, Part, Request, Speaker, Tool, make_turn
from tests.random_trees import key, whole

SEEDS = {"a": 3, "b": 5, "c": 8, "d": 13}
"""By task, of trees with calls, images and prompts."""


def asked(task: str) -> Task:
    gold = Secret(task, name="gold", readers=frozenset({"critic"}))
    return Task(task, {"question": "?"}, {"gold": gold})


def test_what_is_copied_from_other_stores_is_what_it_was(tmp_path):
    """Images, calls, tools and secrets, too. Each store has a stage besides that is not copied."""
    for name, tasks in (("one", "ac"), ("two", "bd")):
        with Store.open(tmp_path / f"{name}.db") as store:
            for task in tasks:
                store.put_tasks([asked(task)])
                tree = whole(SEEDS[task], task)
                credit = [Credit(node, "value", 1.0, name) for node in tree.turns]
                store.finish(key(task), tree=tree, credit=credit, metrics={"tokens": 3})
                other = ItemKey(0, "evaluate", task)
                store.finish(other, tree=Tree(task, "evaluate", 0))
    trees = {task: whole(seed, task) for task, seed in SEEDS.items()}
    with Store.open(tmp_path / "s.db") as store:
        store.finish(ItemKey(1, "rollout", "before"), tree=Tree("before", "rollout", 1))
        for name in ("two", "one"):
            with store.beside(tmp_path / f"{name}.db") as db:
                copy_step(db, 0, "rollout", {"one": "both", "two": "both"})
        assert {tree.task: tree for tree in store.trees(0, "rollout")} == trees
        assert list(store.trees(0, "evaluate")) == []
        assert [item.metrics for item in store.items(0, "rollout")] == [{"tokens": 3}] * 4
        assert store.tasks_of(0, "rollout") == [*"abcd"]
        assert [store.task(task) for task in "abcd"] == [*map(asked, "abcd")]
        nodes = {node for tree in trees.values() for node in tree.turns}
        assert store.credit("both", "value") == dict.fromkeys(nodes, 1.0)
        shown = {image for tree in trees.values() for image in shown_images(tree)}
        assert shown and all(hash_of(store.image(image)) == image for image in shown)


def offered(task: str, *names: str) -> Tree:
    """A tree of turns after prompts that each offer one tool."""
    tree = Tree(task, "rollout", 0)
    for draw, name in enumerate(names):
        tools = (Tool(name, "It looks something up.", {"type": "object"}),)
        shown = (Message.of("user", name),)
        request = Request.make("Ann", tree.root, None, (1, 2), shown, tools=tools)
        said = make_turn(
            *(tree.root, Speaker("agent", "Ann"), [Part(name)]), draw=draw, request=request.id
        )
        tree.add(said, request)
    return tree


def test_prompts_offer_the_tools_that_they_offered(tmp_path):
    trees = {"a": offered("a", "search", "count"), "b": offered("b", "count", "draw", "search")}
    for task, tree in trees.items():
        with Store.open(tmp_path / f"{task}.db") as store:
            store.finish(key(task), tree=tree)
    with Store.open(tmp_path / "s.db") as store:
        for task in trees:
            with store.beside(tmp_path / f"{task}.db") as db:
                copy_step(db, 0, "rollout", {})
        assert {tree.task: tree for tree in store.trees(0, "rollout")} == trees
