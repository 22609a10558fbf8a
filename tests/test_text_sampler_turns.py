"""An agent that an endpoint plays: where its turn ends."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coterie.engines.endpoint import Endpoint, Utterance
from coterie.engines.protocol import Sampling
from coterie.record.tree import Tree
from coterie.rollout.samplers import AgentContext, Prompt, Response, TextSampler

STOP = ("</answer>", "</look>")


class Says:
    """An endpoint that says one thing."""

    settings = SimpleNamespace(model="m")

    def __init__(self, text: str, finish: str) -> None:
        self.reply = SimpleNamespace(
            thought="", text=text, finish=finish, completion_tokens=3, thought_tokens=0, stop=""
        )

    async def chat(self, messages: Sequence[Utterance], **_: Any) -> Any:
        return self.reply


def respond(endpoint: Says) -> Response:
    sampler, tree = TextSampler(cast(Endpoint, endpoint), Sampling()), Tree("t", "rollout", 0)
    prompt = Prompt(tree, tree.root, "Ann", (), 0, 0, (), STOP)
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
    found = respond(Says(text, finish))
    assert (found.turn.text, found.turn.truncated) == (said, truncated)
