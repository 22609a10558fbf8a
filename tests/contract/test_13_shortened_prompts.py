"""Contract 13: where a prompt was shortened to fit the context, training has the prompt that the engine read.

An agent of any environment calls tools until its context is full; the oldest results are left out, more and more of
them, and at last the path ends. On one path and in a tree, each sampled token is a target once, under exactly the ids
that the engine was given.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.protocol import Completion, Sampling
from coterie.environments.protocol import Shared, State
from coterie.environments.with_tools import LEFT_OUT, with_tools
from coterie.models.chat import ChatRenderer
from coterie.record.rows import rows, view
from coterie.record.store import Store
from coterie.record.tree import CONTEXT, ItemKey, Outcome, Task, Tree
from coterie.record.turn import Message, Tool
from coterie.rollout.branches import Branches
from coterie.rollout.samplers import Prompt, TokenSampler, utterances
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Rollout, TreeGrower
from coterie.tools.calls import Function, NativeCalls, Tag
from coterie.tools.registry import ToolsSettings, open_toolbox, tags_of_sources
from tests.helpers.native_templates import NATIVE, SHAPES, make_native_tokenizer
from tests.helpers.play_native_calls import (
    OFFERED,
    THOUGHTS,
    WRITE,
    Prepared,
    Said,
    prepared_completion,
)
from tests.helpers.script_games import Base

WAYS = [
    *((name, name) for name in NATIVE),
    *(
        (name, "tags") for name in SHAPES if name != "mistral"
    ),  # which has no system prompt to teach tags
    ("qwen2", "inline"),
]
"""(template, way to write calls)."""
ROOM = 1800
"""Tokens of the context; a result has about 300."""


def room(name: str) -> int:
    """Llama's template writes tools with many spaces."""
    return ROOM + 800 * (name == "llama31")


Heard = dict[tuple[int, ...], list[tuple[int, ...]]]
"""By what was said: the prompts that it was said after."""


class Things:
    """A source of tools whose results are long."""

    tools: tuple[Tool, ...] = OFFERED
    tags: Mapping[str, Tag] = {"look": Tag("what", "|"), "wait": Tag("what")}
    identity = "1"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        async def look(given: Mapping[str, Any]) -> str:
            return f"{given['what']} is here. " * 12

        yield {"look": look, "wait": look}


class Question(Base):
    """One question, which an agent answers."""

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        return (Message.of("user", "Look."),)


class Calling(Prepared):
    """Calls for something new with each seed."""

    way: str

    async def sample(
        self, prompt: Sequence[int], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        thought = THOUGHTS.get(self.policy, "")
        found = []
        for seed in seeds:
            words = WRITE[self.way]([("look", f"thing {seed}")])
            found.append(prepared_completion(self.renderer, Said(thought + words), sampling))
        self.heard += [(tuple(prompt), one) for one in found]
        return found


@cache
def grown(name: str, way: str) -> tuple[Tree, Heard]:
    """A tree of two ways at the first steps, each gone to its end, and what the engine was given and gave."""
    renderer, source = ChatRenderer(make_native_tokenizer(name)), Things()
    engine = Calling(renderer, [], policy=name)
    engine.way = "tags" if way == "inline" else way
    syntax: Any = NativeCalls()
    if way in ("tags", "inline"):
        syntax = replace(tags_of_sources([source]), inline=way == "inline")
    settings = ToolsSettings(rounds=40)
    question: Any = Question()  # has no act
    made = with_tools(question, [source], settings, syntax)
    task, tree = Task("t", {}), Tree("t", "rollout", 0)

    async def grow() -> None:
        sampler = TokenSampler(engine, renderer.render, Sampling(), room(name), renderer.calls)
        cast = dict.fromkeys(made.actors, sampler)
        async with open_toolbox([source], settings) as box, Sessions(1, 5.0) as sessions:
            branches = Branches(
                *(made, cast, task, tree),
                seed=0, shared=Shared(box), sessions=sessions, seconds=5.0,
            )  # fmt: skip

            def seed(one: Rollout, at: Any, place: int) -> int:
                depth = len(at.state.turns)
                return 100 * depth + (one.number >> (depth // 2)) % 2 * (depth < 4)

            grower = TreeGrower(branches, lambda *_: cast, seed)
            for done in await grower.play(tree.root, [Rollout(0, n, tree.root) for n in range(4)]):
                assert done.leaf is not None, done.failure
                end = (await branches.position(done.leaf)).state.end
                assert end is not None
                tree.end(Outcome(done.leaf, done.number, end, None, 0.0))

    asyncio.run(grow())
    heard: Heard = {}
    for prompt, said in engine.heard:
        heard.setdefault(said.ids, []).append(prompt)
    return tree, heard


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(way))
def shortened(request: pytest.FixtureRequest) -> tuple[Tree, Heard]:
    return grown(*request.param)


def test_paths_end_when_nothing_more_can_be_left_out(shortened: tuple[Tree, Heard]) -> None:
    tree, _ = shortened
    assert len(tree.outcomes) == 4
    assert all(one.ending == CONTEXT for one in tree.outcomes.values())
    shown = [
        sum(part.text == LEFT_OUT for m in tree.messages(request) for part in m.parts)
        for request in tree.requests.values()
    ]
    assert 0 in shown and len(set(shown)) > 2, "more and more results were left out"


def test_a_result_that_is_left_out_stays_a_result(shortened: tuple[Tree, Heard]) -> None:
    """Where the template has results: a user's message would end thoughts, or be refused; and each call has one."""
    tree, _ = shortened
    for request in tree.requests.values():
        for message in tree.messages(request):
            if message.role == "tool":
                assert message.turn is not None and tree.turns[message.turn].results
        shown = tree.messages(request)
        roles = [message.role for message in shown]
        assert roles.count("user") == 1 or "tool" not in roles
        prompt = Prompt(tree, request.parent, request.agent, shown, 0, 0, request.tools)
        said = utterances(prompt)  # as an endpoint is sent them
        calls = [call.id for one in said for call in one.calls]
        assert calls == [one.call_id for one in said if one.role == "tool"]


def test_each_token_is_a_target_once_under_the_prompt_that_the_engine_read(
    shortened: tuple[Tree, Heard],
) -> None:
    tree, heard = shortened
    for leaf in tree.outcomes:
        own = [turn for turn in tree.path(leaf) if turn.speaker.kind == "agent"]
        (agent,) = {turn.speaker.name for turn in own}
        trained = []
        for row in rows(view(tree, leaf, agent)):
            for target in row.targets:
                said = row.ids[target.start : target.stop]
                assert tuple(row.ids[: target.start]) in heard[tuple(said)]
                trained.append(said)
        assert trained == [turn.ids for turn in own]


def test_shortened_prompts_are_the_same_when_they_are_read_and_rendered_again(
    shortened: tuple[Tree, Heard], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tree, heard = shortened
    renderer = ChatRenderer(make_native_tokenizer(request.node.callspec.params["shortened"][0]))
    with Store.open(tmp_path / "store.sqlite") as store:
        store.finish(ItemKey(0, "rollout", tree.task, "0000"), tree=tree)
        again = store.tree(0, "rollout", tree.task)
    prompts = {prompt for several in heard.values() for prompt in several}
    for one in again.requests.values():
        shown = again.messages(one)
        assert renderer.render(shown, again, one.agent, tools=one.tools) in prompts
