"""A store that refuses writes: its sessions open, and their indexes are in the local cache, within a budget."""

import asyncio
import dataclasses
import logging
import os
import time
from pathlib import Path

import boto3
import pytest
from starlette.testclient import TestClient

from folding import RECORDED, REF, as_lines, put
from rayhistory.errors import StoreDenied
from rayhistory.index.overlay import Overlay
from rayhistory.layout import Layout, SessionRef
from rayhistory.server.app import create_app
from rayhistory.settings import resolve
from rayhistory.storage.local import LocalStore
from storeservers.faulty import Fault, faulty
from storeservers.moto import moto

LAYOUT = Layout()
SESSIONS = [SessionRef.checked("default", "c", f"session_2026-11-1{day}_00-00-00_000000_1") for day in range(4)]


class ReadOnly(LocalStore):
    async def put(self, key: str, data: bytes | Path) -> None:
        raise StoreDenied("read-only")

    async def create(self, key: str, data: bytes) -> None:
        raise StoreDenied("read-only")


async def make(overlay: Overlay, beside: Path, ref: SessionRef, age: float) -> None:
    """An index of a thousand bytes, made some time ago."""
    await overlay.put(LAYOUT.index_file_key(ref, "1-abcd", "tasks", 0), b"x" * 1000)
    await overlay.create(LAYOUT.manifest_key(ref, 1), b"{}")
    for path in (beside / LAYOUT.index_prefix(ref)).rglob("*"):
        os.utime(path, (time.time() - age,) * 2)


def test_the_oldest_indexes_make_room_for_the_newest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the one just made goes, nor one that is being made. That indexes are kept here is said once."""
    overlay = Overlay(ReadOnly(tmp_path / "store"), tmp_path / "beside", 2500)

    async def work() -> list[bool]:
        await make(overlay, tmp_path / "beside", SESSIONS[0], 4000)
        await overlay.put(LAYOUT.claim_key(SESSIONS[0]), b"it is being extended")
        await make(overlay, tmp_path / "beside", SESSIONS[1], 2000)
        await make(overlay, tmp_path / "beside", SESSIONS[2], 1000)
        await make(overlay, tmp_path / "beside", SESSIONS[3], 9000)
        return [bool([info async for info in overlay.list_all(LAYOUT.index_prefix(ref))]) for ref in SESSIONS]

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(work()) == [True, False, False, True]
    assert len(caplog.messages) == 1


def test_a_session_of_a_bucket_that_refuses_writes_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real fold: nothing of it comes to the bucket, and a second server with the same cache finds it."""
    put(tmp_path / "local", 0, as_lines(RECORDED))
    with moto(tmp_path) as endpoint, faulty(endpoint) as relay:
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "S3_REGION": "us-east-1"}
        for name, value in (keys | {"S3_BUCKET": "kept", "S3_ENDPOINT": relay.url}).items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="kept")
        for path in filter(Path.is_file, (tmp_path / "local").rglob("*.jsonl")):
            client.put_object(Bucket="kept", Key=str(path.relative_to(tmp_path / "local")), Body=path.read_bytes())
        client.put_object(Bucket="kept", Key=LAYOUT.metadata_key(REF), Body=b"")
        relay.plan(always=Fault(403, "AccessDenied"), method="PUT")
        flags = {"setting_storage_backend": "s3", "setting_cache_dir": str(tmp_path / "cache")}
        settings = resolve("historyserver", flags, {})[0]
        for _ in range(2):
            with TestClient(create_app(dataclasses.replace(settings, index_ahead=False))) as server:
                answer = server.get(f"/s/{REF.path}/api/v0/tasks?limit=1000")
                assert answer.status_code == 200, answer.text
                assert answer.json()["data"]["result"]["num_filtered"] == 23
        assert "Contents" not in client.list_objects_v2(Bucket="kept", Prefix=LAYOUT.index_prefix(REF))
    manifests = (tmp_path / "cache/indexes" / LAYOUT.index_prefix(REF)).glob("manifest-*")
    assert [path.name for path in manifests] == ["manifest-1.json"]
