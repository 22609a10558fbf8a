"""An agent that an endpoint plays: what it is shown of turns, and where its own ends."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coterie.engines.endpoint import Endpoint, Utterance
from coterie.engines.protocol import Sampling
from coterie.record.tree import Tree
from coterie.record.turn import Message, Part, Speaker, ToolResult, make_turn
from coterie.rollout.samplers import AgentContext, Prompt, Response, TextSampler

STOP = ("</answer>", "</look>")


class Says:
    """An endpoint that says one thing, and keeps what it was shown."""

    settings = SimpleNamespace(model="m")

    def __init__(self, text: str, finish: str) -> None:
        self.reply = SimpleNamespace(
            thought="", text=text, finish=finish, completion_tokens=3, thought_tokens=0, stop=""
        )
        self.shown: list[str] = []

    async def chat(self, messages: Sequence[Utterance], **_: Any) -> Any:
        self.shown = [one.text for one in messages]
        return self.reply


def respond(endpoint: Says, tree: Tree, *shown: Message, stop: tuple[str, ...] = STOP) -> Response:
    sampler = TextSampler(cast(Endpoint, endpoint), Sampling())
    prompt = Prompt(tree, tree.root, "Ann", shown, 0, 0, (), stop)
    return asyncio.run(sampler.respond(prompt, AgentContext()))


@pytest.mark.parametrize(
    ("text", "finish", "said", "truncated"),
    [
        ("<look>1</look><look>2</look>", "length", "<look>1</look>", False),
        ("<answer>1</answer> </look>", "end", "<answer>1</answer>", False),
        ("<look>1", "length", "<look>1", True),
        ("<look>1", "end", "<look>1", False),
    ],
)
def test_a_turn_ends_with_the_first_stop_string(
    text: str, finish: str, said: str, truncated: bool
) -> None:
    found = respond(Says(text, finish), Tree("t", "rollout", 0))
    assert (found.turn.text, found.turn.truncated) == (said, truncated)


def test_it_is_shown_what_it_may_see_of_a_turn_and_results_of_calls() -> None:
    tree, world = Tree("t", "rollout", 0), Speaker("environment", "world")
    parts = (Part("for all "), Part("for Ann", frozenset({"Ann"})), Part("Ben's", frozenset("Ben")))
    told = make_turn(tree.root, world, parts)
    found = make_turn(told.id, world, (), results=(ToolResult("c0", "1"), ToolResult("c1", "2")))
    for turn in (told, found):
        tree.add(turn)
    endpoint = Says("", "end")
    respond(endpoint, tree, *(Message("user", turn=turn.id) for turn in (told, found)))
    assert endpoint.shown == ["for all for Ann", "1\n2"]
