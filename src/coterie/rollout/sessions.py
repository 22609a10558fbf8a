"""Pool of an environment's live sessions, each opened and closed by an asyncio task of its own.

When the pool is full, the least recently used idle session is closed, and its branch is replayed if it continues. Calls
have a time limit, so every waiter gets a session.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Session

SessionContext = AbstractAsyncContextManager[Session]
SessionKey = Hashable
"""Key of an idle session: the branches of a tree and a node."""


class SessionError(EngineError):
    """A session did not open, or a call timed out; only its own branch fails."""


@dataclass(eq=False, slots=True)
class ManagedSession:
    """A session whose opening and closing run in one task, as some libraries require."""

    context: SessionContext
    _opened: "asyncio.Future[Session]" = field(init=False)
    _over: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _owner: "asyncio.Task[None]" = field(init=False)

    def __post_init__(self) -> None:
        self._opened = asyncio.get_running_loop().create_future()
        # Cancel scopes, such as anyio's, must be left by the task that entered them.
        self._owner = asyncio.create_task(self._own())

    async def live(self, seconds: float) -> Session:
        """Wait until the session is open and return it. Raises ``SessionError``."""
        if self._opened.done():
            return self._opened.result()
        # ``wait`` leaves the future alone at a timeout, whereas ``wait_for`` would cancel it.
        done, _ = await asyncio.wait([self._opened], timeout=seconds)
        if not done:
            raise SessionError(f"a session did not open within {seconds:g} seconds")
        return self._opened.result()

    async def close(self, seconds: float) -> None:
        """Close the session. Cancel it if it is not open yet or does not close in time, then wait once more."""
        # The owner leaves the session's block on its own. While still opening, it is canceled at once.
        self._over.set()
        if self._opened.done():
            await asyncio.wait([self._owner], timeout=seconds)
        # This has no effect if the session closed in time.
        self._owner.cancel()
        await asyncio.wait([self._owner], timeout=seconds)

    async def _own(self) -> None:
        try:
            async with self.context as session:
                self._opened.set_result(session)
                await self._over.wait()
        except Exception as error:  # from any library
            if not self._opened.done():
                failed: Exception = error
                if not isinstance(error, EngineError):
                    failed = SessionError(
                        f"a session did not open: {type(error).__name__}: {error}"
                    )
                    failed.__cause__ = error
                self._opened.set_exception(failed)
                self._opened.exception()  # mark it as retrieved: there may be no waiter


class Sessions:
    """Sessions of all branches of one environment, as a context manager that closes them."""

    def __init__(self, max_sessions: int, seconds: float) -> None:
        self.max_sessions = max_sessions
        self.seconds = seconds
        """Time limit of opening, and of closing, a session."""
        self.opened = self.forked = self.closed_early = 0
        """Counts of opened sessions, forks, and idle sessions closed to make room."""
        self._all: set[ManagedSession] = set()
        self._ended = False
        self._idle: OrderedDict[SessionKey, ManagedSession] = OrderedDict()
        """Idle sessions, least recently used first."""
        self._changed = asyncio.Event()

    async def __aenter__(self) -> "Sessions":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def find(self, key: SessionKey) -> ManagedSession | None:
        """Return the idle session at a key, which stays there."""
        return self._idle.get(key)

    def take(self, key: SessionKey) -> ManagedSession | None:
        return self._idle.pop(key, None)

    async def open(self, context: SessionContext) -> ManagedSession:
        """Open a session as soon as there is room. Raises ``SessionError``."""
        session = await self._admit(context)
        self.opened += 1
        return session

    async def fork(self, key: SessionKey) -> ManagedSession | None:
        """Return a copy of the idle session at ``key``; ``None`` without an idle session.

        If it can't be copied or the pool is full, the session itself is returned. An error while copying closes it.
        """
        session = self.take(key)
        if session is None or len(self._all) >= self.max_sessions:
            return session
        try:
            context = (await session.live(self.seconds)).fork()
        except BaseException:
            await self.drop(session)
            raise
        if context is None:
            return session
        # The copy is entered before the original continues, as ``Session.fork`` promises.
        try:
            forked = await self._admit(context)
        finally:
            await self.keep(key, session)
        self.forked += 1
        return forked

    async def keep(self, key: SessionKey, session: ManagedSession) -> None:
        """Store an idle session at ``key``, or close it if the key has one."""
        # Two branches may have been replayed to the same node, which needs one session only.
        if key in self._idle:
            await self.drop(session)
            return
        self._idle[key] = session
        self._changed.set()

    async def drop(self, session: ManagedSession) -> None:
        """Close a session that is not idle, even if the caller is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._drop(session)))

    async def close(self) -> None:
        """Close all sessions, also busy ones, and refuse new ones."""
        self._ended = True
        self._changed.set()
        # Idle sessions are also in the set of all sessions, which are closed next.
        self._idle.clear()
        await asyncio.gather(*(self.drop(session) for session in list(self._all)))

    async def _drop(self, session: ManagedSession) -> None:
        await session.close(self.seconds)
        self._all.discard(session)
        self._changed.set()

    async def _admit(self, context: SessionContext) -> ManagedSession:
        # Idle sessions are closed for the new one; busy ones are awaited.
        while len(self._all) >= self.max_sessions and not self._ended:
            if self._idle:
                _, oldest = self._idle.popitem(last=False)
                self.closed_early += 1
                await self.drop(oldest)
                continue
            # No other task runs between the check above and this wait, so no signal is lost.
            self._changed.clear()
            await self._changed.wait()
        if self._ended:
            raise SessionError("the run has ended, so no session can be opened")
        session = ManagedSession(context)
        # The place is taken before the session opens; concurrent openings could exceed the limit.
        self._all.add(session)
        try:
            await session.live(self.seconds)
        except BaseException:
            await self.drop(session)
            raise
        return session
