"""Tools: which calls can be run, how they are run, and calls written as tags."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.record.turn import Tool, ToolCall, ToolResult
from coterie.tools.calls import (
    CallLimits,
    Function,
    ToolError,
    ToolUnavailable,
    check_tools,
    cut_text,
    run_calls,
    validate_calls,
)
from coterie.tools.registry import sources_of

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = Tool("search", "Finds pages.", QUERY)
MOVE = Tool("move", "Goes on.", {"type": "object"}, alone=True)
TOOLS = (SEARCH, MOVE)


def call(place: int, name: str = "search", **given: object) -> ToolCall:
    return ToolCall(f"c{place}", name, json.dumps(given or {"query": str(place)}))


def run(
    calls: list[ToolCall], search: Function, move: Function | None = None, **limits: Any
) -> tuple[ToolResult, ...]:
    functions = {"search": search, "move": move or search}
    own = CallLimits(**{"seconds": 5.0, **limits})
    return asyncio.run(run_calls(calls, TOOLS, functions, own))


TWICE = [{"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(99)]
BOMB = {"$defs": {str(n): one for n, one in enumerate([*TWICE, {}])}}
"""Schemas of which each refers to the next one twice: together 2**99."""
PAIR = {"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False}
SLOW = {"pattern": "^([a-z.]+)*@example$"}  # backtracking would take hours
LEFT_OUT = {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}
MANY = json.dumps({"n": [{"a": n} for n in range(10**5)] + [{"a": 1}]})
FIRST, MISSING = {"$ref": "#/$defs/0"}, {"$ref": "#/$defs/b"}
DRAFT_7 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "properties": {"n": {"items": [{"type": "string"}, {"type": "integer"}]}},
}
"""A tuple, as drafts before 2020-12 write it."""


async def echo(given: Mapping[str, Any]) -> str:
    return f"found {given.get('query')}"


# -- checking -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("search", '{"query": "x"}', ""),
        ("find", "{}", "there is no tool 'find'; the tools are: search, move"),
        ("search", '{"query": "x"', "the arguments are not JSON"),
        ("search", "[" * 100_000, "the arguments are not JSON"),
        ("search", f'{{"query": {"[" * 200 + "]" * 200}}}', "wrong arguments: it nests too deep"),
        ("search", "{}", "wrong arguments: 'query' is a required property"),
        ("search", '{"query": 3}', "wrong arguments: 3 is not of type 'string' (at $.query)"),
        ("search", '["x"]', "wrong arguments: ['x'] is not of type 'object'"),
        ("move", '{"n": NaN}', "the arguments are not JSON: NaN"),
        ("move", '{"n": "\\ud800"}', "the arguments are not JSON: it holds half a character"),
    ],
    ids=lambda one: one[:20],
)
def test_calls_that_cannot_be_run_say_why(name: str, arguments: str, error: str) -> None:
    (found,) = validate_calls([ToolCall("c0", name, arguments)], TOOLS, max_calls=1)
    assert found.error.startswith(error) and bool(found.error) == bool(error)


@pytest.mark.parametrize(
    ("schema", "arguments", "error"),
    [
        ({"properties": {"n": {"multipleOf": 0.5}}}, '{"n": 1e400}', "wrong arguments: a number"),
        ({"properties": {"n": SLOW}}, json.dumps({"n": "a" * 99}), "wrong arguments: 'aaa"),
        ({"patternProperties": {"^([a-z]+)*$": {"type": "null"}}}, f'{{"{"a" * 99}!": 1}}', ""),
        (DRAFT_7, '{"n": ["a", 1]}', ""),
        (DRAFT_7, '{"n": [1]}', "wrong arguments: 1 is not of type 'string' (at $.n[0])"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "{}", "the tool's own schema is broken"),
        (
            {**LEFT_OUT, "minProperties": 2},
            json.dumps({"a" * 99 + "!": 1}),
            "wrong arguments: {'aaa",
        ),
        (
            {"properties": {"n": {"uniqueItems": True}}},
            MANY,
            "wrong arguments: an item of the list is",
        ),
        ({"properties": {"n": PAIR}}, '{"n": ["a", 1]}', ""),
        ({"properties": {"n": PAIR}}, '{"n": ["a", 1, 2]}', "wrong arguments: Additional items"),
        ({"properties": {"n": FIRST}, **BOMB}, '{"n": 1}', "the arguments are too many"),
    ],
)
def test_traps_of_schemas_are_errors_of_the_call(
    schema: Any, arguments: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: asked.append(a))
    tool = Tool("a", "", {"type": "object", **schema})
    (found,) = validate_calls([ToolCall("c0", "a", arguments)], [tool], max_calls=1)
    assert found.error.startswith(error) and bool(found.error) == bool(error)
    assert not asked, "no schema is downloaded"


def test_errors_are_short_and_calls_over_the_limit_have_one_unless_they_had() -> None:
    long = [ToolCall("c0", "x" * 9999, "{}"), ToolCall("c1", "search", f'["{"x" * 9999}"]')]
    assert all(100 < len(one.error) <= 1000 for one in validate_calls(long, TOOLS, max_calls=9))
    cut = ToolCall("c0", "search", "", error="cut off")
    found = [one.error for one in validate_calls([cut, call(1), call(2)], TOOLS, max_calls=2)]
    assert found == ["cut off", "", "not run: only 2 calls of this message are run"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objekt"}, "not a schema of an object"),
        ({}, "not a schema of an object"),
        ({"type": "object", "properties": {"a": {"type": "objekt"}}}, "'objekt' is not valid"),
        ({"type": "object", **MISSING}, "'#/.defs/b' is not a schema"),
        ({"type": "object", "properties": {"a": MISSING}}, "'#/.defs/b' is not a schema"),
        ({"type": "object", **FIRST, **BOMB}, "refer to each other too often"),
        ({"type": "object", "$ref": "#"}, "recursion"),
    ],
)
def test_tools_that_cannot_work_are_refused(schema: Any, reason: str) -> None:
    odd = Tool("b", "", {"type": "object", "properties": {"q": {"pattern": r"\p{L}"}}})
    again = {"q": PAIR, "r": {"$ref": "#/properties/q"}}
    pair = Tool("c", "", {"type": "object", "properties": again})
    check_tools((*TOOLS, odd, pair))
    with pytest.raises(UserError, match="two tools are called 'search'"):
        check_tools((SEARCH, SEARCH))
    with pytest.raises(UserError, match=reason):
        check_tools((Tool("a", "", schema),))


def test_an_error_of_a_function_names_its_file_and_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "towns.py"
    body = f"return open({str(tmp_path)!r} + '/no where').read()"
    file.write_text(f"def towns(name: str) -> str:\n    'Lists.'\n    {body}\n")
    (source,) = sources_of((f"{file}:towns",), None)
    calls = [ToolCall("c0", "towns", '{"name": "Oslo"}')]

    async def play() -> tuple[ToolResult, ...]:
        async with source.open() as functions:
            return await run_calls(calls, source.tools, functions, CallLimits())

    (found,) = asyncio.run(play())
    said = "FileNotFoundError: [Errno 2] No such file or directory: 'no where'"
    assert found.text == f"towns.py, line 3: {said}"


# -- running ------------------------------------------------------------------------------------


def test_ten_parallel_calls_come_back_in_call_order_whatever_order_they_finish_in() -> None:
    finished: list[int] = []

    async def turn_by_turn(given: Mapping[str, Any]) -> str:
        number = int(given["query"])
        while len(finished) < 11 - number:  # the last one first
            await asyncio.sleep(0)
        finished.append(number)
        return f"{number}"

    results = run([call(n) for n in range(12)], turn_by_turn, width=12)
    assert finished == [*range(11, -1, -1)]
    assert [(r.call_id, r.text) for r in results] == [(f"c{n}", f"{n}") for n in range(12)]


def test_no_more_than_the_width_run_at_once() -> None:
    running, most = 0, 0

    async def counted(_: Mapping[str, Any]) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return ""

    run([call(n) for n in range(9)], counted, width=3)
    assert most == 3


def test_a_call_that_changes_the_environment_runs_in_its_place_beside_nothing() -> None:
    events: list[str] = []

    def noted(name: str) -> Function:
        async def tool(given: Mapping[str, Any]) -> str:
            events.append(f"{name} begins")
            await asyncio.sleep(0.01)
            events.append(f"{name} ends")
            return ""

        return tool

    calls = [call(0), call(1), call(2, "move"), call(3, "move"), call(4)]
    run(calls, noted("look"), noted("move"))
    looks = ["look begins", "look begins", "look ends", "look ends"]
    assert events == [*looks, *["move begins", "move ends"] * 2, "look begins", "look ends"]


def test_broken_calls_are_answered_in_their_place_and_never_run() -> None:
    broken = ToolCall("c1", "move", "{}", error="the arguments are not JSON")
    first, second, third = run([call(0), broken, call(2)], echo)
    assert (first.text, third.text) == ("found 0", "found 2")
    assert second == ToolResult("c1", "the arguments are not JSON", error=True)


def test_failures_are_results_that_the_agent_can_read() -> None:
    async def fails(given: Mapping[str, Any]) -> str:
        if given["query"] == "0":
            raise ToolError("no such page")
        await asyncio.sleep(60)
        return ""

    results = run([call(0), call(1)], fails, seconds=0.05)
    texts = ["no such page", "no answer within 0.05 seconds"]
    assert results == tuple(ToolResult(f"c{n}", text, error=True) for n, text in enumerate(texts))


def test_what_cannot_be_reached_is_tried_again_and_then_fails_the_item() -> None:
    tries: list[str] = []

    async def away(given: Mapping[str, Any]) -> str:
        tries.append(str(given.get("query", "move")))
        if len(tries) < 3:
            raise ToolUnavailable("the server is gone")
        return "back"

    assert run([call(0)], away)[0].text == "back"
    tries.clear()
    with pytest.raises(ToolUnavailable):
        run([call(0)], away, tries=2)
    tries.clear()
    with pytest.raises(ToolUnavailable):
        run([call(0, "move", to="x")], away)
    assert tries == ["move"], "a second try could change the environment twice"


def test_a_fault_of_a_tool_is_no_answer_and_waits_for_the_calls_beside_it() -> None:
    ended: list[str] = []

    async def tool(given: Mapping[str, Any]) -> str:
        if given["query"] == "0":
            raise KeyError("a bug")
        await asyncio.sleep(0.02)
        ended.append("1")
        return ""

    with pytest.raises(KeyError, match="a bug"):
        run([call(0), call(1)], tool)
    assert ended == ["1"]


def test_results_hold_whole_characters() -> None:
    async def bytes_of_a_file(given: Mapping[str, Any]) -> str:
        if given["query"] == "1":
            raise ToolError("\udce9")
        return "caf\udce9 é"

    assert [one.text for one in run([call(0), call(1)], bytes_of_a_file)] == ["caf? é", "?"]


def test_long_results_lose_their_middle() -> None:
    text = "a" * 600 + "b" * 600
    assert cut_text(text, 1200) == text
    assert cut_text(text, 200) == f"{'a' * 100}\n[1,000 characters are left out here]\n{'b' * 100}"

    async def long(_: Mapping[str, Any]) -> str:
        return text

    (result,) = run([call(0)], long, max_characters=200)
    assert result.text == cut_text(text, 200)
