"""Contract 4: parallel tool results are one group; their order of arrival changes nothing."""

from itertools import permutations

from coterie.trajectories.item import ItemKey
from coterie.trajectories.store import Store
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Part, Speaker, ToolCall, ToolResult, Turn, make_turn

AGENT, TOOLS = Speaker("agent", "planner"), Speaker("tool", "tools")
RESULTS = (
    ToolResult("call_2", "12 °C"),
    ToolResult("call_10", "no such city", error=True),
    ToolResult("call_1", "17 °C"),
    ToolResult("call_1", "a second answer to the same call"),
)


def tree_of(arrived: tuple[ToolResult, ...]) -> Tree:
    """A planner's parallel calls, their results as they arrived, and what was said then."""
    tree = Tree("weather", "rollout", 0)
    calls = tuple(ToolCall(f"call_{n}", "weather", f'{{"city": {n}}}') for n in (1, 2, 10))
    asked = make_turn(tree.root, AGENT, [Part("look")], calls=calls, author="script:test")
    told = make_turn(asked.id, TOOLS, [], results=arrived, author="tools")
    said = make_turn(told.id, AGENT, [Part("17 °C")], author="script:test")
    for turn in (asked, told, said):
        tree.add(turn)
    return tree


def turns_of(arrived: tuple[ToolResult, ...]) -> list[Turn]:
    return list(tree_of(arrived).turns.values())


def test_every_order_of_arrival_gives_the_same_turns_with_the_same_ids():
    expected = turns_of(RESULTS)
    for arrived in permutations(RESULTS):
        assert turns_of(arrived) == expected


def test_every_order_of_arrival_leaves_the_same_stored_record(tmp_path):
    stored = []
    for number, arrived in enumerate(permutations(RESULTS)):
        with Store.open(tmp_path / f"{number}.db") as store:
            store.finish(ItemKey(0, "rollout", "weather"), tree=tree_of(arrived))
            stored.append(store._db.execute("SELECT * FROM turn ORDER BY position").fetchall())
    assert all(rows == stored[0] for rows in stored)


def test_work_done_twice_with_another_order_of_arrival_meets_itself(tmp_path):
    with Store.open(tmp_path / "s.db") as store:
        store.finish(ItemKey(0, "rollout", "weather", "0"), tree=tree_of(RESULTS))
        store.finish(ItemKey(0, "rollout", "weather", "1"), tree=tree_of(RESULTS[::-1]))
        assert store.tree(0, "rollout", "weather") == tree_of(RESULTS)


def test_another_result_is_another_turn():
    other = (ToolResult("call_2", "13 °C"), *RESULTS[1:])
    asked, told, _ = turns_of(RESULTS)
    asked_too, told_too, _ = turns_of(other)
    assert asked.id == asked_too.id
    assert told.id != told_too.id
