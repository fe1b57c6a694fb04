"""Stores of the archive tests: a directory and a real S3 server."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recorded.shared import record_if_missing, recordings_directory
from support import archived_sessions, session_without_collector
from support.store_servers.seaweed import seaweedfs


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as endpoint:
        yield endpoint


@pytest.fixture(params=["directory", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> archived_sessions.StoreLocation:
    if request.param == "directory":
        return archived_sessions.directory(tmp_path / "store")
    return archived_sessions.bucket(request.getfixturevalue("seaweed"), "a/root")


@pytest.fixture(scope="session")
def uncollected(tmp_path_factory: pytest.TempPathFactory) -> session_without_collector.UncollectedSession:
    """A real session without a collector: its dashboard responses, a snapshot of it, and its session directory."""
    recording = recordings_directory(tmp_path_factory) / "uncollected"
    record_if_missing(recording, "live.json", session_without_collector.record)
    directory = tmp_path_factory.mktemp("uncollected")
    shutil.copytree(recording, directory, symlinks=True, dirs_exist_ok=True)
    return session_without_collector.UncollectedSession.load(directory)
