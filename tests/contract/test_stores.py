"""The store contract suite for every backend."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayhistory.settings import SERVER, Settings, resolve
from rayhistory.storage import Store, open_store
from rayhistory.storage.contract_tests import StoreContract
from support.store_servers import seaweed as weed
from support.store_servers.azurite import connection_string
from support.store_servers.bucket_double import Double, serving
from support.store_servers.gcs_double import GcsBucket
from support.store_servers.oss_double import KEY, REGION, SECRET, OssBucket


class ConfiguredByEnvironment(StoreContract):
    """A store that is configured by environment variables, as in production."""

    settings: Settings

    def configure(self, monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        self.settings = resolve(SERVER, {})[0]

    def new_store(self) -> Store:
        return open_store(self.settings, writable=True)


class TestDirectory(ConfiguredByEnvironment):
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.configure(monkeypatch, STORAGE_BACKEND="local", LOCAL_STORAGE_DIR=str(tmp_path / "store"))


class TestSeaweedFS(ConfiguredByEnvironment):
    keeps_byte_order = False

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch, seaweed: str) -> None:
        bucket = f"contract-{secrets.token_hex(8)}"
        self.configure(
            monkeypatch, STORAGE_BACKEND="s3", S3_ENDPOINT=seaweed, S3_BUCKET=bucket, S3_REGION="us-east-1",
            AWS_ACCESS_KEY_ID=weed.KEY, AWS_SECRET_ACCESS_KEY=weed.SECRET,
        )  # fmt: skip


class TestMoto(ConfiguredByEnvironment):
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch, moto: str) -> None:
        url = f"s3://contract-{secrets.token_hex(8)}"
        self.configure(
            monkeypatch, RAYHISTORY_STORE=url, S3_ENDPOINT=moto, AWS_S3ID="old", AWS_S3SECRET="names"
        )  # fmt: skip


class TestAzurite(ConfiguredByEnvironment):
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch, azurite: str) -> None:
        self.configure(
            monkeypatch, STORAGE_BACKEND="azureblob", AZURE_STORAGE_CONTAINER=f"contract-{secrets.token_hex(8)}",
            AZURE_STORAGE_CONNECTION_STRING=connection_string(azurite),
        )  # fmt: skip


class TestGcsDouble(ConfiguredByEnvironment):
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with serving(Double(GcsBucket, ("a-bucket",))) as double:
            self.configure(
                monkeypatch, STORAGE_BACKEND="gcs", GCS_BUCKET="a-bucket", STORAGE_EMULATOR_HOST=double.url
            )  # fmt: skip
            yield


class TestOssDouble(ConfiguredByEnvironment):
    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with serving(Double(OssBucket, ("a-bucket",))) as double:
            self.configure(
                monkeypatch, STORAGE_BACKEND="aliyunoss", OSS_BUCKET="a-bucket", OSS_REGION=REGION,
                OSS_ENDPOINT=double.url, ALIBABA_CLOUD_ACCESS_KEY_ID=KEY, ALIBABA_CLOUD_ACCESS_KEY_SECRET=SECRET,
            )  # fmt: skip
            yield
