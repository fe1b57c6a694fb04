"""`rayhistory doctor` on real servers: allowed operations and missing permissions."""

import asyncio
import secrets
from collections.abc import Callable

import pytest

from rayhistory.cli.setup.check_result import CheckResult
from rayhistory.cli.setup.doctor import run_checks
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import open_store
from support.store_servers import seaweed as weed
from support.store_servers.bucket_double import Double, serving
from support.store_servers.gcs_double import GcsBucket

CheckStore = Callable[..., list[CheckResult]]


@pytest.fixture
def check_store(monkeypatch: pytest.MonkeyPatch) -> CheckStore:
    def store_checks(**environment: str) -> list[CheckResult]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        results = asyncio.run(run_checks(resolve(SERVER, {})[0]))
        return [result for result in results if result.text.startswith("store:")]

    return store_checks


def test_doctor_names_missing_permissions(check_store: CheckStore, seaweed: str) -> None:
    bucket = f"doctor-{secrets.token_hex(8)}"
    environment = {
        "RAYHISTORY_STORE": f"s3://{bucket}/prefix",
        "S3_ENDPOINT": seaweed,
        "AWS_SECRET_ACCESS_KEY": weed.SECRET,
    }
    [opened, missing] = check_store(**environment, AWS_ACCESS_KEY_ID=weed.KEY)
    assert opened.passed
    assert not missing.passed
    assert "s3:CreateBucket" in missing.hint

    async def collect() -> None:
        await open_store(resolve(SERVER, {})[0], writable=True).put("prefix/a", b"1")

    asyncio.run(collect())
    results = check_store(AWS_ACCESS_KEY_ID=weed.KEY)
    assert [result.text for result in results if not result.passed] == []
    assert len(results) == 7
    as_reader = {":".join(result.text.split(":")[:2]): result for result in check_store(AWS_ACCESS_KEY_ID=weed.READER)}
    assert as_reader["store: list sessions (0 found)"].passed
    for operation, permission in {
        "store: write objects": "s3:PutObject",
        "store: create objects only once": "s3:PutObject",
        "store: delete objects": "s3:DeleteObject",
    }.items():
        assert not as_reader[operation].passed
        assert permission in as_reader[operation].hint


def test_doctor_deletes_its_test_objects(check_store: CheckStore) -> None:
    with serving(Double(GcsBucket, ("bucket",))) as double:
        assert all(
            result.passed for result in check_store(RAYHISTORY_STORE="gs://bucket", STORAGE_EMULATOR_HOST=double.url)
        )
        assert double.buckets == {"bucket": {}}
