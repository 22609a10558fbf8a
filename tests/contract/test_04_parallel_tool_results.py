"""Contract 4: parallel tool results are one group; their order of arrival changes nothing."""

import random
import re
from itertools import permutations

import pytest

from coterie.models.chat import ChatRenderer
from coterie.record.store import Store
from coterie.record.tree import ItemKey, Tree
from coterie.record.turn import Message, Part, Role, Speaker, ToolCall, ToolResult, Turn, make_turn
from tests.helpers.template_models import TEMPLATES, make_tokenizer

AGENT, TOOLS = Speaker("agent", "planner"), Speaker("tool", "tools")
RESULTS = (
    ToolResult("c2", "12 °C"),
    ToolResult("c10", "no such city", error=True),
    ToolResult("c0", "17 °C"),
    ToolResult("c1", "8 °C"),
)


def tree_of(arrived: tuple[ToolResult, ...]) -> Tree:
    """A planner's parallel calls, their results as they arrived, and what was said then."""
    tree = Tree("weather", "rollout", 0)
    calls = tuple(ToolCall(f"c{n}", "weather", f'{{"city": {n}}}') for n in range(11))
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
    other = (ToolResult("c2", "13 °C"), *RESULTS[1:])
    asked, told, _ = turns_of(RESULTS)
    asked_too, told_too, _ = turns_of(other)
    assert asked.id == asked_too.id
    assert told.id != told_too.id


def test_results_stand_in_the_order_of_their_calls():
    _, told, _ = turns_of(RESULTS)
    assert [result.call_id for result in told.results] == ["c0", "c1", "c2", "c10"]


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_shows_eleven_results_in_the_order_of_their_calls(name: str, role: Role):
    results = [ToolResult(f"c{place}", f"city {place}.") for place in range(11)]
    for number in range(5):
        arrived = random.Random(number).sample(results, len(results))
        tree = tree_of(tuple(arrived))
        asked, told, _ = tree.turns
        messages = (Message("assistant", turn=asked), Message(role, turn=told))
        prompt = ChatRenderer(make_tokenizer(name)).render(messages, tree, "planner")
        shown = re.findall(r"city (\d+)\.", make_tokenizer(name).decode(prompt))
        assert shown == [str(place) for place in range(11)]


@pytest.mark.parametrize("names", [("c1",), ("c1", "c0"), ("c0", "c0"), ("call_0",), ("c00",)])
def test_calls_are_named_by_their_place(names: tuple[str, ...]):
    with pytest.raises(ValueError, match="c0, c1"):
        make_turn("", AGENT, [], calls=tuple(ToolCall(name, "weather", "{}") for name in names))


def test_a_call_has_one_result():
    twice = (ToolResult("c0", "17 °C"), ToolResult("c0", "18 °C"))
    with pytest.raises(ValueError, match="two results of one call"):
        make_turn("", TOOLS, [], results=twice)
