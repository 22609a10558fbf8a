"""Live sessions of an environment: so many at most, each opened and closed by a task of its own.

A session that nobody uses stays where its branch stands, until its place is needed: then the one that was used last
the longest ago is closed, and its branch is replayed if it goes on. A session is busy only while the environment acts,
and every act has a time limit, so who waits for a place gets one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Session

Opening = AbstractAsyncContextManager[Session]
Place = Hashable
"""Where a session stands: a node of the branches of one tree."""


class SessionError(EngineError):
    """A session did not open, or an act did not end in time: its branch fails, and no other."""


@dataclass(eq=False, slots=True)
class OwnedSession:
    """A session with the task that opened it, which closes it too (some libraries insist on that)."""

    opening: Opening
    _opened: "asyncio.Future[Session]" = field(init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _owner: "asyncio.Task[None]" = field(init=False)

    def __post_init__(self) -> None:
        self._opened = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own())

    async def live(self, seconds: float) -> Session:
        """The session, when it is open. Raises :class:`SessionError`."""
        done, _ = await asyncio.wait([self._opened], timeout=seconds)
        if not done:
            raise SessionError(f"a session did not open within {seconds:g} seconds")
        return self._opened.result()

    async def close(self, seconds: float) -> None:
        """End it; one that does not end in time, or is not open yet, is cancelled, and left if that does not help."""
        self._over.set()
        if self._opened.done():
            await asyncio.wait([self._owner], timeout=seconds)
        self._owner.cancel()
        await asyncio.wait([self._owner], timeout=seconds)

    async def _own(self) -> None:
        try:
            async with self.opening as session:
                self._opened.set_result(session)
                await self._over.wait()
        except Exception as error:  # of a library that we know nothing of
            if not self._opened.done():
                failed = SessionError(f"a session did not open: {type(error).__name__}: {error}")
                failed.__cause__ = error
                self._opened.set_exception(failed)
                self._opened.exception()  # whoever waits for it is told; nobody may


class Sessions:
    """The sessions of one environment, of all its branches."""

    def __init__(self, max_sessions: int, seconds: float) -> None:
        self.max_sessions = max_sessions
        self.seconds = seconds
        """Time limit of opening one, and of closing one."""
        self.opened = self.forked = self.closed_early = 0
        """How many were opened, were forked, and had to make room."""
        self._all: set[OwnedSession] = set()
        self._ended = False
        self._idle: OrderedDict[Place, OwnedSession] = OrderedDict()
        """By the node that they stand at, the longest unused first."""
        self._changed = asyncio.Event()

    def take(self, node: Place) -> OwnedSession | None:
        return self._idle.pop(node, None)

    async def open(self, opening: Opening) -> OwnedSession:
        """A new session, when there is room. Raises :class:`SessionError`."""
        session = await self._admit(opening)
        self.opened += 1
        return session

    async def fork(self, node: Place) -> OwnedSession | None:
        """A copy of the idle session at ``node``, which stays there; ``None`` if there is none.

        Where it can't be copied, or there is no room beside it, it is the session itself. Whatever its copying
        raises is raised, and closes it.
        """
        session = self.take(node)
        if session is None or len(self._all) >= self.max_sessions:
            return session
        try:
            opening = (await session.live(self.seconds)).fork()
        except BaseException:
            await self.drop(session)
            raise
        if opening is None:
            return session
        try:
            forked = await self._admit(opening)
        finally:
            await self.keep(node, session)
        self.forked += 1
        return forked

    async def keep(self, node: Place, session: OwnedSession) -> None:
        """Leave a session that stands at ``node`` there; there may be one already."""
        if node in self._idle:
            await self.drop(session)
            return
        self._idle[node] = session
        self._changed.set()

    async def drop(self, session: OwnedSession) -> None:
        """Close a session that is not idle. It gives its place back even if who waits here is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._drop(session)))

    async def close(self) -> None:
        """Close all of them, those in use too; none opens any more."""
        self._ended = True
        self._changed.set()
        self._idle.clear()
        await asyncio.gather(*(self.drop(session) for session in list(self._all)))

    async def _drop(self, session: OwnedSession) -> None:
        await session.close(self.seconds)
        self._all.discard(session)
        self._changed.set()

    async def _admit(self, opening: Opening) -> OwnedSession:
        while len(self._all) >= self.max_sessions and not self._ended:
            if self._idle:
                _, oldest = self._idle.popitem(last=False)
                self.closed_early += 1
                await self.drop(oldest)
                continue
            self._changed.clear()
            await self._changed.wait()
        if self._ended:
            raise SessionError("the run has ended: no session opens any more")
        session = OwnedSession(opening)
        self._all.add(session)
        try:
            await session.live(self.seconds)
        except BaseException:
            await self.drop(session)
            raise
        return session


@asynccontextmanager
async def sessions_of(max_sessions: int, seconds: float) -> AsyncIterator[Sessions]:
    """Sessions that are all closed at the end of the block, whatever ends it."""
    sessions = Sessions(max_sessions, seconds)
    try:
        yield sessions
    finally:
        await sessions.close()
