"""What several tests share: one recorded session, and the real server that serves it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recorded.recorder import Recorded, record
from recorded.served import serving
from recorded.shares import SHARES


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SHARES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash[SHARES]:
        terminalreporter.section("live against dead: equal fields per endpoint")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A real session, recorded once; RAYHISTORY_TEST_RECORDING names a directory that keeps it for the next run."""
    kept = os.environ.get("RAYHISTORY_TEST_RECORDING")
    source = Path(kept) if kept else tmp_path_factory.mktemp("recorded")
    original = Recorded.load(source) if (source / "live.json").exists() else record(source)
    # Servers write indexes into the store: each run begins without.
    copy = tmp_path_factory.mktemp("recording")
    shutil.copytree(original.store, copy / "store")
    shutil.copy2(source / "live.json", copy)
    return Recorded.load(copy)


@pytest.fixture(scope="session")
def history(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that serves the recorded session, and its copy that vanished."""
    with serving(recorded.store, tmp_path_factory.mktemp("server")) as address:
        yield address
