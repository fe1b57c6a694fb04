"""The records of a session that the head's collector writes."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from rayhistory.collector.session.session_record import SessionRecord
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import ObjectNotFound, StoreDenied
from rayhistory.sessions import Layout, SessionRef, StartRecord
from rayhistory.storage import ObjectInfo, Store
from rayhistory.storage.local import LocalStore

REF = SessionRef("default", "c", "session_2026-11-15_19-18-08_055078_1")


class StoreWithoutListing(LocalStore):
    """A store that tells nobody which objects are missing, as S3 without `s3:ListBucket`."""

    async def head(self, key: str) -> ObjectInfo:
        try:
            return await super().head(key)
        except ObjectNotFound:
            raise StoreDenied(f"{key}: denied") from None

    def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        raise StoreDenied(f"{prefix}: denied")


def record_and_end(root: Path, store: Store | None = None) -> StartRecord:
    """Register the session, end it, and return its start record."""

    async def register_and_end() -> None:
        spool = Spool(PrivateDirectory(root / "spool"), budget=10**7, segment_size=10**7, segment_age=300)
        await spool.open()
        record = SessionRecord(
            REF, None, store or LocalStore(root), Layout(), Telemetry(), spool=spool, is_running=True
        )
        await record.end("stopped", 1)
        await spool.close()

    asyncio.run(register_and_end())
    return msgspec.json.decode((root / Layout().start_key(REF)).read_bytes(), type=StartRecord)


def test_start_record_has_the_time_at_which_the_store_first_had_it(tmp_path: Path) -> None:
    """A collector that starts later keeps it, although it writes the record again."""
    first = record_and_end(tmp_path).stored_ms
    path = tmp_path / Layout().start_key(REF)
    assert first is not None
    assert first <= path.stat().st_mtime * 1000
    os.utime(path, (first / 1000 + 5000, first / 1000 + 5000))
    assert record_and_end(tmp_path).stored_ms == first


def test_start_record_of_an_earlier_release_gets_its_modification_time(tmp_path: Path) -> None:
    path = tmp_path / Layout().start_key(REF)
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(StartRecord(*REF.identity, started_ms=1)))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert record_and_end(tmp_path).stored_ms == 1_700_000_000_000


def test_collector_resumes_its_session_where_missing_objects_are_reported_as_denied(tmp_path: Path) -> None:
    """It would repeat the request for ever, without a heartbeat."""
    path = tmp_path / Layout().start_key(REF)
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(StartRecord(*REF.identity, started_ms=1)))
    assert record_and_end(tmp_path, StoreWithoutListing(tmp_path)).started_ms == 1
    assert (tmp_path / Layout().end_key(REF)).exists()


def test_session_stays_ended_where_its_successors_cannot_be_listed(tmp_path: Path) -> None:
    record_and_end(tmp_path)
    end = tmp_path / Layout().end_key(REF)
    end.write_bytes(b"the end")
    shutil.rmtree(tmp_path / "spool")  # another collector's
    record_and_end(tmp_path, StoreWithoutListing(tmp_path))
    assert end.read_bytes() == b"the end"


def test_unreadable_start_record_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / Layout().start_key(REF)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{half a rec")
    written = record_and_end(tmp_path)
    assert (written.cluster, written.session) == (REF.cluster, REF.session)
    assert written.stored_ms is not None


def end_by_another_collector(root: Path) -> Path:
    """Record the session, and return its end record, which the next collector did not write."""
    record_and_end(root)
    end = root / Layout().end_key(REF)
    end.write_bytes(b"the end")
    shutil.rmtree(root / "spool")
    return end


def test_session_that_still_runs_is_resumed_after_another_collectors_end(tmp_path: Path) -> None:
    """The first collector of a head may be replaced while Ray goes on."""
    end = end_by_another_collector(tmp_path)
    record_and_end(tmp_path)
    assert b"stopped" in end.read_bytes()


def test_session_stays_ended_if_the_cluster_has_begun_another(tmp_path: Path) -> None:
    end = end_by_another_collector(tmp_path)
    later = tmp_path / Layout().start_key(
        SessionRef(REF.namespace, REF.cluster, "session_2026-11-16_00-00-00_000000_1")
    )
    later.parent.mkdir(parents=True)
    later.write_bytes(b"")
    ended = end.stat().st_mtime
    os.utime(later, (ended + 60, ended + 60))
    record_and_end(tmp_path)
    assert end.read_bytes() == b"the end"
