"""The policies of deploy/policies on SeaweedFS: each program works with its own, and may do nothing else."""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from string import Template

import boto3
import msgspec
import pytest

from rayhistory.cli.setup.check_result import CheckResult
from rayhistory.cli.setup.doctor import check_identity
from rayhistory.cli.setup.identity_checks import Identity
from rayhistory.errors import StoreDenied
from rayhistory.notify.notification import Notification
from rayhistory.notify.outbox import Outbox
from rayhistory.sessions import Layout
from rayhistory.settings import SERVER, Settings, resolve
from rayhistory.storage import Store, open_store
from support.collector_process import SESSION, CollectorProcess, FakeRay, event, eventually
from support.paths import ROOT
from support.store_servers import seaweed as weed

BUCKET = "least-privilege"
NOTIFICATION = Notification(id="1", kind="failed", namespace="default", cluster="c", session=SESSION)
BIN = Path(sys.executable).parent


def policy(name: str, namespace: str = "default", prefix: str = "") -> str:
    text = (ROOT / f"deploy/policies/s3/{name}.json").read_text()
    return Template(text).substitute(BUCKET=BUCKET, NAMESPACE=namespace, PREFIX=prefix)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    policies = {identity.value: policy(identity) for identity in Identity}
    policies["collector-of-logs"] = policy("collector", "logs")
    policies |= {f"prefixed-{identity}": policy(identity, prefix="a/prefix/") for identity in Identity}
    with weed.seaweedfs(tmp_path_factory.mktemp("seaweedfs"), policies) as endpoint:
        keys = {"aws_access_key_id": weed.KEY, "aws_secret_access_key": weed.SECRET}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield endpoint


def environment(endpoint: str, identity: str) -> dict[str, str]:
    return {
        "STORAGE_BACKEND": "s3", "S3_BUCKET": BUCKET, "S3_ENDPOINT": endpoint, "S3_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": identity, "AWS_SECRET_ACCESS_KEY": weed.SECRET,
    }  # fmt: skip


def settings_of(patch: pytest.MonkeyPatch, endpoint: str, identity: str) -> Settings:
    """Return settings from the environment, which the stores read as well."""
    for name, value in environment(endpoint, identity).items():
        patch.setenv(name, value)
    return resolve(SERVER, {})[0]


def doctor(endpoint: str, credentials: str, identity: Identity, namespace: str = "default") -> list[CheckResult]:
    with pytest.MonkeyPatch.context() as patch:
        return asyncio.run(check_identity(settings_of(patch, endpoint, credentials), identity, namespace))


@pytest.mark.parametrize("identity", list(Identity))
def test_policy_grants_what_the_program_needs_and_no_more(endpoint: str, identity: Identity) -> None:
    results = doctor(endpoint, identity, identity)
    assert [result.text for result in results if not result.passed] == []
    assert len(results) > 15


