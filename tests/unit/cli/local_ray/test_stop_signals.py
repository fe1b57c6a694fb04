"""Signals stop a recording: the first one in order, the next one at once."""

import asyncio
import os
import signal

import pytest

from rayhistory.cli.local_ray.stop_signals import StopSignals

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}

pytestmark = pytest.mark.parametrize(("number", "exit_code"), EXIT_CODES.items(), ids=str)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_first_signal_sets_the_event_and_the_exit_code(number: signal.Signals, exit_code: int) -> None:
    async def scenario() -> int:
        with StopSignals() as signals:
            stop = signals.defer()
            send(number)
            await asyncio.wait_for(stop.wait(), 10)
            return signals.exit_code

    assert asyncio.run(scenario()) == exit_code


def test_second_signal_ends_the_task(number: signal.Signals, exit_code: int) -> None:
    async def scenario() -> None:
        with StopSignals(repeat_s=0) as signals:
            stop = signals.defer()
            send(number)
            await asyncio.wait_for(stop.wait(), 10)
            send(number)
            await asyncio.sleep(10)

    with pytest.raises(SystemExit) as end:
        asyncio.run(scenario())
    assert end.value.code == exit_code


def test_repeated_signal_counts_as_one(number: signal.Signals, exit_code: int) -> None:
    """`timeout` signals the process, and at once its process group."""

    async def scenario() -> int:
        with StopSignals(repeat_s=600) as signals:
            stop = signals.defer()
            for each in (number, number, signal.SIGTERM):
                send(each)
                await asyncio.sleep(0)
                await asyncio.wait_for(stop.wait(), 10)
            await asyncio.sleep(0.05)
            return signals.exit_code

    assert asyncio.run(scenario()) == exit_code


def test_signal_before_the_job_ends_the_task(number: signal.Signals, exit_code: int) -> None:
    async def scenario() -> None:
        with StopSignals():
            send(number)
            await asyncio.sleep(10)

    with pytest.raises(SystemExit) as end:
        asyncio.run(scenario())
    assert end.value.code == exit_code


def test_handlers_are_removed_at_the_end(number: signal.Signals, exit_code: int) -> None:
    async def scenario() -> None:
        with StopSignals():
            assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)

    before = signal.getsignal(number)
    asyncio.run(scenario())
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)
