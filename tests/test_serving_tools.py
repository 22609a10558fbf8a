"""Tools over the server's chat route, with OpenAI's own client: offered, called, answered, streamed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.protocol import Sampling
from coterie.engines.serving.policies import GatedEngine, Policies
from coterie.environments.protocol import Shared
from coterie.rollout.branches import Branches
from coterie.rollout.samplers import TextSampler
from coterie.rollout.sessions import sessions_of
from coterie.tools.native import NativeCalls
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from tests.native_games import BROKEN, OFFERED, WRITE, Said, Things, prepared_completion, script
from tests.native_templates import NATIVE, model
from tests.serving import served

TOOLS: Any = [
    {"type": "function", "function": {"name": one.name, "description": one.description,
                                      "parameters": dict(one.parameters)}}
    for one in OFFERED
]  # fmt: skip
NAMES = [name for name in NATIVE if name != "opens"]
"""Without the one whose prompts open a thought; see the last test of replies."""
ASKED: list[Any] = [{"role": "user", "content": "Look."}]


class Saying(GatedEngine):
    """The server's engine, which says what was prepared: no tiny model writes calls. It keeps its prompts."""

    script: list[Said]
    heard: list[str]

    async def sample(self, prompt: Any, seeds: Any, sampling: Sampling, **more: Any) -> Any:
        renderer = self.loaded.renderer
        found = prepared_completion(renderer, self.script[len(self.heard)], sampling)
        self.heard.append(renderer.decode(prompt))
        for token in found.ids:
            if more.get("on_token"):
                more["on_token"](token)
                await asyncio.sleep(0)
        return [found]


@contextlib.asynccontextmanager
async def serving(name: str, *said: Said) -> AsyncIterator[tuple[str, Saying]]:
    """A server whose model says these messages, one after the other."""
    policies = Policies(model(name), name="tiny", version="0", root="tiny")
    engine = policies.get("tiny").engine
    engine.__class__ = Saying
    assert isinstance(engine, Saying)
    engine.script, engine.heard = list(said), []
    async with served(policies) as url:
        yield url, engine


def talk(name: str, said: Said, **more: Any) -> tuple[Any, Saying]:
    """The answer to one request."""

    async def ask() -> tuple[Any, Saying]:
        async with serving(name, said) as (url, engine):
            client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            body = {"model": "tiny", "messages": ASKED, "tools": TOOLS, **more}
            found = await client.chat.completions.create(**body)
            return ([one async for one in found] if more.get("stream") else found), engine

    return asyncio.run(ask())


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]


TWO = [("look", {"what": "1"}), ("look", {"what": "2"})]


def two(name: str) -> str:
    return WRITE[name]([("look", "1"), ("look", "2")])


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_given_in_openais_form(name: str) -> None:
    reply, engine = talk(name, Said(two(name)))
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert calls_of(choice.message) == TWO
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert "Looks at a thing." in engine.heard[0]


@pytest.mark.parametrize(
    ("said", "finish"),
    [
        (Said("It is blue."), "stop"),
        (Said(BROKEN["qwen2"]), "stop"),
        (Said(two("qwen2")[:-1], cut=True), "length"),
        (Said(f"<think>{two('qwen2')}</think>blue"), "stop"),
    ],
)
def test_what_is_no_whole_call_is_text(said: Said, finish: str) -> None:
    reply, _ = talk("qwen2", said)
    (choice,) = reply.choices
    assert (choice.finish_reason, choice.message.content) == (finish, said.text)
    assert choice.message.tool_calls is None


