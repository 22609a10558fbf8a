"""Live sessions: bounded, kept where they stand, copied where they can be, and always closed."""

import asyncio
import copy
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from coterie.rollout.sessions import SessionError, Sessions

SECONDS = 5.0


@dataclass
class Table:
    """What all games of a test have in common."""

    live: int = 0
    most: int = 0
    owners: list[tuple[object, object]] = field(default_factory=list)
    forks: bool = True

    @asynccontextmanager
    async def game(self, moves: list[str] | None = None) -> AsyncIterator["Game"]:
        opener = asyncio.current_task()
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            yield Game(self, moves or [])
        finally:
            self.live -= 1
            self.owners.append((opener, asyncio.current_task()))


@dataclass
class Game:
    table: Table
    moves: list[str]

    def fork(self) -> AbstractAsyncContextManager["Game"] | None:
        return self.table.game(copy.copy(self.moves)) if self.table.forks else None


async def moves(sessions: Sessions, node: str) -> list[str]:
    session = sessions.take(node)
    assert session is not None
    game = await session.live(SECONDS)
    await sessions.keep(node, session)
    assert isinstance(game, Game)
    return game.moves


def test_each_session_is_closed_by_the_task_that_opened_it_also_after_a_fault() -> None:
    table = Table()

    async def fails() -> None:
        async with Sessions(3, SECONDS) as sessions:
            for node in ("a", "b"):
                await sessions.keep(node, await sessions.open(table.game()))
            await sessions.open(table.game())  # in use
            table.owners.append((asyncio.current_task(), None))
            raise KeyError("a fault")

    with pytest.raises(KeyError, match="a fault"):
        asyncio.run(fails())
    (caller, _), *owners = table.owners
    assert table.live == 0
    assert len(owners) == 3 and all(one is other is not caller for one, other in owners)


def test_no_more_than_the_bound_are_live_and_the_longest_unused_makes_room() -> None:
    async def test() -> None:
        table = Table()
        async with Sessions(2, SECONDS) as sessions:
            for node in ("a", "b", "c", "d"):
                await sessions.keep(node, await sessions.open(table.game([node])))
            assert (table.most, sessions.closed_early) == (2, 2)
            assert sessions.take("a") is sessions.take("b") is None
            assert await moves(sessions, "d") == ["d"]

    asyncio.run(test())


@pytest.mark.parametrize(("forks", "room"), [(True, 2), (True, 1), (False, 2)])
def test_a_copy_goes_on_and_what_it_was_copied_from_stays_if_it_can(forks: bool, room: int) -> None:
    async def test() -> None:
        table = Table(forks=forks)
        async with Sessions(room, SECONDS) as sessions:
            assert await sessions.fork("a") is None
            await sessions.keep("a", await sessions.open(table.game(["x"])))
            session = await sessions.fork("a")
            assert session is not None
            game = await session.live(SECONDS)
            assert isinstance(game, Game)
            game.moves.append("y")
            await sessions.keep("b", session)
            assert await moves(sessions, "b") == ["x", "y"]
            if forks and room == 2:
                assert await moves(sessions, "a") == ["x"] and sessions.forked == 1
            else:
                assert sessions.take("a") is None and sessions.forked == 0

    asyncio.run(test())


@asynccontextmanager
async def broken() -> AsyncIterator[Game]:
    raise OSError("no such game")
    yield


@asynccontextmanager
async def slow(ended: list[str]) -> AsyncIterator[Game]:
    try:
        await asyncio.sleep(60)
        yield Game(Table(), [])
    finally:
        ended.append("slow")


def test_what_does_not_open_gives_its_place_back() -> None:
    async def test() -> None:
        ended: list[str] = []
        async with Sessions(1, 0.05) as sessions:
            with pytest.raises(SessionError, match="OSError: no such game"):
                await sessions.open(broken())
            with pytest.raises(SessionError, match="did not open within"):
                await sessions.open(slow(ended))
            assert ended == ["slow"]
            await sessions.open(Table().game())

    asyncio.run(test())


@asynccontextmanager
async def deaf() -> AsyncIterator[Game]:
    """One that does not even end when it is cancelled."""
    try:
        yield Game(Table(), [])
    finally:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)


class Dead:
    """A session whose process has died."""

    def fork(self) -> None:
        raise OSError("the process is gone")


@asynccontextmanager
async def dead() -> AsyncIterator[Dead]:
    yield Dead()


async def opens(sessions: Sessions) -> bool:
    opening = asyncio.ensure_future(sessions.open(Table().game()))
    await asyncio.wait([opening], timeout=1)
    opening.cancel()
    return opening.done() and not opening.cancelled()


async def timed(work: Coroutine[Any, Any, None]) -> float:
    began = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - began


def test_a_session_that_never_ends_or_can_not_be_copied_gives_its_place_back() -> None:
    async def deaf_ends() -> None:
        async with Sessions(1, 0.02) as sessions:
            await sessions.keep("a", await sessions.open(deaf()))
            await sessions.open(Table().game())

    async def dead_ends() -> None:
        async with Sessions(2, SECONDS) as sessions:
            for _ in range(3):
                await sessions.keep("a", await sessions.open(dead()))
                with pytest.raises(OSError, match="the process is gone"):
                    await sessions.fork("a")
            assert await opens(sessions), "a place is lost"

    assert asyncio.run(timed(deaf_ends())) < 1
    asyncio.run(dead_ends())


@pytest.mark.parametrize("when", ["dropping", "keeping a second one", "opening", "forking"])
def test_a_branch_that_is_cancelled_gives_its_place_back(when: str) -> None:
    @asynccontextmanager
    async def leisurely(table: Table) -> AsyncIterator[Game]:
        if when in ("opening", "forking") and table.live:
            await asyncio.sleep(60)
        async with table.game() as game:
            game.fork = lambda: leisurely(table)  # type: ignore[method-assign]
            yield game
            await asyncio.sleep(0.05)

    async def test() -> None:
        table = Table()
        async with Sessions(2, SECONDS) as sessions:
            first = await sessions.open(leisurely(table))
            if when == "keeping a second one":
                await sessions.keep("a", await sessions.open(leisurely(table)))
            if when == "forking":
                await sessions.keep("a", first)
            work = {
                "dropping": lambda: sessions.drop(first),
                "keeping a second one": lambda: sessions.keep("a", first),
                "opening": lambda: sessions.open(leisurely(table)),
                "forking": lambda: sessions.fork("a"),
            }[when]
            task = asyncio.ensure_future(work())
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            table.live = 0  # what opens now does not wait
            if when == "opening":
                await sessions.drop(first)
            for _ in range(2):
                assert await opens(sessions), "a place is lost"

    assert asyncio.run(timed(test())) < SECONDS


def test_nothing_opens_when_the_run_has_ended() -> None:
    table = Table()

    async def test() -> None:
        async with Sessions(1, SECONDS) as sessions:
            await sessions.open(table.game())
            waits = asyncio.ensure_future(sessions.open(table.game()))
            await asyncio.sleep(0)
        with pytest.raises(SessionError, match="the run has ended"):
            await waits
        assert (table.live, sessions.opened) == (0, 1)

    asyncio.run(test())
