"""A session that retention removed from a versioned bucket comes back by the query of the guide."""

import re
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from rayhistory.sessions import SessionRef
from support import archived_sessions
from support.archived_sessions import OLD, StoreLocation, rayhistory, session_objects
from support.paths import DOCS
from support.store_servers import seaweed as weed

RESTORED = SessionRef("team-a", "recorded", OLD)
OTHER = SessionRef("team-a", "recorded", OLD.replace("2025", "2024"))


@pytest.fixture
def client(seaweed: str) -> Iterator[Any]:
    keys = {"aws_access_key_id": weed.KEY, "aws_secret_access_key": weed.SECRET}
    client = boto3.client("s3", endpoint_url=seaweed, region_name="us-east-1", **keys)
    yield client
    client.close()


def delete_markers(client: Any, bucket: str, session: str) -> list[list[str]]:
    """Return keys and versions that the query of the guide selects, as the command line of AWS does."""
    text = (DOCS / "how-to/kubernetes/production.md").read_text().replace("\\\n", " ")
    (query,) = re.findall(r'--query "(DeleteMarkers.*?)" \|', text)
    pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket)
    return [marker for marker in pages.search(query.replace("$SESSION", session)) if marker]


def test_removed_session_is_restored_from_its_versions(seaweed: str, client: Any) -> None:
    location = archived_sessions.bucket(seaweed, "a/root")
    bucket = location.url.split("/")[2]
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for ref in (RESTORED, OTHER):
        location.put(session_objects(location.layout, ref))
    before = objects_of_sessions(location)
    done = rayhistory(location, "retention", "--max-bytes", "1", "--vanished-after", "1ms", "--yes")
    assert done.returncode == 0, done.stderr
    assert objects_of_sessions(location) == {}
    for key, version in delete_markers(client, bucket, OLD):
        client.delete_object(Bucket=bucket, Key=key, VersionId=version)
    assert objects_of_sessions(location) == {key: data for key, data in before.items() if OLD in key}
    listed = rayhistory(location, "sessions").stdout
    assert (OLD in listed, OTHER.session in listed) == (True, False)


def objects_of_sessions(location: StoreLocation) -> dict[str, bytes]:
    derived = ("/index/", "/runs/")
    return {key: data for key, data in location.objects().items() if not any(each in key for each in derived)}