@pytest.mark.parametrize("before", ["", "I look.\n"])
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_leaks_nothing_of_a_call(name: str, before: str) -> None:
    if name == "llama31" and before:
        return  # there a call is the whole message
    pieces, _ = talk(name, Said(before + two(name)), stream=True)
    deltas = [piece.choices[0].delta for piece in pieces]
    assert "".join(one.content or "" for one in deltas) == before.rstrip()
    found = [call for one in deltas for call in one.tool_calls or ()]
    assert [call.index for call in found] == [0, 1]
    assert [(c.function.name, json.loads(c.function.arguments)) for c in found] == TWO
    assert pieces[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("text", ["It is < blue [TOOL", "{not a call", "a {x} ", BROKEN["qwen2"]])
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_without_a_whole_call_gives_all_text(name: str, text: str) -> None:
    pieces, _ = talk(name, Said(text), stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in pieces) == text
    assert pieces[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("name", NAMES)
def test_calls_and_results_that_a_client_sends_back_are_shown_by_the_template(name: str) -> None:
    async def ask() -> tuple[Any, Saying]:
        async with serving(name, Said(two(name)), Said("blue")) as (url, engine):
            client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            chat: Any = client.chat.completions
            first = await chat.create(model="tiny", messages=ASKED, tools=TOOLS)
            message = first.choices[0].message
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"seen {n}"}
                for n, call in enumerate(message.tool_calls)
            ]
            messages = [*ASKED, message, *results[::-1]]
            return await chat.create(model="tiny", messages=messages, tools=TOOLS), engine

    if name == "llama31":  # its template writes one call of a message
        with pytest.raises(openai.BadRequestError, match="only one call"):
            asyncio.run(ask())
        return
    reply, engine = asyncio.run(ask())
    assert reply.choices[0].message.content == "blue"
    prompt = engine.heard[1]
    assert prompt.count("look") >= 3 and prompt.index("seen 0") < prompt.index("seen 1")


def test_a_thought_that_the_prompt_opened_is_no_call_and_what_follows_is() -> None:
    reply, _ = talk("opens", Said(two("opens")))
    assert reply.choices[0].finish_reason == "stop"
    reply, _ = talk("opens", Said(f"{two('opens')}\n</think>\n\n{two('opens')}"))
    assert calls_of(reply.choices[0].message) == TWO


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": False}, "one call at a time"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "the same name"),
        ({"messages": [*ASKED, {"role": "tool", "tool_call_id": "x", "content": "y"}]}, "not an open call"),
        ({"messages": [*ASKED, {"role": "tool", "tool_call_id": "x", "content": "y"}], "tools": []}, "these tools"),
        ({"messages": [*ASKED, {"role": "tool", "content": "y"}]}, "tool_call_id"),
        ({"messages": [{"role": "user"}]}, "needs content"),
    ],
)  # fmt: skip
def test_what_can_not_be_done_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(openai.BadRequestError, match=why):
        talk("qwen2", Said("blue"), **more)


def test_a_model_without_tools_refuses_them_and_goes_without() -> None:
    with pytest.raises(openai.BadRequestError, match="shows no tools"):
        talk("smol", Said("blue"))
    reply, engine = talk("smol", Said("blue"), tool_choice="none")
    assert reply.choices[0].message.content == "blue" and "look" not in engine.heard[0]


# -- an agent that is played by an endpoint -------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "coder", "mistral"])
def test_an_endpoint_plays_an_agent_with_tools(name: str) -> None:
    said = script(name)
    said = [said[0], Said(WRITE[name]([("wait", "1")])), said[3], *said[5:]]

    async def play() -> tuple[Things, Tree, str, Saying]:
        game = Things(NativeCalls(), "blue")
        async with serving(name, *said) as (url, engine), sessions_of(1, 5.0) as sessions:
            settings = EndpointSettings(url=f"{url}/v1", model="tiny")
            async with Endpoint(settings) as endpoint:
                sampler = TextSampler(endpoint, Sampling(max_tokens=900))
                grown = Branches(
                    *(game, {"agent": sampler}, Task("t", {}), Tree("t", "r", 0)),
                    seed=0, shared=Shared(), sessions=sessions, seconds=5.0,
                )  # fmt: skip
                at = await grown.start()
                while at.state.end is None:
                    at = await grown.advance(at, await grown.respond(at, {"agent": 0}, 0))
                return game, grown.tree, at.node, engine

    game, tree, leaf, engine = asyncio.run(play())
    turns = [turn for turn in tree.path(leaf) if turn.speaker.kind == "agent"]
    assert [len(turn.calls) for turn in turns] == [2, 1, 12, 0, 1, 0]
    assert json.loads(turns[0].calls[1].arguments) == {"what": "2"}
    assert turns[-1].text == "It is tall." and not turns[0].text
    assert sorted(game.ran)[:3] == ["1", "2", "3"]
    prompt = engine.heard[-1]
    assert prompt.count(": blue") == 15 and "no answer within" in prompt
