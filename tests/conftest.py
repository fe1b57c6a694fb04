"""What several tests share: one recorded session, and the real server that serves it."""

from collections.abc import Iterator

import pytest

from recorded.recorder import Recorded, recorded_once
from recorded.served import serving

SHARED = {"recorded", "case"}
"""Fixtures that take long to make: tests that use them stay together, all others file by file."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        shared = SHARED & set(getattr(item, "fixturenames", ()))
        item.add_marker(pytest.mark.xdist_group("recorded" if shared else item.path.name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for status in ("passed", "failed") for report in terminalreporter.stats.get(status, [])]
    found = [lines for report in reports for name, lines in report.user_properties if name == "equal fields"]
    if found:
        terminalreporter.section("live against dead: equal fields per endpoint")
        terminalreporter.write_line("\n".join(found))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A real session, recorded once."""
    return recorded_once(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def history(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that serves the recorded session, and its copy that vanished."""
    with serving(recorded.store, tmp_path_factory.mktemp("server")) as address:
        yield address
