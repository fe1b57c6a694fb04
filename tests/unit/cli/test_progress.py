"""The progress of a backlog."""

import asyncio

import pytest

from rayhistory.cli.progress import BacklogProgress


def test_line_counts_sessions_and_estimates_the_time_left() -> None:
    progress = BacklogProgress(4000, dict)
    began = progress._began
    assert progress.line(began + 5) == "0 of 4,000 sessions done"
    for number in range(1000):
        progress.add(succeeded=number != 7)
    assert progress.line(began + 600) == "1,000 of 4,000 sessions done, 1 failed, about 30m left"


def test_line_names_the_steps_of_running_sessions() -> None:
    steps = {f"default/c/session_{number}": f"{number} events read" for number in range(5)}
    line = BacklogProgress(5, lambda: steps).line(0)
    assert line == (
        "0 of 5 sessions done; default/c/session_0: 0 events read; default/c/session_1: 1 events read; "
        "default/c/session_2: 2 events read"
    )


def test_lines_are_printed_to_stderr_until_the_work_ends(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        progress = BacklogProgress(2, dict)
        async with progress.shown(0.001):
            await asyncio.sleep(0.01)
        assert capsys.readouterr().err.startswith("0 of 2 sessions done\n")
        await asyncio.sleep(0.01)

    asyncio.run(work())
    assert capsys.readouterr() == ("", "")
