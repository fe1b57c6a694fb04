"""The stores in which sessions are kept: a directory and a real S3 server."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import kept
import plainsession
from storeservers.seaweed import seaweedfs


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as endpoint:
        yield endpoint


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> kept.Place:
    if request.param == "directory":
        return kept.directory(tmp_path / "store")
    return kept.bucket(request.getfixturevalue("seaweed"), "a/root")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> plainsession.PlainSession:
    """A real session that no collector saw: what its dashboard said, a look at it, and what was left on the disk."""
    kept_at = os.environ.get("RAYHISTORY_TEST_RECORDING")
    directory = Path(kept_at) / "plain" if kept_at else tmp_path_factory.mktemp("plain")
    if not (directory / "live.json").exists():
        plainsession.record(directory)
    return plainsession.PlainSession.load(directory)
