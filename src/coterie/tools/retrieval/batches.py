"""Questions that wait are answered together: what comes within a short time, or while others are answered.

The server gathers the queries of its requests so, and the tool gathers the calls of a message.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Batches(Generic[Question, Answer]):
    """Asks ``answer`` about many questions at a time; used within one event loop.

    ``window``: seconds that a first question waits for others. ``most``: questions of a batch. ``at_once``: batches
    that are answered at the same time; meanwhile questions wait, and go together.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]],
        *,
        window: float,
        most: int,
        at_once: int,
    ) -> None:
        self._answer = answer
        self._window, self._most = window, most
        self._free = at_once
        self._waiting: deque[tuple[Question, asyncio.Future[Answer]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def ask(self, question: Question) -> Answer:
        """The answer to one question; raises what the answer to its batch raised. Cancelling it takes it back."""
        if self._closed:
            raise RuntimeError("nothing is answered any more")
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((question, found))
        if len(self._waiting) >= self._most:
            self._begin()
        elif self._timer is None:
            self._timer = loop.call_later(self._window, self._begin)
        return await found

    async def close(self) -> None:
        """Give up what is not answered."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, found in self._waiting:
            found.cancel()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _begin(self) -> None:
        """Answer what waits, as far as there is room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._free and (batch := self._taken()):
            self._free -= 1
            task = asyncio.ensure_future(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _taken(self) -> list[tuple[Question, asyncio.Future[Answer]]]:
        """The next batch, without questions that were taken back."""
        batch: list[tuple[Question, asyncio.Future[Answer]]] = []
        while self._waiting and len(batch) < self._most:
            one = self._waiting.popleft()
            if not one[1].done():
                batch.append(one)
        return batch

    async def _run(self, batch: Sequence[tuple[Question, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._answer([question for question, _ in batch])
            for (_, found), answer in zip(batch, answers, strict=True):
                if not found.done():
                    found.set_result(answer)
        except Exception as error:
            for _, found in batch:
                if not found.done():
                    found.set_exception(error)
        finally:
            for _, found in batch:
                found.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._free += 1
        if self._waiting and not self._closed:
            self._begin()
