"""A store that refuses writes: its sessions open, and their indexes are in the local cache within a budget."""

import asyncio
import dataclasses
import logging
import os
import time
from pathlib import Path

import boto3
import pytest
from starlette.testclient import TestClient

from rayhistory.errors import StoreDenied
from rayhistory.index.overlay import Overlay
from rayhistory.server.app import create_app
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import resolve
from rayhistory.storage.local import LocalStore
from support.folding import RECORDED, REF, as_lines, put
from support.store_servers.faulty import Fault, faulty
from support.store_servers.moto import moto

LAYOUT = Layout()
SESSIONS = [SessionRef.checked("default", "c", f"session_2026-11-1{day}_00-00-00_000000_1") for day in range(4)]


class ReadOnlyStore(LocalStore):
    async def put(self, key: str, data: bytes | Path) -> None:
        raise StoreDenied("read-only")

    async def create(self, key: str, data: bytes) -> None:
        raise StoreDenied("read-only")


async def make_index(overlay: Overlay, local: Path, ref: SessionRef, age: float) -> None:
    """Write an index of a thousand bytes with an age in seconds."""
    await overlay.put(LAYOUT.index_file_key(ref, "1-abcd", "tasks", 0), b"x" * 1000)
    await overlay.create(LAYOUT.manifest_key(ref, 1), b"{}")
    for path in (local / LAYOUT.index_prefix(ref)).rglob("*"):
        os.utime(path, (time.time() - age,) * 2)


def test_oldest_local_indexes_are_evicted_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the new index nor one with a lease is evicted. The warning is logged once."""
    overlay = Overlay(ReadOnlyStore(tmp_path / "store"), tmp_path / "local-indexes", 2500)

    async def work() -> list[bool]:
        await make_index(overlay, tmp_path / "local-indexes", SESSIONS[0], 4000)
        await overlay.put(LAYOUT.lease_key(SESSIONS[0]), b"lease")
        await make_index(overlay, tmp_path / "local-indexes", SESSIONS[1], 2000)
        await make_index(overlay, tmp_path / "local-indexes", SESSIONS[2], 1000)
        await make_index(overlay, tmp_path / "local-indexes", SESSIONS[3], 9000)
        return [bool([info async for info in overlay.list_all(LAYOUT.index_prefix(ref))]) for ref in SESSIONS]

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(work()) == [True, False, False, True]
    assert len(caplog.messages) == 1


def test_session_in_a_read_only_bucket_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real fold writes nothing to the bucket, and a second server finds it in the same cache."""
    put(tmp_path / "local", 0, as_lines(RECORDED))
    with moto(tmp_path) as endpoint, faulty(endpoint) as relay:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "S3_REGION": "us-east-1"}
        for name, value in (keys | {"S3_BUCKET": "read-only", "S3_ENDPOINT": relay.url}).items():
            monkeypatch.setenv(name, value)
        # explicit, because boto3 caches the credentials of its default session for the whole process
        credentials = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **credentials)
        client.create_bucket(Bucket="read-only")
        for path in filter(Path.is_file, (tmp_path / "local").rglob("*.jsonl")):
            client.put_object(Bucket="read-only", Key=str(path.relative_to(tmp_path / "local")), Body=path.read_bytes())
        client.put_object(Bucket="read-only", Key=LAYOUT.metadata_key(REF), Body=b"")
        relay.plan(always=Fault(403, "AccessDenied"), method="PUT")
        flags = {"setting_storage_backend": "s3", "setting_cache_dir": str(tmp_path / "cache")}
        settings = resolve("historyserver", flags, {})[0]
        for _ in range(2):
            with TestClient(create_app(dataclasses.replace(settings, index_ahead=False))) as server:
                response = server.get(f"/s/{REF.path}/api/v0/tasks?limit=1000")
                assert response.status_code == 200, response.text
                assert response.json()["data"]["result"]["num_filtered"] == 23
        assert "Contents" not in client.list_objects_v2(Bucket="read-only", Prefix=LAYOUT.index_prefix(REF))
    manifests = (tmp_path / "cache/indexes" / LAYOUT.index_prefix(REF)).glob("manifest-*")
    assert [path.name for path in manifests] == ["manifest-1.json"]
