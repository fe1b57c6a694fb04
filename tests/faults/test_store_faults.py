"""The whole collector before a real S3 server, with everything between them that can go wrong."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from faults.verdict import judge
from faults.victim import NODE, SESSION, Sender, Victim
from storeservers.faulty import Fault, FaultyServer, faulty
from storeservers.moto import moto

FAULTS = (
    Fault(404, "NoSuchBucket"),
    Fault(403, "AccessDenied"),
    Fault(500),
    Fault(503, "SlowDown", (("Retry-After", "1"),)),
    Fault(429, "TooManyRequests", (("Retry-After", "1"),)),
    Fault(reset=True),
    Fault(reset=True, reaches_the_store=True),
    Fault(500, reaches_the_store=True),
    Fault(seconds_per_byte=0.01, reaches_the_store=True),
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
    secret: dict[str, Any] = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **secret)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for each in page.get("Contents", []):
            path = to / each["Key"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read())


def test_whatever_the_store_does_everything_is_there_in_the_end(
    relay: FaultyServer, server: str, tmp_path: Path
) -> None:
    """Events are taken all the while, and come to the store once when it is well again."""
    bucket = f"bucket-{secrets.token_hex(4)}"
    flags = ("--role=Head", "--event-rotation-interval=300ms", "--log-interval=300ms", f"--store=s3://{bucket}")
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "S3_ENDPOINT": relay.url}
    log = ""
    with Victim(*flags, STORAGE_BACKEND="s3", S3_REGION="us-east-1", **keys) as victim:
        victim.start()
        with Sender(victim.port, 3, threads=1) as sender:
            for fault in FAULTS:
                relay.plan(always=fault)
                log += f"{fault}\n" * 1000
                (victim.home / SESSION / "logs" / "worker.out").write_text(log)
                taken, since = sender.statuses.get(200, 0), time.monotonic()
                victim.until(lambda since=since: len(relay.seen) > 2 and time.monotonic() > since + 1)
                victim.until(lambda taken=taken: sender.statuses.get(200, 0) > taken + 20)
                assert set(sender.statuses) == {200}
        relay.plan()
        victim.until(lambda: not list(victim.spool.rglob("*.wal")), 90)
        assert victim.end() == 0
        download(server, bucket, tmp_path)
    verdict = judge(tmp_path, sender.acked)
    assert not verdict.missing
    assert not verdict.twice
    assert (verdict.received, verdict.dropped) == (verdict.stored.total(), 0)
    (kept,) = tmp_path.rglob(f"{NODE}/logs/worker.out")
    assert kept.read_text() == log
