"""A writer of one namespace stores objects with keys that no listing can parse. It hides only its own sessions."""

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from rayhistory.archive.retention import RetentionPolicy
from rayhistory.archive.retention_scan import RetentionScan
from rayhistory.archive.session_objects import list_owners
from rayhistory.errors import InvalidKeyInStore
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import Store, open_store
from support.store_servers import seaweed as weed

LAYOUT = Layout()
NAMES = [f"session_2026-11-15_19-18-0{number}_055078_15551" for number in range(3)]
OTHER, OWN, ATTACKED = (
    SessionRef(*names, NAMES[number])
    for number, names in enumerate([("team-b", "other"), ("team-a", "own"), ("team-a", "bad")])
)
INVALID_KEYS = {
    "empty name in a session": f"{LAYOUT.records_prefix(ATTACKED)}//x",
    "two points in a session": f"{LAYOUT.records_prefix(ATTACKED)}/../x",
    "control character in a session": f"{LAYOUT.records_prefix(ATTACKED)}/a\x01b",
    "empty name in a cluster": f"ray-history/sessions/team-a/{ATTACKED.cluster}//x",
    "empty name in a cluster of KubeRay": f"cluster-metadata/raycluster/team-a_{ATTACKED.cluster}//x",
}


@pytest.fixture
def bucket(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """A client of a bucket with three sessions, and the name of the bucket."""
    name = f"keys-{secrets.token_hex(8)}"
    for variable, value in {
        "S3_ENDPOINT": moto, "AWS_ACCESS_KEY_ID": weed.KEY, "AWS_SECRET_ACCESS_KEY": weed.SECRET,
    }.items():  # fmt: skip
        monkeypatch.setenv(variable, value)
    client = boto3.client(
        "s3", endpoint_url=moto, region_name="us-east-1",
        aws_access_key_id=weed.KEY, aws_secret_access_key=weed.SECRET,
    )  # fmt: skip
    client.create_bucket(Bucket=name)
    for ref in (OTHER, OWN, ATTACKED):
        for key in (LAYOUT.start_key(ref), LAYOUT.end_key(ref), LAYOUT.metadata_key(ref)):
            client.put_object(Bucket=name, Key=key, Body=b"{}")
    yield client, name


def opened(name: str) -> Store:
    return open_store(resolve(SERVER, {"setting_store": f"s3://{name}"})[0])


@pytest.mark.parametrize("where", INVALID_KEYS)
def test_invalid_key_hides_no_session_of_others(bucket: tuple[Any, str], where: str) -> None:
    """One such object made the listing of all sessions fail, so that the server answered everybody with 503."""
    client, name = bucket
    client.put_object(Bucket=name, Key=INVALID_KEYS[where], Body=b"")

    async def work() -> None:
        store = opened(name)
        catalog = SessionCatalog(store, LAYOUT, vanished_after=120)
        assert {OTHER, OWN} <= {entry.ref for entry in await catalog.entries()}
        assert (await catalog.find("team-b", "other", "latest")).ref == OTHER
        await list_owners(store, LAYOUT)
        await store.close()

    asyncio.run(work())


def test_retention_goes_on_with_other_sessions(bucket: tuple[Any, str]) -> None:
    client, name = bucket
    client.put_object(Bucket=name, Key=f"{LAYOUT.history_prefix(ATTACKED)}//x", Body=b"")

    async def work() -> None:
        store = opened(name)
        catalog = SessionCatalog(store, LAYOUT, vanished_after=120)
        scan = RetentionScan(store, LAYOUT, catalog, 120, 2e9)
        found, total = await scan.candidates(RetentionPolicy(max_bytes=1), {})
        assert ({candidate.ref for candidate in found}, total) == ({OTHER, OWN}, 3)
        await store.close()

    asyncio.run(work())


def test_listing_that_has_an_invalid_key_itself_is_an_error(bucket: tuple[Any, str]) -> None:
    """An empty list would say that there are no sessions."""
    client, name = bucket
    client.put_object(Bucket=name, Key=f"{LAYOUT.sessions_prefix()}//x", Body=b"")

    async def work() -> None:
        store = opened(name)
        with pytest.raises(InvalidKeyInStore):
            await SessionCatalog(store, LAYOUT, vanished_after=120).entries()
        await store.close()

    asyncio.run(work())
