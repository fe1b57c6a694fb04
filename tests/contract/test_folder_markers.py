"""KubeRay's collectors write folder markers, empty objects `folder/`, which are folders and not objects."""

import asyncio
import secrets
from collections.abc import Iterator

import boto3
import pytest

from rayhistory.settings import SERVER, resolve
from rayhistory.storage import Store, open_store
from support.store_servers import seaweed as weed
from support.store_servers.bucket_double import Double, StoredObject, serving
from support.store_servers.gcs_double import GcsBucket
from support.store_servers.oss_double import KEY, REGION, SECRET, OssBucket

MARKERS = ("meta/", "meta/ns_cluster/", "empty/")
OBJECTS = ("meta/ns_cluster/session_1", "meta/ns_cluster/session_2", "other")


@pytest.fixture(params=["seaweed", "moto", "gcs", "oss"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store as KubeRay's collector writes it: sessions are empty objects too."""
    bucket = f"marks-{secrets.token_hex(8)}"
    if request.param in {"seaweed", "moto"}:
        endpoint = request.getfixturevalue(request.param)
        monkeypatch.setenv("S3_ENDPOINT", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", weed.KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", weed.SECRET)
        client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1",
            aws_access_key_id=weed.KEY, aws_secret_access_key=weed.SECRET,
        )  # fmt: skip
        client.create_bucket(Bucket=bucket)
        for key in MARKERS + OBJECTS:
            client.put_object(Bucket=bucket, Key=key, Body=b"")
        yield open_store(resolve(SERVER, {"setting_store": f"s3://{bucket}"})[0])
        return
    with serving(Double(GcsBucket if request.param == "gcs" else OssBucket, (bucket,))) as double:
        double.buckets[bucket] = {key: StoredObject(b"", 1e9, {}, 1) for key in MARKERS + OBJECTS}
        for name, value in {
            "STORAGE_EMULATOR_HOST": double.url, "OSS_ENDPOINT": double.url, "OSS_REGION": REGION,
            "OSS_ACCESS_KEY_ID": KEY, "OSS_ACCESS_KEY_SECRET": SECRET,
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        scheme = "gs" if request.param == "gcs" else "oss"
        yield open_store(resolve(SERVER, {"setting_store": f"{scheme}://{bucket}"})[0])


def test_folder_markers_are_not_objects(store: Store) -> None:
    async def work() -> None:
        assert [info.key async for info in store.list_all("meta")] == list(OBJECTS[:2])
        assert {info.key async for info in store.list_all("")} - {"empty"} == set(OBJECTS)
        top = await store.list_folder("")
        assert top.folders == ["empty", "meta"]
        assert [info.key for info in top.objects] == ["other"]
        inner = await store.list_folder("meta/ns_cluster")
        assert (inner.folders, [info.key for info in inner.objects]) == ([], list(OBJECTS[:2]))
        await store.close()

    asyncio.run(work())
