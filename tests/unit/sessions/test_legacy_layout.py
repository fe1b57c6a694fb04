"""The legacy layout is listed only on request, and probed with few listings."""

import asyncio
import time
from pathlib import Path

import pytest

from rayhistory.cli.setup.doctor import run_checks
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.sessions.legacy_layout import LegacySessionScanner, probe_legacy_sessions
from rayhistory.settings import resolve
from rayhistory.storage import Listing
from rayhistory.storage.local import LocalStore

LAYOUT = Layout("root")
SESSION = "session_2026-11-15_19-18-08_055078_1"
REF = SessionRef("ns", "c", SESSION)


class ListingRecorder(LocalStore):
    """Records the prefixes of folder listings."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.listings: list[str] = []

    async def list_folder(self, prefix: str) -> Listing:
        self.listings.append(prefix)
        return await super().list_folder(prefix)


def write(root: Path, key: str) -> None:
    (root / key).parent.mkdir(parents=True, exist_ok=True)
    (root / key).write_bytes(b"{}")


@pytest.fixture
def store(tmp_path: Path) -> ListingRecorder:
    """A bucket with one legacy session, one current session and many unrelated folders."""
    write(tmp_path, LAYOUT.legacy_events_key(REF))
    write(tmp_path, LAYOUT.metadata_key(SessionRef("ns", "other", SESSION)))
    for number in range(120):
        write(tmp_path, f"root/unrelated-{number:03}/data/file")
    return ListingRecorder(tmp_path)


def test_catalog_makes_no_legacy_listings_without_the_setting(store: ListingRecorder) -> None:
    entries = asyncio.run(SessionCatalog(store, LAYOUT, 120).entries())
    assert [entry.ref.cluster for entry in entries] == ["other"]
    assert store.listings == []


def test_catalog_lists_legacy_sessions_with_the_setting(store: ListingRecorder) -> None:
    entries = asyncio.run(SessionCatalog(store, LAYOUT, 120, read_legacy_layout=True).entries())
    assert {entry.ref for entry in entries} == {REF, SessionRef("ns", "other", SESSION)}


@pytest.mark.parametrize("key", [LAYOUT.legacy_events_key(REF), LAYOUT.legacy_metadata_key(REF)])
def test_events_or_metadata_make_a_legacy_session(tmp_path: Path, key: str) -> None:
    write(tmp_path, key)
    write(tmp_path, f"root/ns/photos/{SESSION}/image.jpg")
    assert asyncio.run(LegacySessionScanner(LocalStore(tmp_path), LAYOUT).sessions()) == [REF]


def test_scan_is_repeated_after_a_minute_and_verifies_sessions_once(
    store: ListingRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanner = LegacySessionScanner(store, LAYOUT)
    session_prefix = LAYOUT.legacy_prefix(*REF.identity)
    assert asyncio.run(scanner.sessions()) == [REF]
    scanned = len(store.listings)
    assert asyncio.run(scanner.sessions()) == [REF]
    assert len(store.listings) == scanned
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert asyncio.run(scanner.sessions()) == [REF]
    assert len(store.listings) == 2 * scanned - 1
    assert store.listings.count(session_prefix) == 1


def test_probe_finds_a_session_with_few_listings(store: ListingRecorder) -> None:
    assert asyncio.run(probe_legacy_sessions(store, LAYOUT)) == [REF]
    assert len(store.listings) <= 16


def test_probe_gives_up_after_few_listings(tmp_path: Path) -> None:
    for number in range(120):
        write(tmp_path, f"root/unrelated-{number:03}/data/file")
    store = ListingRecorder(tmp_path)
    assert asyncio.run(probe_legacy_sessions(store, LAYOUT)) == []
    assert len(store.listings) <= 16


@pytest.mark.parametrize("enabled", [False, True])
def test_doctor_reports_legacy_sessions_that_are_not_read(
    store: ListingRecorder, tmp_path: Path, *, enabled: bool
) -> None:
    flags = {
        "setting_local_storage_dir": str(tmp_path),
        "setting_storage_root_dir": "root",
        "setting_read_legacy_layout": str(enabled).lower(),
    }
    results = asyncio.run(run_checks(resolve("rayhistory", flags, {})[0]))
    notes = [result for result in results if "legacy layout" in result.text]
    if enabled:
        assert notes == []
    else:
        (note,) = notes
        assert REF.path in note.text
        assert "--read-legacy-layout" in note.hint
        assert not note.required
