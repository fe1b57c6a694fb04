"""Fixtures that several test packages share: one recorded session, and a real server that serves it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.run_order import FileToRun, in_order

if TYPE_CHECKING:
    from recorded.recorder import Recording

E2E = Path(__file__).parent / "e2e"

pytest_plugins = ["support.collector_process", "support.dashboard_of_running_cluster"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files: dict[Path, FileToRun[pytest.Item]] = {}
    for item in items:
        file = files.setdefault(item.path, FileToRun([], item.path.is_relative_to(E2E)))
        file.items.append(item)
        file.recordings.update({"recorded", "uncollected"} & set(getattr(item, "fixturenames", ())))
    items[:] = [item for file in in_order(list(files.values())) for item in file.items]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for status in ("passed", "failed") for report in terminalreporter.stats.get(status, [])]
    found = [lines for report in reports for name, lines in report.user_properties if name == "equal fields"]
    if found:
        terminalreporter.section("live against dead: equal fields per endpoint")
        terminalreporter.write_line("\n".join(found))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> "Recording":
    """A real session, recorded once per test run and shared by all worker processes."""
    from recorded.recorder import record_once
    from recorded.shared import recordings_directory

    return record_once(tmp_path_factory.mktemp("recorded"), recordings=recordings_directory(tmp_path_factory))


@pytest.fixture(scope="session")
def history(recorded: "Recording", tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the recorded session, and its copy that vanished."""
    from support.server_process import running_server

    with running_server(recorded.store, tmp_path_factory.mktemp("server")) as address:
        yield address
