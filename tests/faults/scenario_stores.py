"""The two stores of a campaign, up all the time: a directory, and a real S3 server behind a relay that hurts."""

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from faults.weather import Notice, Relay, relayed
from storeservers.moto import moto

BUCKET = "days"
_SECRETS: dict[str, Any] = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}


class Directory:
    kind = "directory"

    def __init__(self, home: Path) -> None:
        self._path = home / "store"
        self._path.mkdir()
        self._notice = Notice(home / "weather")
        self.be, self.requests = self._notice.be, 0
        self.environment = {
            "STORAGE_BACKEND": "local", "LOCAL_STORAGE_DIR": str(self._path), **self._notice.environment
        }  # fmt: skip

    def look(self) -> Path:
        return self._path

    def remove(self, name: str) -> None:
        """All objects of that name."""
        for path in self._path.rglob(name):
            path.unlink(missing_ok=True)

    @property
    def hurt(self) -> Counter[str]:
        return self._notice.hurt


class Bucket:
    """A prefix of the bucket that no other day has."""

    kind = "S3"

    def __init__(self, home: Path, relay: Relay, behind: str) -> None:
        self._prefix = f"day-{secrets.token_hex(6)}"
        self._copy = home / "copy"
        self._relay = relay
        self._hurt_before, self._requests_before = Counter(relay.hurt), relay.requests
        self._client = boto3.client("s3", endpoint_url=behind, region_name="us-east-1", **_SECRETS)
        self._tags: dict[str, str] = {}
        self.be = relay.be
        self.environment = {
            "STORAGE_BACKEND": "s3", "RAYHISTORY_STORE": f"s3://{BUCKET}/{self._prefix}", "S3_ENDPOINT": relay.url,
            "S3_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        }  # fmt: skip

    @property
    def requests(self) -> int:
        return self._relay.requests - self._requests_before

    @property
    def hurt(self) -> Counter[str]:
        return self._relay.hurt - self._hurt_before

    def look(self) -> Path:
        """Only what has changed is fetched again; what is gone goes here too."""
        found: dict[str, str] = {}
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self._prefix}/"):
            found |= {each["Key"]: each["ETag"] for each in page.get("Contents", [])}
        for key in self._tags.keys() - found.keys():
            self._path(key).unlink()
        for key, tag in list(found.items()):
            if self._tags.get(key) != tag:
                path = self._path(key)
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    path.write_bytes(self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
                except self._client.exceptions.NoSuchKey:  # gone since the listing
                    del found[key]
        self._tags = found
        self._copy.mkdir(exist_ok=True)
        return self._copy

    def remove(self, name: str) -> None:
        """All objects of that name."""
        for path in self.look().rglob(name):
            self._client.delete_object(Bucket=BUCKET, Key=f"{self._prefix}/{path.relative_to(self._copy)}")

    def _path(self, key: str) -> Path:
        return self._copy / key.removeprefix(f"{self._prefix}/")


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    with moto(directory) as endpoint:
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **_SECRETS).create_bucket(Bucket=BUCKET)
        yield endpoint


class Stores:
    """For one day after the other: each has a relay of its own only if days are lived at the same time."""

    def __init__(self, behind: str, relay: Relay) -> None:
        self._behind, self._relay = behind, relay

    def make(self, kind: str, home: Path) -> Directory | Bucket:
        return Directory(home) if kind == "directory" else Bucket(home, self._relay, self._behind)


@contextmanager
def stores(behind: str) -> Iterator[Stores]:
    with relayed(behind) as relay:
        yield Stores(behind, relay)
