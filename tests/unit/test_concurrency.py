"""Coroutines run at once within a bound, and none is left behind."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from rayhistory.concurrency import SharedCalls, concurrently


class Calls:
    """Coroutines that record how many of them run at once."""

    def __init__(self) -> None:
        self.running = self.most = self.made = 0

    async def call(self, result: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            if result < 0:
                raise ValueError(result)
            await asyncio.sleep(0.001 * (result % 3))
        finally:
            self.running -= 1
        return result

    def calls(self, results: list[int]) -> Iterator[Coroutine[Any, Any, int]]:
        for result in results:
            self.made += 1
            yield self.call(result)


def test_results_come_in_the_order_of_the_calls() -> None:
    calls = Calls()
    assert asyncio.run(concurrently(calls.calls(list(range(50))), 8)) == list(range(50))
    assert calls.most == 8


def test_first_failure_cancels_the_other_calls_and_starts_no_more() -> None:
    calls = Calls()
    with pytest.raises(ValueError, match="-1"):
        asyncio.run(concurrently(calls.calls([1, 2, -1, *range(1000)]), 8))
    assert calls.running == 0
    assert calls.made < 20


def test_cancellation_ends_all_calls() -> None:
    calls = Calls()

    async def work() -> None:
        task = asyncio.create_task(concurrently(calls.calls([2] * 100_000), 8))
        await asyncio.sleep(0.01)
        assert calls.running
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert calls.running == 0

    asyncio.run(work())


def test_calls_with_the_same_key_share_one() -> None:
    """It continues when the first caller gives up, and the next call after its end is a new one."""
    calls: list[str] = []

    async def run() -> list[int]:
        shared: SharedCalls[str, int] = SharedCalls()
        may_end = asyncio.Event()

        async def work(name: str) -> int:
            calls.append(name)
            await may_end.wait()
            return len(calls)

        first, second = (asyncio.create_task(shared.call("key", lambda: work("one"))) for _ in range(2))
        other = asyncio.create_task(shared.call("other", lambda: work("other")))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        may_end.set()
        return [await second, await other, await shared.call("key", lambda: work("again"))]

    assert asyncio.run(run()) == [2, 2, 3]
    assert calls == ["one", "other", "again"]


def test_failure_of_a_shared_call_is_raised_for_all() -> None:
    async def fail() -> int:
        raise ValueError("damaged")

    async def run() -> list[object]:
        shared: SharedCalls[str, int] = SharedCalls()
        return await asyncio.gather(*(shared.call("key", fail) for _ in range(2)), return_exceptions=True)

    assert [str(error) for error in asyncio.run(run())] == ["damaged", "damaged"]
