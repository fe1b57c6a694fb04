"""A collector process and an S3 server, with store faults injected between them."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from faults.collector_under_test import NODE, SESSION, CollectorUnderTest, Sender
from faults.stored_state import read_state
from support.store_servers.faulty import Fault, FaultyServer, faulty
from support.store_servers.moto import moto

FAULTS = (
    Fault(404, "NoSuchBucket"),
    Fault(403, "AccessDenied"),
    Fault(500),
    Fault(503, "SlowDown", (("Retry-After", "1"),)),
    Fault(429, "TooManyRequests", (("Retry-After", "1"),)),
    Fault(reset=True),
    Fault(reset=True, reaches_store=True),
    Fault(500, reaches_store=True),
    Fault(seconds_per_byte=0.01, reaches_store=True),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto(tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture
def relay(server: str) -> Iterator[FaultyServer]:
    with faulty(server) as relay:
        yield relay


def download(endpoint: str, bucket: str, to: Path) -> None:
    credentials: dict[str, Any] = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **credentials)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for each in page.get("Contents", []):
            path = to / each["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read())


def test_events_and_logs_survive_every_store_fault(relay: FaultyServer, server: str, tmp_path: Path) -> None:
    """Events are accepted during each fault, and stored once after the faults."""
    bucket = f"bucket-{secrets.token_hex(4)}"
    flags = ("--role=Head", "--event-rotation-interval=300ms", "--log-interval=300ms", f"--store=s3://{bucket}")
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "S3_ENDPOINT": relay.url}
    log = ""
    with CollectorUnderTest(*flags, spool=None, STORAGE_BACKEND="s3", S3_REGION="us-east-1", **keys) as collector:
        collector.start()
        with Sender(collector.port, 3, threads=1) as sender:
            for fault in FAULTS:
                relay.plan(always=fault)
                log += f"{fault}\n" * 1000
                (collector.home / SESSION / "logs" / "worker.out").write_text(log)
                accepted, since = sender.statuses.get(200, 0), time.monotonic()
                collector.wait_until(lambda since=since: len(relay.seen) > 2 and time.monotonic() > since + 1)
                collector.wait_until(lambda accepted=accepted: sender.statuses.get(200, 0) > accepted + 20)
                assert set(sender.statuses) == {200}
        relay.plan()
        collector.wait_until(lambda: not list(collector.spool.rglob("*.wal")), 90)
        assert collector.end() == 0
        download(server, bucket, tmp_path)
    state = read_state(tmp_path, sender.acked)
    assert not state.missing
    assert not state.duplicates
    assert (state.received, state.dropped) == (state.event_counts.total(), 0)
    (stored_log,) = tmp_path.rglob(f"{NODE}/logs/worker.out")
    assert stored_log.read_text() == log
