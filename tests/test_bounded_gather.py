"""What runs at the same time: no more than the limit, nothing after the block, and a garbage collector that rests."""

import asyncio
import gc
from collections.abc import Coroutine, Iterator

import pytest

from coterie.rollout.episodes import bounded_gather, rare_collections


class Work:
    """Coroutines that count how many of them run."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.begun = 0

    async def one(self, seconds: float) -> float:
        self.begun += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
            if not seconds:
                raise LookupError("none")
            return seconds
        finally:
            await asyncio.sleep(0.01)  # an end that takes its time is waited for
            self.running -= 1

    def of(self, *seconds: float) -> Iterator[Coroutine[None, None, float]]:
        return map(self.one, seconds)


def test_results_come_as_they_are_ready_and_the_limit_holds() -> None:
    async def test() -> None:
        work = Work()
        async with bounded_gather(work.of(0.3, 0.05, 0.1, 0.02), limit=2) as results:
            assert [seconds async for seconds in results] == [0.05, 0.1, 0.02, 0.3]
        assert (work.most, work.running) == (2, 0)

    asyncio.run(test())


@pytest.mark.parametrize("first", [0.01, 0.0], ids=["block", "work"])
def test_an_exception_in_the_block_or_the_work_ends_the_rest(first: float) -> None:
    async def test() -> None:
        work = Work()

        async def block() -> None:
            async with bounded_gather(work.of(first, 60, 60, 60), limit=3) as results:
                async for _ in results:
                    raise LookupError("the block")

        with pytest.raises(LookupError):
            await block()
        assert (work.begun, work.running) == (3, 0)

    asyncio.run(test())


def test_leaving_the_block_early_ends_the_rest() -> None:
    async def test() -> None:
        work = Work()
        async with bounded_gather(work.of(0.01, 60), limit=8) as results:
            async for _ in results:
                break
        assert work.running == 0

    asyncio.run(test())


def test_overlapping_blocks_restore_the_garbage_collector() -> None:
    before, blocks = gc.get_threshold(), [rare_collections() for _ in range(2)]
    for block in blocks:
        block.__enter__()
    for block in blocks:
        assert gc.get_threshold()[0] >= 500_000
        block.__exit__(None, None, None)
    assert gc.get_threshold() == before
