"""The stores of a campaign: a directory, and an S3 server behind a faulty relay."""

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from faults.store_faults import FaultyRelay, StoreFaultFile, faulty_relay
from support.store_servers.moto import moto

BUCKET = "scenarios"
_CREDENTIALS: dict[str, Any] = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
_NO_PROXIES = Config(proxies={})
"""Otherwise boto3 reads all variables of the environment, which pytest changes meanwhile in another thread."""


class DirectoryStore:
    kind = "directory"

    def __init__(self, home: Path) -> None:
        self._path = home / "store"
        self._path.mkdir()
        self._faults = StoreFaultFile(home / "store_faults")
        self.inject, self.clear, self.requests = self._faults.inject, self._faults.clear, 0
        self.environment = {
            "STORAGE_BACKEND": "local", "LOCAL_STORAGE_DIR": str(self._path), **self._faults.environment
        }  # fmt: skip

    def local_copy(self, *, settled: bool = False) -> Path:
        """Return a directory with all objects."""
        return self._path

    def remove(self, name: str) -> None:
        """Delete all objects of that name."""
        for path in self._path.rglob(name):
            path.unlink(missing_ok=True)

    @property
    def injected(self) -> Counter[str]:
        return self._faults.injected


class RelayedBucket:
    """A prefix of the bucket that no other scenario uses."""

    kind = "S3"

    def __init__(self, home: Path, relay: FaultyRelay, upstream: str) -> None:
        self._prefix = f"scenario-{secrets.token_hex(6)}"
        self._copy = home / "copy"
        self._relay = relay
        self._injected_before, self._requests_before = Counter(relay.injected), relay.requests
        self._client = boto3.client(
            "s3", endpoint_url=upstream, region_name="us-east-1", config=_NO_PROXIES, **_CREDENTIALS
        )
        self._etags: dict[str, str] = {}
        self.inject, self.clear = relay.inject, relay.clear
        self.environment = {
            "STORAGE_BACKEND": "s3", "RAYHISTORY_STORE": f"s3://{BUCKET}/{self._prefix}", "S3_ENDPOINT": relay.url,
            "S3_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        }  # fmt: skip

    @property
    def requests(self) -> int:
        return self._relay.requests - self._requests_before

    @property
    def injected(self) -> Counter[str]:
        return self._relay.injected - self._injected_before

    def local_copy(self, *, settled: bool = False) -> Path:
        """Return a directory with all objects. Downloads only changed objects.

        With `settled`, the store did not change meanwhile. Otherwise the copy could have the manifest of an index, and
        not its files, because the S3 server may change during a listing.
        """
        self._copy.mkdir(exist_ok=True)
        while not self._copy_objects() or (settled and self._list() != self._etags):
            pass
        return self._copy

    def _list(self) -> dict[str, str]:
        """Return the entity tags of all objects."""
        found: dict[str, str] = {}
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self._prefix}/"):
            found |= {each["Key"]: each["ETag"] for each in page.get("Contents", [])}
        return found

    def _copy_objects(self) -> bool:
        """Make the copy equal to a listing; False if an object was deleted after the listing."""
        found = self._list()
        for key in self._etags.keys() - found.keys():
            self._path(key).unlink()
            del self._etags[key]
        for key, etag in found.items():
            if self._etags.get(key) != etag:
                path = self._path(key)
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    path.write_bytes(self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
                except self._client.exceptions.NoSuchKey:
                    return False
                self._etags[key] = etag
        return True

    def remove(self, name: str) -> None:
        """Delete all objects of that name."""
        for path in self.local_copy().rglob(name):
            self._client.delete_object(Bucket=BUCKET, Key=f"{self._prefix}/{path.relative_to(self._copy)}")

    def _path(self, key: str) -> Path:
        return self._copy / key.removeprefix(f"{self._prefix}/")


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    with moto(directory) as endpoint:
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **_CREDENTIALS).create_bucket(Bucket=BUCKET)
        yield endpoint


class Stores:
    """Make the stores of scenarios that run one after the other and share a relay."""

    def __init__(self, upstream: str, relay: FaultyRelay) -> None:
        self._behind, self._relay = upstream, relay

    def make(self, kind: str, home: Path) -> DirectoryStore | RelayedBucket:
        return DirectoryStore(home) if kind == "directory" else RelayedBucket(home, self._relay, self._behind)


@contextmanager
def stores(upstream: str) -> Iterator[Stores]:
    with faulty_relay(upstream) as relay:
        yield Stores(upstream, relay)
