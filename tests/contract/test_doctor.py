"""`rayhistory doctor` on real servers: what may be done, and which permission is missing."""

import asyncio
import secrets
from collections.abc import Callable

import pytest

from rayhistory.cli.doctor import Finding, examine
from rayhistory.settings import SERVER, resolve
from rayhistory.storage import open_store
from storeservers import seaweed as weed
from storeservers.bucket_double import Double, serving
from storeservers.gcs_double import GcsBucket

Examine = Callable[..., list[Finding]]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Examine:
    def findings_about_the_store(**environment: str) -> list[Finding]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        findings = asyncio.run(examine(resolve(SERVER, {})[0]))
        return [finding for finding in findings if finding.what.startswith("store")]

    return findings_about_the_store


def test_the_doctor_finds_what_a_reader_may_not(examined: Examine, seaweed: str) -> None:
    bucket = f"doctor-{secrets.token_hex(8)}"
    place = {"RAYHISTORY_STORE": f"s3://{bucket}/prefix", "S3_ENDPOINT": seaweed, "AWS_SECRET_ACCESS_KEY": weed.SECRET}
    [opened, missing] = examined(**place, AWS_ACCESS_KEY_ID=weed.KEY)
    assert opened.good
    assert not missing.good
    assert "s3:CreateBucket" in missing.advice

    async def collect() -> None:
        await open_store(resolve(SERVER, {})[0], writable=True).put("prefix/a", b"1")

    asyncio.run(collect())
    findings = examined(AWS_ACCESS_KEY_ID=weed.KEY)
    assert [finding.what for finding in findings if not finding.good] == []
    assert len(findings) == 6
    wrong = {finding.what.partition(" failed")[0]: finding for finding in examined(AWS_ACCESS_KEY_ID=weed.READER)}
    assert wrong["store can be listed: 0 sessions"].good
    for what, permission in {
        "store: objects can be written": "s3:PutObject",
        "store: objects can be created, and only once": "s3:PutObject",
        "store: objects can be deleted": "s3:DeleteObject",
    }.items():
        assert not wrong[what].good
        assert permission in wrong[what].advice


def test_the_doctor_leaves_nothing_behind(examined: Examine) -> None:
    with serving(Double(GcsBucket, ("bucket",))) as double:
        assert all(f.good for f in examined(RAYHISTORY_STORE="gs://bucket", STORAGE_EMULATOR_HOST=double.url))
        assert double.buckets == {"bucket": {}}
