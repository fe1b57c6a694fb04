"""What several tests share: one recorded session, and the real server that serves it."""

import os
from collections.abc import Iterator

import pytest

from recorded.recorder import Recorded, recorded_once
from recorded.served import serving


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for status in ("passed", "failed") for report in terminalreporter.stats.get(status, [])]
    found = [lines for report in reports for name, lines in report.user_properties if name == "equal fields"]
    if found:
        terminalreporter.section("live against dead: equal fields per endpoint")
        terminalreporter.write_line("\n".join(found))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A real session, recorded once, also when several processes share the tests."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    return recorded_once(tmp_path_factory.mktemp("recorded"), kept=shared / "recordings")


@pytest.fixture(scope="session")
def history(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that serves the recorded session, and its copy that vanished."""
    with serving(recorded.store, tmp_path_factory.mktemp("server")) as address:
        yield address
