"""Branches whose session is gone, or that come from the store: replayed, and refused where they differ."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from coterie.environments.protocol import Transition
from coterie.record.tree import Ending, Outcome
from coterie.record.turn import Turn
from coterie.rollout.branches import ReplayMismatch
from tests.games import Counting, Script
from tests.test_branches import branches, growing, say, step


def test_a_replay_asks_nobody_and_adds_nothing() -> None:
    async def test() -> None:
        script = Script(lambda _: "1")
        async with growing(Counting(forks=False), script) as (grown, _):
            start = await grown.start()
            one = await step(grown, start)
            await step(grown, one)
            asked, turns = len(script.shown), len(grown.tree.turns)
            again = await say(grown, one, "2")
            assert len(script.shown) == asked + 1 and len(grown.tree.turns) == turns + 2
            assert grown.replays == 1
            assert grown.tree.turns[again.node].text == "now 3"

    asyncio.run(test())


def test_a_tree_from_the_store_goes_on_where_it_was() -> None:
    async def test() -> None:
        game = Counting(forks=False)
        async with growing(game, Script(lambda _: "1")) as (grown, kept):
            at = await step(grown, await step(grown, await grown.start()))
            again = branches(game, {"agent": Script(lambda _: "3")}, grown.tree, kept)
            found = await again.position(at.node)
            assert found.state.turns == at.state.turns and found.state.data == 2
            after = await step(again, found)
            assert again.tree.turns[after.node].text == "now 5"

    asyncio.run(test())


def test_a_tree_from_the_store_is_refused_where_the_environment_has_changed() -> None:
    class Otherwise(Counting):
        async def act(self, *args: object, **more: object):  # type: ignore[no-untyped-def, override]
            found = await super().act(*args, **more)  # type: ignore[arg-type]
            return type(found)(found.data, (), found.answer, found.end)

    async def test() -> None:
        async with growing(Counting(), Script(lambda _: "1")) as (grown, kept):
            at = await step(grown, await step(grown, await grown.start()))
            turns = dict(grown.tree.turns)
            other = branches(Otherwise(), {"agent": Script(lambda _: "1")}, grown.tree, kept)
            with pytest.raises(ReplayMismatch, match="task t"):
                await other.position(at.node)
            assert grown.tree.turns == turns

    asyncio.run(test())


def test_a_tree_from_the_store_is_refused_where_its_ending_has_changed() -> None:
    async def test() -> None:
        async with growing(Counting(), Script(lambda _: "6")) as (grown, kept):
            at = await step(grown, await grown.start())
            grown.tree.end(Outcome(at.node, 0, Ending("gave up"), None, 0.0))
            other = branches(Counting(), {"agent": Script(lambda _: "1")}, grown.tree, kept)
            with pytest.raises(ReplayMismatch):
                await other.position(at.node)

    asyncio.run(test())


@pytest.mark.parametrize(
    "otherwise",
    [
        {"rewards": {"agent": 99.0}},
        {"rewards": {}},
        {"end": Ending("odd")},
        {"answer": "odd"},
        {"seen": ()},
    ],
    ids=lambda one: f"{one}",
)
def test_a_replay_that_differs_is_noticed_and_changes_nothing(otherwise: dict[str, Any]) -> None:
    class Differs(Counting):
        async def act(self, *args: Any, recorded: tuple[Turn, ...] = (), **more: Any) -> Transition:
            found = await super().act(*args, recorded=recorded, **more)
            return replace(found, **otherwise) if recorded else found

    async def test() -> None:
        async with growing(Differs(forks=False), Script(lambda _: "1")) as (grown, _):
            one = await step(grown, await grown.start())
            await step(grown, one)
            rewards = dict(grown.rewards)
            with pytest.raises(ReplayMismatch):
                await say(grown, one, "2")
            assert grown.rewards == rewards

    asyncio.run(test())
