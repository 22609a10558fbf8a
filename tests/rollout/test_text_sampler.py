"""Agents with tools that are played by an endpoint: text in, text out (the service's replies are made up)."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from coterie.engines.endpoint import Endpoint
from coterie.engines.protocol import Sampling
from coterie.environments.protocol import Shared, State
from coterie.record.tree import Task, Tree
from coterie.record.turn import Message, Part, Speaker, ToolResult, Turn, make_turn
from coterie.rollout.branches import Branches
from coterie.rollout.samplers import AgentContext, Prompt, Response, TextSampler
from coterie.rollout.sessions import Sessions
from coterie.tools.calls import NativeCalls, closing
from tests.engines.test_endpoint import Answer, says, service, settings
from tests.helpers.script_games import TOOLS, Asking

STOPS = ["</look>", "</push>", "</answer>"]


class Looking(Asking):
    """The agent sees its own turns as its own, and results as a tool's."""

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        turns = [
            Message("assistant" if turn.speaker.kind == "agent" else "tool", turn=turn.id)
            for turn in state.turns
        ]
        return Message.of("user", "Look."), *turns


def replies(text: str, **more: Any) -> Answer:
    choice = {"message": {"content": text}, "finish_reason": "stop", "index": 0, **more}
    return says(200, {"choices": [choice]})


def played(*script: Answer, game: Asking | None = None) -> tuple[list[Turn], list[dict[str, Any]]]:
    """The path of a game, and the requests that the service had."""

    async def play(url: str) -> list[Turn]:
        async with Endpoint(settings(url)) as endpoint, Sessions(1, 5.0) as sessions:
            sampler = TextSampler(endpoint, Sampling(max_tokens=20, stop=("END",)))
            grown = Branches(
                *(game or Looking(), {"agent": sampler}, Task("t", {}), Tree("t", "r", 0)),
                seed=0, shared=Shared(), sessions=sessions, seconds=5.0,
            )  # fmt: skip
            at = await grown.start()
            while at.state.end is None:
                at = await grown.advance(at, await grown.respond(at, {"agent": 0}, 0))
            return grown.tree.path(at.node)

    with service(*script) as server:
        return asyncio.run(play(server.url)), server.bodies


@pytest.mark.parametrize("stop", [{"stop_reason": "</look>"}, {"stop_reason": None}, {}])
def test_calls_of_an_endpoint_are_run_and_their_results_shown(stop: dict[str, Any]) -> None:
    path, asked = played(replies("I <look>1|2", **stop), replies("a door"))
    called, told, answer = path
    assert called.text == "I <look>1|2</look>" and answer.text == "a door"
    assert [call.error for call in called.calls] == ["", ""]
    assert [result.text for result in told.results] == ["1 is there", "2 is there"]
    assert all(body["stop"] == ["END", *STOPS] for body in asked)
    assert asked[1]["messages"][1:] == [
        {"role": "assistant", "content": "I <look>1|2</look>"},
        {
            "role": "user",
            "content": "<observation>\n1 is there\n</observation>\n<observation>\n2 is there\n</observation>",
        },
    ]


def test_a_call_that_an_endpoint_cut_off_is_not_run() -> None:
    path, _ = played(replies("<look>1", finish_reason="length"), replies("a door"))
    assert path[0].text == "<look>1" and "cut off" in path[0].calls[0].error
    assert "cut off" in path[1].results[0].text


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("<look>1</look> and <answer>door", "</answer>"), ("<push>1 <look>2", "</look>"),
        ("<look>1</look>", ""), ("a door", ""),
    ],
)  # fmt: skip
def test_a_reply_ended_with_the_tag_that_is_open(text: str, ended: str) -> None:
    assert closing(text, STOPS) == ended


def respond(answer: Answer, prompt: Prompt) -> tuple[Response, dict[str, Any]]:
    """The response to a prompt, and the request that the service had."""

    async def ask(url: str) -> Response:
        async with Endpoint(settings(url)) as endpoint:
            return await TextSampler(endpoint, Sampling()).respond(prompt, AgentContext())

    with service(answer) as server:
        response = asyncio.run(ask(server.url))
        (body,) = server.bodies
    return response, body


TREE = Tree("t", "r", 0)
ASKED = Prompt(TREE, TREE.root, "agent", (Message.of("user", "a"),), 0, 0)


