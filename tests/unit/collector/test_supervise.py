"""Background work of the collector survives its errors."""

import asyncio

import pytest

from rayhistory.collector.supervise import restart_on_error, run_unless
from rayhistory.collector.telemetry import Telemetry


@pytest.mark.slow  # a pause before the second attempt
def test_failed_background_task_is_counted_and_started_again() -> None:
    """An upload that stopped for ever would fill the disk."""
    attempts: list[int] = []
    telemetry = Telemetry()

    async def work() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("unforeseen")

    asyncio.run(restart_on_error("upload", work, telemetry))
    assert len(attempts) == 2
    assert b'rayhistory_collector_task_failures_total{task="upload"} 1.0' in telemetry.exposition()


def test_work_is_cancelled_when_its_event_comes_first() -> None:
    async def scenario() -> None:
        event, cancelled = asyncio.Event(), asyncio.Event()

        async def work() -> str:
            event.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return "never"

        assert await run_unless(event, work()) is None
        assert cancelled.is_set()
        assert await run_unless(asyncio.Event(), asyncio.sleep(0, "done")) == "done"

    asyncio.run(scenario())
