"""The spool of release 0.1.0, in a place where jobs can write."""

import os
from pathlib import Path

import pytest

from rayhistory.collector.spool.migration import take_over
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.recovery import lock_spool

OWN = "session_2026-11-15_19-18-08_055078_15551"
PLANTED = "session_2026-11-16_00-00-00_000000_1"
SEGMENT = "1794770320000000000.wal"


@pytest.fixture
def old(tmp_path: Path) -> PrivateDirectory:
    directory = PrivateDirectory(tmp_path / "old", tmp_path)
    for session in (OWN, PLANTED):
        directory.folder(session).make()
        directory.folder(session).write(SEGMENT, b"events")
    directory.folder("exports").make()
    directory.folder("exports").write("offsets", b"7")
    directory.write("counts.json", b"{}")
    return directory


@pytest.fixture
def new(tmp_path: Path) -> PrivateDirectory:
    directory = PrivateDirectory(tmp_path / "new", tmp_path)
    directory.make()
    return directory


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != "lock"}


def test_first_start_takes_over_everything(tmp_path: Path, old: PrivateDirectory, new: PrivateDirectory) -> None:
    take_over(old, new, set())
    assert files(tmp_path / "new") == {f"{OWN}/{SEGMENT}", f"{PLANTED}/{SEGMENT}", "exports/offsets", "counts.json"}
    assert files(tmp_path / "old") == set()


def test_later_starts_take_over_only_segments_of_known_sessions(
    tmp_path: Path, old: PrivateDirectory, new: PrivateDirectory
) -> None:
    """A job that puts files there cannot make the collector upload them as a session of its choice."""
    new.write("counts.json", b'{"own": 1}')
    take_over(old, new, {OWN})
    assert files(tmp_path / "new") == {f"{OWN}/{SEGMENT}", "counts.json"}
    assert (tmp_path / "new/counts.json").read_bytes() == b'{"own": 1}'
    assert f"{PLANTED}/{SEGMENT}" in files(tmp_path / "old")


def test_spool_of_a_running_collector_is_left_alone(
    tmp_path: Path, old: PrivateDirectory, new: PrivateDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    lock = lock_spool(old)
    try:
        take_over(old, new, {OWN})
    finally:
        os.close(lock)
    assert files(tmp_path / "new") == set()
    assert "cannot read the old spool directory, leaving its data there" in caplog.text


def test_linked_segments_are_not_followed(tmp_path: Path, old: PrivateDirectory, new: PrivateDirectory) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of another user")
    (tmp_path / "old" / OWN / SEGMENT).unlink()
    (tmp_path / "old" / OWN / SEGMENT).symlink_to(secret)
    take_over(old, new, set())
    assert f"{OWN}/{SEGMENT}" not in files(tmp_path / "new")
    assert secret.read_text() == "of another user"
