"""Coroutines run at once within a bound, and none is left behind."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from rayhistory.concurrency import SharedCalls, Turns, concurrently, in_thread_to_end


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


def test_visitors_take_turns() -> None:
    """The requests of each visitor are served in order, and the one of another visitor soon."""

    async def run() -> list[str]:
        turns, served = Turns(2), list[str]()

        async def request(visitor: str, number: int) -> None:
            async with turns.take(visitor):
                served.append(f"{visitor} {number}")
                await asyncio.sleep(0)

        async with turns.take("ada"), turns.take("ada"):
            waiting = [asyncio.create_task(request("ada", number)) for number in range(20)]
            waiting += [asyncio.create_task(request("bob", number)) for number in range(2)]
            await asyncio.sleep(0)
            assert served == []
        await asyncio.gather(*waiting)
        await request("ada", 20)
        return served

    served = asyncio.run(run())
    assert served.index("bob 0") < 3
    assert served.index("bob 1") < 5
    assert [name for name in served if name.startswith("ada")] == [f"ada {number}" for number in range(21)]


@pytest.mark.parametrize("is_granted", [False, True])
def test_cancelled_request_passes_its_turn_on(is_granted: bool) -> None:
    async def run() -> None:
        turns = Turns(1)

        async def request(visitor: str) -> None:
            async with turns.take(visitor):
                pass

        async with turns.take("ada"):
            first, second = (asyncio.create_task(request(visitor)) for visitor in ("bob", "eve"))
            await asyncio.sleep(0)
            if not is_granted:
                first.cancel()
        first.cancel()
        await asyncio.wait_for(second, 10)
        async with turns.take("ada"):
            assert first.cancelled()

    asyncio.run(run())


def test_cancelled_call_ends_with_its_thread() -> None:
    async def run() -> None:
        released = threading.Event()
        call = asyncio.create_task(in_thread_to_end(lambda: released.wait(60)))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.sleep(0.01)
        assert not call.done()
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(run())
