"""Tools: which calls can be run, how they are run, and calls written as tags."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.tools.checking import check_tools, checked
from coterie.tools.run import CallLimits, Function, ToolError, ToolUnavailable, cut_text, run_calls
from coterie.tools.tags import Tag, Tags
from coterie.trajectories.calls import Tool, ToolCall, ToolResult

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = Tool("search", "Finds pages.", QUERY)
MOVE = Tool("move", "Goes on.", {"type": "object"}, alone=True)
TOOLS = (SEARCH, MOVE)
LIMITS = CallLimits(seconds=5.0)
TAGS = Tags({"search": Tag("query", "|"), "move": Tag("to")})


def call(place: int, name: str = "search", **given: object) -> ToolCall:
    return ToolCall(f"c{place}", name, json.dumps(given or {"query": str(place)}))


def run(
    calls: list[ToolCall],
    search: Function,
    move: Function | None = None,
    limits: CallLimits = LIMITS,
) -> tuple[ToolResult, ...]:
    functions = {"search": search, "move": move or search}
    return asyncio.run(run_calls(calls, TOOLS, functions, limits))


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
        ("search", "{}", "wrong arguments: 'query' is a required property"),
        ("search", '{"query": 3}', "wrong arguments: 3 is not of type 'string' (at $.query)"),
        ("search", '["x"]', "wrong arguments: ['x'] is not of type 'object'"),
    ],
    ids=["right", "unknown", "broken", "deep", "missing", "type", "no object"],
)
def test_calls_that_cannot_be_run_say_why(name: str, arguments: str, error: str) -> None:
    (found,) = checked([ToolCall("c0", name, arguments)], TOOLS, max_calls=1)
    assert found.error.startswith(error) and bool(found.error) == bool(error)


def test_a_schema_elsewhere_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: asked.append(a))
    far = Tool("far", "", {"type": "object", "$ref": "http://127.0.0.1:9/schema"})
    (found,) = checked([ToolCall("c0", "far", "{}")], [far], max_calls=1)
    assert found.error.startswith("the tool's own schema is broken") and not asked


def test_calls_over_the_limit_are_answered_and_the_first_error_stays() -> None:
    cut = ToolCall("c0", "search", "", error="cut off")
    found = checked([cut, call(1), call(2)], TOOLS, max_calls=2)
    assert [one.error for one in found] == ["cut off", "", "not run: a message has at most 2 calls"]


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ((SEARCH, SEARCH), "two tools are called 'search'"),
        ((Tool("a", "", {"type": "objekt"}),), "are not a JSON schema"),
        ((Tool("a", "", {"type": "string"}),), "are not a schema of an object"),
        ((Tool("a", "", {}),), "are not a schema of an object"),
    ],
)
def test_tools_that_cannot_work_are_refused(tools: tuple[Tool, ...], reason: str) -> None:
    check_tools(TOOLS)
    with pytest.raises(UserError, match=reason):
        check_tools(tools)


# -- running ------------------------------------------------------------------------------------


def test_ten_parallel_calls_come_back_in_call_order_whatever_order_they_finish_in() -> None:
    finished: list[int] = []

    async def turn_by_turn(given: Mapping[str, Any]) -> str:
        number = int(given["query"])
        while len(finished) < 11 - number:  # the last one first
            await asyncio.sleep(0)
        finished.append(number)
        return f"{number}"

    results = run([call(n) for n in range(12)], turn_by_turn, limits=CallLimits(width=12))
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

    run([call(n) for n in range(9)], counted, limits=CallLimits(width=3))
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

    results = run([call(0), call(1)], fails, limits=CallLimits(seconds=0.05))
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
        run([call(0)], away, limits=CallLimits(tries=2))
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


def test_long_results_lose_their_middle() -> None:
    text = "a" * 600 + "b" * 600
    assert cut_text(text, 1200) == text
    assert cut_text(text, 200) == f"{'a' * 100}\n[1,000 characters are left out here]\n{'b' * 100}"

    async def long(_: Mapping[str, Any]) -> str:
        return text

    (result,) = run([call(0)], long, limits=CallLimits(max_characters=200))
    assert result.text == cut_text(text, 200)


# -- tags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ("no call", []),
        ("<search> Ada Quill </search>", ["Ada Quill"]),
        ("<search>a|b | c</search>", ["a", "b", "c"]),
        (r"<search>a\|b|c</search>", ["a|b", "c"]),
        ("<search>a</search> and <search>b</search>", ["a", "b"]),
        ("<search>a ||</search>", ["a"]),
        ('<search>"é\n</search>', ['"é']),
        ("</search>a<search", []),
    ],
)
def test_tags_are_calls(text: str, queries: list[str]) -> None:
    calls = TAGS.parse(text, "stop_string")
    assert [json.loads(one.arguments)["query"] for one in calls] == queries
    assert [one.id for one in calls] == [f"c{n}" for n in range(len(queries))]
    assert not any(one.error for one in checked(calls, TOOLS, max_calls=9))


@pytest.mark.parametrize(
    ("text", "finish", "errors"),
    [
        ("<search>a", "length", ["not run: the message was cut off before </search>"]),
        ("<search>a|b", "length", ["not run: the message was cut off before </search>"] * 2),
        ("<search>a", "end", ["not run: <search> is not closed; write </search> after the call"]),
        ("<search>a</answer>", "stop_string",
         ["not run: <search> is not closed; write </search> after the call"]),
        ("<search>a<search>b</search>", "stop_string",
         ["not run: <search> is not closed; write </search> after the call", ""]),
        ("<search>a<move>b</move>", "length",
         ["not run: <search> is not closed; write </search> after the call", ""]),
        ("<search> </search>", "stop_string", ["not run: <search> is empty"]),
        ("<search>|</search>", "stop_string", ["not run: <search> is empty"]),
    ],
)  # fmt: skip
def test_broken_tags_are_calls_that_are_not_run(text: str, finish: Any, errors: list[str]) -> None:
    assert [one.error for one in TAGS.parse(text, finish)] == errors


def test_only_complete_answers_count() -> None:
    assert TAGS.answered("<answer>Oslo</answer>") == "Oslo"
    assert TAGS.answered("<answer>a</answer> no, <answer> b\n</answer>") == "b"
    assert TAGS.answered("<answer>Oslo") is None


def test_a_message_ends_with_its_first_tag() -> None:
    assert TAGS.stop == ("</search>", "</move>", "</answer>")


def test_the_prompt_shows_how_each_tool_is_called() -> None:
    said = Tags({"search": Tag("query", "|")}).teach((SEARCH,))
    assert "<search>query</search> Finds pages." in said
    assert "<search>query | another query</search>" in said
    assert "<answer>answer</answer>" in said


def test_results_are_shown_in_call_order() -> None:
    shown = TAGS.show(
        (ToolResult("c0", "one"), ToolResult("c1", "<search>two</search>", error=True))
    )
    assert shown == (
        "<observation>\none\n</observation>\n<observation>\n<search>two</search>\n</observation>"
    )