@pytest.mark.parametrize(
    ("text", "finish", "end", "truncated"),
    [
        ("<look>1</look><look>2</look>", "length", "<look>1</look>", False),
        ("<answer>1</answer> </look>", "stop", "<answer>1</answer>", False),
        ("<look>1", "length", "<look>1", True),
    ],
)
def test_a_turn_ends_with_the_first_stop_string(
    text: str, finish: str, end: str, truncated: bool
) -> None:
    prompt = replace(ASKED, stop=("</answer>", "</look>"))
    response, _ = respond(replies(text, finish_reason=finish), prompt)
    assert (response.turn.text, response.turn.truncated) == (end, truncated)


def test_an_endpoint_is_shown_results_without_text_and_nothing_that_is_for_others() -> None:
    tree = Tree("t", "r", 0)
    results = [ToolResult("c1", "tall"), ToolResult("c0", "blue")]
    observed = make_turn(tree.root, TOOLS, [], results=results)
    hidden = Part("hidden", audience=frozenset({"Bob"}))
    other = make_turn(observed.id, Speaker("agent", "Bob"), [Part("open"), hidden])
    tree.add(observed)
    tree.add(other)
    shown = (Message("tool", turn=observed.id), Message("user", turn=other.id))
    _, body = respond(replies("hi"), Prompt(tree, other.id, "agent", shown, 0, 0))
    assert [one["content"] for one in body["messages"]] == ["blue\ntall", "open"]
    assert "stop" not in body


def test_tokens_of_a_hidden_thought_are_those_that_the_server_counts() -> None:
    thought = {"completion_tokens_details": {"reasoning_tokens": 15}}
    usage = {"prompt_tokens": 9, "completion_tokens": 20, **thought}
    choice = {"message": {"content": "hi"}, "finish_reason": "stop", "index": 0}
    response, _ = respond(says(200, {"choices": [choice], "usage": usage}), ASKED)
    assert (response.tokens, response.thought_tokens) == (20, 15)


class Native(Looking):
    """Calls are the model's own."""

    syntax = NativeCalls()


def makes(*calls: tuple[str, str], **more: Any) -> Answer:
    made = [
        {"id": f"x{n}", "type": "function", "function": {"name": name, "arguments": given}}
        for n, (name, given) in enumerate(calls)
    ]
    message = {"content": None, "tool_calls": made}
    return replies("", message=message, **{"finish_reason": "tool_calls", **more})


def test_calls_that_an_endpoint_makes_are_run_and_sent_back_with_their_results() -> None:
    path, asked = played(
        makes(("look", '{"what": "3"}'), ("look", '{"what": "1"}')),
        makes(("look", "{oops")),
        replies("a door"),
        game=Native(),
    )
    called, told, broken, why, answer = path
    assert [call.id for call in called.calls] == ["c0", "c1"] and answer.text == "a door"
    assert [result.text for result in told.results] == ["3 is there", "1 is there"]
    assert "are not JSON" in broken.calls[0].error and "are not JSON" in why.results[0].text
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["look", "push"]
    assert all("stop" not in body or body["stop"] == ["END"] for body in asked)
    said, *results = asked[1]["messages"][1:]
    ids = [call["id"] for call in said["tool_calls"]]
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in results] == [
        ("tool", ids[0], "3 is there"),
        ("tool", ids[1], "1 is there"),
    ]
    again = asked[2]["messages"][4]["tool_calls"][0]
    assert again["id"] not in ids and len(again["id"]) == 9
    assert json.loads(again["function"]["arguments"]) == {"text": "{oops"}


def test_the_last_call_of_a_reply_that_was_cut_off_is_not_run() -> None:
    one = ("look", '{"what": "1"}')
    path, _ = played(makes(one, one, finish_reason="length"), replies("a door"), game=Native())
    assert ["cut off" in call.error for call in path[0].calls] == [False, True]
    assert path[0].truncated
    given = [("look", {"what": "1"}), ("unknown", "")]  # arguments may be an object or empty
    made = [{"function": {"name": name, "arguments": one}} for name, one in given]
    message = {"content": "I look.", "tool_calls": made}
    path, _ = played(replies("", message=message), replies("a door"), game=Native())
    assert [call.arguments for call in path[0].calls] == ['{"what": "1"}', "{}"]
    assert path[0].text == "I look."
