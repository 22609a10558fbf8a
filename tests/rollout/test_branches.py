"""Branches of a tree: simultaneous turns, tools, sessions that fork or are replayed, and what fails alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coterie.environments.protocol import Environment, Shared, State, Transition
from coterie.record.tree import TURNS, Task, Tree
from coterie.record.turn import Turn
from coterie.rollout.branches import Branches
from coterie.rollout.positions import CALLS, Position
from coterie.rollout.sessions import SessionError, Sessions
from tests.helpers.script_games import Asking, Counting, Rounds, Script

TASK = Task("t", {"target": 6})


@asynccontextmanager
async def growing(
    game: Environment, *samplers: Script, seconds: float = 5.0, sessions: int = 4
) -> AsyncIterator[tuple[Branches, Sessions]]:
    cast = dict(zip(game.actors, samplers, strict=True))
    async with Sessions(sessions, seconds) as kept:
        yield branches(game, cast, Tree("t", "rollout", 0), kept, seconds), kept


def branches(
    game: Environment, cast: dict[str, Script], tree: Tree, kept: Sessions, seconds: float = 5.0
) -> Branches:
    return Branches(game, cast, TASK, tree, seed=0, shared=Shared(), sessions=kept, seconds=seconds)


async def step(
    grown: Branches, at: Position, draw: int = 0, *, others_follow: bool = False
) -> Position:
    responses = await grown.respond(at, dict.fromkeys(grown.next_actors(at), 0), draw)
    return await grown.advance(at, responses, others_follow=others_follow)


async def say(grown: Branches, at: Position, text: str, *, others_follow: bool = True) -> Position:
    grown.samplers["agent"].say = lambda _: text  # type: ignore[attr-defined]
    return await step(grown, at, others_follow=others_follow)


def test_players_who_act_at_the_same_time_do_not_see_each_other() -> None:
    async def test() -> None:
        ann, ben = Script(lambda prompt: f"Ann {prompt.draw}"), Script(lambda _: "Ben")
        async with growing(Rounds(), ann, ben) as (grown, _):
            at = await grown.start()
            while at.state.end is None:
                at = await step(grown, at)
            assert [len(shown) for shown in ann.shown] == [1, 4]
            assert ann.shown[1][1:] == ben.shown[1][1:] == ("Ann 0", "Ben", "round 1 is over")
            names = [turn.speaker.name for turn in grown.tree.path(at.node)]
            assert names == ["Ann", "Ben", "game"] * 2
            assert at.state.end.reason == "over" and not at.state.end.truncated
            ben = grown.tree.path(at.node)[1].id
            assert [grown.rewards.get((ben, name)) for name in ("Ann", "Ben")] == [0.5, 0.5]
            assert (await grown.grade(at)).score == 1.0

    asyncio.run(test())


def test_parallel_calls_are_answered_in_call_order_and_broken_ones_too() -> None:
    async def test() -> None:
        words = iter(("<look>1|2|3</look>", "<look>4</look", "done"))
        async with growing(Asking(), Script(lambda _: next(words))) as (grown, _):
            at = await grown.start()
            while at.state.end is None:
                at = await step(grown, at)
            said, results, cut, error, _ = grown.tree.path(at.node)
            assert [call.id for call in said.calls] == ["c0", "c1", "c2"]
            assert [r.text for r in results.results] == [f"{n} is there" for n in (1, 2, 3)]
            assert cut.calls[0].error and error.results[0].error
            assert at.state.left == {"turns": 1, "calls": 12 - 4}
            assert at.state.answer == "done"

    asyncio.run(test())


def test_a_limit_ends_a_path_truncated() -> None:
    async def test() -> None:
        async with growing(Counting(), Script(lambda _: "0")) as (grown, _):
            at = await grown.start()
            for _ in range(6):
                assert at.state.end is None
                at = await step(grown, at)
            assert at.state.end == TURNS and at.state.left == {"turns": 0, "turns:agent": 0}

    asyncio.run(test())


@pytest.mark.parametrize("forks", [True, False])
def test_what_was_done_or_many_ask_for_at_the_same_time_is_done_once(forks: bool) -> None:
    async def test() -> None:
        game = Counting(forks=forks)
        async with growing(game, Script(lambda _: "1")) as (grown, kept):
            starts = await asyncio.gather(*(grown.start() for _ in range(5)))
            ends = await asyncio.gather(*(step(grown, one, others_follow=True) for one in starts))
            ends.append(await step(grown, starts[0], others_follow=True))
            assert len(set(map(id, starts))) == len(set(map(id, ends))) == 1
            assert game.acts == 1 and kept.opened == 1

    asyncio.run(test())


def test_a_beginning_that_hangs_fails_in_time() -> None:
    class Slow(Counting):
        async def begin(self, *_: Any) -> Any:
            await asyncio.sleep(60)

    async def test() -> None:
        async with growing(Slow(), Script(lambda _: "1"), seconds=0.05) as (grown, _):
            with pytest.raises(SessionError, match="the beginning did not end within"):
                await grown.start()

    asyncio.run(test())


def test_no_more_calls_are_run_than_are_left_to_all_who_act() -> None:
    class Both(Asking):
        actors = {"Ann": "agent", "Ben": "agent"}  # noqa: RUF012
        limits = {"calls": 3}  # noqa: RUF012

        async def act(
            self, state: State, taken: tuple[Turn, ...], *_: Any, **__: Any
        ) -> Transition:
            return Transition()

    async def test() -> None:
        script = Script(lambda _: "<look>1|2</look>")
        async with growing(Both(), script, script) as (grown, _):
            at = await step(grown, await grown.start())
            errors = [[bool(call.error) for call in turn.calls] for turn in at.state.turns]
            assert errors == [[False, False], [False, True]]
            assert at.state.left == {"calls": 0} and at.state.end == CALLS

    asyncio.run(test())
