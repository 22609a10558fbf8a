"""What runs at the same time: no more than the limit, older dialogues first, and nothing after the block."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator

import pytest

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import RequestSlots, Sampling
from coterie.rollout.episodes import bounded_gather
from tests.helpers.template_models import make_model


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


Turn = Callable[[], Awaitable[object]]


async def order_of_ends(turn: Turn, dialogues: int = 12, turns: int = 4) -> list[int]:
    """Take all turns of dialogues and return how many turns were over when each dialogue ended."""
    taken = 0

    async def dialogue() -> int:
        nonlocal taken
        for _ in range(turns):
            await turn()
            taken += 1
        return taken

    work = (dialogue() for _ in range(dialogues))
    async with bounded_gather(work, limit=dialogues) as ends:
        return [end async for end in ends]


def slots_of_a_server() -> Turn:
    slots = RequestSlots(2)

    async def turn() -> None:
        async with slots:
            await asyncio.sleep(0)

    return turn


def engine_in_process() -> Turn:
    engine = InProcessEngine(make_model("chatml"), max_batch=2)
    sampling = Sampling(max_tokens=2)
    return lambda: engine.sample([5, 6, 7], [0], sampling)


@pytest.mark.parametrize("open_turns", [slots_of_a_server, engine_in_process])
def test_dialogues_end_while_later_ones_wait_for_their_first_turn(
    open_turns: Callable[[], Turn],
) -> None:
    ends = asyncio.run(order_of_ends(open_turns()))
    assert ends[0] <= 4 * 4, "two at a time: with first come, first served it is 37 of 48"
    assert ends[5] <= 48 * 2 / 3


def test_a_slot_that_a_canceled_request_has_just_got_goes_to_the_next() -> None:
    async def test() -> None:
        slots, entered = RequestSlots(1), list[int]()

        async def enter(number: int) -> None:
            async with slots:
                entered.append(number)

        async with slots:
            waiting = [asyncio.create_task(enter(number)) for number in range(3)]
            await asyncio.sleep(0)
            waiting[1].cancel()  # while it waits
        waiting[0].cancel()  # between getting the slot and running
        await asyncio.gather(*waiting, return_exceptions=True)
        assert entered == [2]
        await asyncio.wait_for(enter(3), 1)

    asyncio.run(test())
