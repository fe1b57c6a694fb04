"""Fold slots: urgent folds first, and never all slots for large sessions."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rayhistory.index.service.slots import SlotRequest, Slots

SMALL, LARGE = 1, 1 << 30


class Folds:
    """Folds that hold a slot until they are told to end."""

    def __init__(self, slots: int) -> None:
        self._slots = Slots(slots)
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str, size: int = SMALL, request: SlotRequest | None = None) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._fold(name, size, request))
        await _settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await _settle()

    async def _fold(self, name: str, size: int, request: SlotRequest | None) -> None:
        async with self._slots.acquire(size, request):
            self.running.append(name)
            await self._ends[name].wait()
            self.running.remove(name)


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def check(slots: int, work: Callable[[Folds], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work(Folds(slots)))


def test_large_sessions_leave_one_slot() -> None:
    async def work(folds: Folds) -> None:
        for name, size in (("l1", LARGE), ("l2", LARGE), ("s1", SMALL), ("s2", SMALL)):
            await folds.start(name, size)
        assert folds.running == ["l1", "s1"]
        await folds.end("l1")
        assert folds.running == ["s1", "l2"]

    check(2, work)


def test_one_slot_serves_large_sessions_too() -> None:
    async def work(folds: Folds) -> None:
        await folds.start("l1", LARGE)
        assert folds.running == ["l1"]

    check(1, work)


def test_urgent_fold_overtakes_folds_that_are_done_ahead() -> None:
    async def work(folds: Folds) -> None:
        for name in ("a", "b", "c"):
            await folds.start(name, request=SlotRequest(urgent=False))
        await folds.start("visited")
        await folds.end("a")
        assert folds.running == ["visited"]
        await folds.end("visited")
        assert folds.running == ["b"]

    check(1, work)


def test_waiting_fold_becomes_urgent_when_somebody_waits_for_it() -> None:
    async def work(folds: Folds) -> None:
        late = SlotRequest(urgent=False)
        for name, request in (("a", None), ("b", SlotRequest(urgent=False)), ("c", late)):
            await folds.start(name, request=request)
        late.urgent = True
        await folds.end("a")
        assert folds.running == ["c"]

    check(1, work)


def test_cancelled_fold_gives_its_slot_back() -> None:
    async def work(folds: Folds) -> None:
        for name in ("a", "b", "c"):
            await folds.start(name)
        for name in ("b", "a"):  # one waits, one runs
            folds.tasks[name].cancel()
            await _settle()
        assert folds.running[-1] == "c"

    check(1, work)
