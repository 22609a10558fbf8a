"""Branches without a session, or from the store: replayed, and refused where they differ."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from coterie.environments.protocol import Transition
from coterie.record.tree import Ending, Outcome
from coterie.rollout.branches import ReplayMismatch
from tests.helpers.script_games import Counting, Script
from tests.rollout.test_branches import branches, growing, say, step


def test_a_replay_asks_nobody_adds_nothing_and_continues_a_tree_from_the_store() -> None:
    async def test() -> None:
        game, script = Counting(forks=False), Script(lambda _: "1")
        async with growing(game, script) as (grown, sessions):
            one = await step(grown, await grown.start())
            at = await step(grown, one)
            prompts, turns = len(script.shown), len(grown.tree.turns)
            again = await say(grown, one, "2")
            assert len(script.shown) == prompts + 1 and len(grown.tree.turns) == turns + 2
            assert grown.replays == 1
            assert grown.tree.turns[again.node].text == "now 3"
            other = branches(game, {"agent": Script(lambda _: "3")}, grown.tree, sessions)
            position = await other.position(at.node)
            assert position.state.turns == at.state.turns and position.state.data == 2
            after = await step(other, position)
            assert other.tree.turns[after.node].text == "now 5"

    asyncio.run(test())


@pytest.mark.parametrize(
    "change",
    [
        {"rewards": {"agent": 99.0}},
        {"rewards": {}},
        {"end": Ending("odd")},
        {"answer": "odd"},
        {"seen": ()},
    ],
    ids=lambda one: f"{one}",
)
def test_a_replay_that_differs_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    class Changing(Counting):
        change: Mapping[str, Any] = {}

        async def act(self, *args: Any, **more: Any) -> Transition:
            return replace(await super().act(*args, **more), **self.change)

    async def test() -> None:
        game, script = Changing(forks=False), Script(lambda _: "1")
        async with growing(game, script) as (grown, sessions):
            one = await step(grown, await grown.start())
            at = await step(grown, one)
            rewards = dict(grown.rewards)
            game.change = change
            with pytest.raises(ReplayMismatch):
                await say(grown, one, "2")
            game.change, turns = {"seen": ()}, dict(grown.tree.turns)
            with pytest.raises(ReplayMismatch, match="task t"):
                await branches(game, {"agent": script}, grown.tree, sessions).position(at.node)
            assert (grown.rewards, grown.tree.turns) == (rewards, turns)

    asyncio.run(test())


def test_a_tree_from_the_store_is_refused_where_its_ending_has_changed() -> None:
    async def test() -> None:
        async with growing(Counting(), Script(lambda _: "6")) as (grown, sessions):
            at = await step(grown, await grown.start())
            grown.tree.end(Outcome(at.node, 0, Ending("gave up"), None, 0.0))
            other = branches(Counting(), {"agent": Script(lambda _: "1")}, grown.tree, sessions)
            with pytest.raises(ReplayMismatch):
                await other.position(at.node)

    asyncio.run(test())