@pytest.mark.parametrize("identity", list(Identity))
def test_policy_with_a_prefix_grants_the_same_below_it(
    endpoint: str, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_ROOT_DIR", "a/prefix")
    results = doctor(endpoint, f"prefixed-{identity}", identity)
    assert [result.text for result in results if not result.passed] == []
    assert any("below a/prefix/" in result.text for result in results)


@pytest.mark.parametrize("identity", list(Identity))
@pytest.mark.parametrize("key", ["data-of-others", "ray-history/sessions/default/c/s/start.json", "a/prefixed"])
def test_policy_with_a_prefix_grants_nothing_outside_of_it(
    endpoint: str, identity: Identity, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention could otherwise delete the objects of others in the bucket."""
    settings = settings_of(monkeypatch, endpoint, f"prefixed-{identity}")

    async def attempt(operation: Callable[[Store], Awaitable[object]]) -> None:
        store = open_store(settings, writable=True)
        try:
            await operation(store)
        finally:
            await store.close()

    operations: list[Callable[[Store], Awaitable[object]]] = [
        lambda store: store.put(key, b"1"),
        lambda store: store.get_range(key, 0, 1),
        lambda store: store.delete(key),
    ]
    for operation in operations:
        with pytest.raises(StoreDenied):
            asyncio.run(attempt(operation))


def test_wider_credentials_are_noted(endpoint: str) -> None:
    results = doctor(endpoint, weed.KEY, Identity.COLLECTOR)
    failed = [result for result in results if not result.passed]
    assert [result.text for result in failed if result.required] == []
    assert "store: may delete below ray-history/logs/default/doctor/doctor/" in {result.text for result in failed}


def test_credentials_of_another_program_fail(endpoint: str) -> None:
    texts = [each.text for each in doctor(endpoint, "server", Identity.COLLECTOR) if not each.passed and each.required]
    assert any(text.startswith("store: write below cluster-history/raycluster/default/") for text in texts)


def test_collector_of_another_namespace_fails(endpoint: str) -> None:
    results = doctor(endpoint, "collector", Identity.COLLECTOR, "other")
    assert any(not result.passed and result.required and "/other/" in result.text for result in results)


def rayhistory(endpoint: str, identity: str, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    local = {"RAYHISTORY_CACHE_DIR": str(work / "cache"), "RAYHISTORY_VANISHED_AFTER": "100ms"}
    variables = os.environ | environment(endpoint, identity) | local
    return subprocess.run(
        [BIN / "rayhistory", *arguments], env=variables, capture_output=True, text=True, timeout=120, check=False
    )


def test_session_is_recorded_shown_and_removed_by_three_identities(
    endpoint: str, home: Path, ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session also ends and is resumed with a credential that deletes nothing."""
    settings = settings_of(monkeypatch, endpoint, "server")

    async def keys() -> list[str]:
        store = open_store(settings)
        try:
            return [info.key async for info in store.list_all("ray-history/sessions")]
        finally:
            await store.close()

    ray.start()
    collector = CollectorProcess(home, "--role=Head", **environment(endpoint, "collector"))
    for number in range(2):
        collector.start()
        assert collector.post([event(number)]).status_code == 200
        eventually(lambda: any(key.endswith("/alive") for key in asyncio.run(keys())), timeout_s=60)
        ray.stop()
        assert collector.terminate(60) == 0
        assert any(key.endswith("/end.json") for key in asyncio.run(keys()))
        ray.start()
    ray.stop()
    assert not [line for line in collector.log() if line["level"] == "error"]

    listed = rayhistory(endpoint, "server", tmp_path, "sessions", "--json")
    [session] = msgspec.json.decode(listed.stdout)
    assert (session["session"], session["state"]) == (SESSION, "ended")
    assert rayhistory(endpoint, "server", tmp_path, "index").returncode == 0
    listed = rayhistory(endpoint, "server", tmp_path, "retention", "--max-bytes", "1")
    assert (listed.returncode, SESSION in listed.stdout) == (0, True)
    refused = rayhistory(endpoint, "server", tmp_path, "retention", "--max-bytes", "1", "--yes")
    assert refused.returncode == 1
    removed = rayhistory(endpoint, "retention", tmp_path, "retention", "--max-bytes", "1", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert asyncio.run(keys()) == []


@pytest.mark.parametrize(
    ("credentials", "key"),
    [
        ("collector", f"ray-history/sessions/other/c/{SESSION}/start.json"),
        ("collector", f"cluster-history/raycluster/other/c/{SESSION}/node/logs/default/raylet.out"),
        ("collector", f"cluster-metadata/raycluster/other_c/default_{SESSION}"),
        ("collector-of-logs", f"cluster-history/raycluster/other/c/{SESSION}/node/logs/raylet.out"),
        ("collector-of-logs", f"cluster-history/rayjob/other/job/c/{SESSION}/node/logs/raylet.out"),
    ],
)
def test_collector_cannot_replace_sessions_of_other_namespaces(
    endpoint: str, credentials: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a folder of theirs has the name of its namespace."""
    settings = settings_of(monkeypatch, endpoint, credentials)

    async def write() -> None:
        store = open_store(settings, writable=True)
        try:
            await store.put(key, secrets.token_bytes(8))
        finally:
            await store.close()

    with pytest.raises(StoreDenied):
        asyncio.run(write())


def test_server_sends_notifications_with_its_policy(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch, endpoint, "server")

    async def queue_and_finish() -> int:
        store = open_store(settings, writable=True)
        outbox = Outbox(store, Layout())
        try:
            assert await outbox.known_sessions(lambda: ["a"]) == {"a"}
            assert await outbox.add("rule", NOTIFICATION)
            [entry] = await outbox.due(entry_time := time.time())
            await outbox.done(entry, "sent")
            await outbox.forget(entry_time + 10 * 365 * 86_400)
            return await outbox.waiting()
        finally:
            await store.close()

    assert asyncio.run(queue_and_finish()) == 0
