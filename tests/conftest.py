"""Fixtures that several test packages share: one recorded session, and a real server that serves it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from recorded.recorder import Recording

pytest_plugins = ["support.collector_process", "support.dashboard_of_running_cluster"]


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
