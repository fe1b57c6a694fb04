"""Slots for points in time: no visitor and no session takes all of them."""

import asyncio

import pytest

from rayhistory.errors import RateLimited
from rayhistory.index.service.builder import quantize_ms
from rayhistory.index.service.fair_slots import MAX_WAITING_PER_VISITOR, FairSlots


def test_visitor_with_many_points_leaves_a_slot_to_others() -> None:
    async def work() -> None:
        slots, ready, done = FairSlots("points in time"), asyncio.Semaphore(0), asyncio.Event()

        async def build(visitor: str, session: str) -> None:
            async with slots.acquire(visitor, session):
                ready.release()
                await done.wait()

        greedy = [asyncio.create_task(build("ada", f"session {number}")) for number in range(MAX_WAITING_PER_VISITOR)]
        await ready.acquire()
        other = asyncio.create_task(build("ben", "session x"))
        await ready.acquire()  # while the first still holds its slot
        done.set()
        await asyncio.gather(*greedy, other)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_visitor_who_waits_for_too_many_points_is_refused() -> None:
    async def work() -> None:
        slots = FairSlots("points in time")

        async def build(number: int) -> None:
            async with slots.acquire("ada", f"session {number}"):
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(build(number)) for number in range(MAX_WAITING_PER_VISITOR + 1)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimited):
            await build(99)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with slots.acquire("ada", "session 1"):  # those who left count no more
            pass

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize(
    ("as_of_ms", "point_ms"),
    [
        (10_000_000, 10_000_000),
        (10_000_001, 10_001_000),  # rounded up, so that a failure at this time is visible
        (75_536_000, 75_536_000),
        (9_999_999, 9_999_999),  # never at the first event
        (9_995_500, 9_996_000),
        (1, 0),
    ],
)
def test_close_points_in_time_share_their_tables(as_of_ms: int, point_ms: int) -> None:
    """The session lasts 2**16 seconds, so it has a point per second."""
    assert quantize_ms(as_of_ms, 10_000_000, 10_000_000 + 2**16 * 1000) == point_ms
