"""Settings of each backend: KubeRay's variables and JSON keys of both generations, and the store URL."""

import asyncio
import importlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayhistory.errors import InvalidSetting, UsageError
from rayhistory.settings import COLLECTOR, SERVER, resolve
from rayhistory.storage import Store, open_store
from support.store_servers import seaweed as weed

STATIC = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
S3 = {"STORAGE_BACKEND": "s3", **STATIC}
AZURE = {"STORAGE_BACKEND": "azureblob"}
OSS = {"STORAGE_BACKEND": "aliyunoss", "OSS_BUCKET": "bucket", "OSS_REGION": "cn-hangzhou"}
ACCOUNT = {**AZURE, "AZURE_STORAGE_ACCOUNT_URL": "https://acct.blob.core.windows.net"}
RRSA = {
    "ALIBABA_CLOUD_ROLE_ARN": "r",
    "ALIBABA_CLOUD_OIDC_PROVIDER_ARN": "p",
    "ALIBABA_CLOUD_OIDC_TOKEN_FILE": "/no/file",
}

Open = Callable[..., Store]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Open:
    def with_environment(environment: dict[str, str]) -> Store:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return open_store(resolve(SERVER, {})[0])

    return with_environment


def client_of(store: Any) -> Any:
    return store._client


INVALID_SETTINGS = {
    "S3_BUCKET=My_Bucket": {**S3, "S3_BUCKET": "My_Bucket"},
    "S3_ENDPOINT=http://a/b/c": {**S3, "S3_ENDPOINT": "http://a/b/c"},
    "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not": {"STORAGE_BACKEND": "s3", "AWS_ACCESS_KEY_ID": "key"},
    "AWS_S3ID is set, but AWS_S3SECRET is not": {"STORAGE_BACKEND": "s3", "AWS_S3ID": "key"},
    "AWS_WEB_IDENTITY_TOKEN_FILE=/no/file": {"STORAGE_BACKEND": "s3", "AWS_WEB_IDENTITY_TOKEN_FILE": "/no/file"},
    "AWS_PROFILE=nobody": {"STORAGE_BACKEND": "s3", "AWS_PROFILE": "nobody"},
    "STORAGE_BACKEND_CONFIG_PATH=/no/file": {**S3, "STORAGE_BACKEND_CONFIG_PATH": "/no/file"},
    "GCS_BUCKET is not set": {"STORAGE_BACKEND": "gcs"},
    "GOOGLE_APPLICATION_CREDENTIALS=/no/file": {
        "STORAGE_BACKEND": "gcs", "GCS_BUCKET": "bucket", "GOOGLE_APPLICATION_CREDENTIALS": "/no/file",
    },
    "AZURE_STORAGE_CONTAINER=No": {**AZURE, "AZURE_STORAGE_CONTAINER": "No"},
    "no storage account configured: set AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT_URL": AZURE,
    "AZURE_STORAGE_CONNECTION_STRING is incomplete": {**AZURE, "AZURE_STORAGE_CONNECTION_STRING": "AccountName=x"},
    "AZURE_STORAGE_CONNECTION_STRING is not set": {**ACCOUNT, "AZURE_STORAGE_AUTH_MODE": "Connection_String "},
    "AZURE_STORAGE_ACCOUNT_URL is not set": {**AZURE, "AZURE_STORAGE_AUTH_MODE": "default"},
    "AZURE_CLIENT_ID is not set": {**ACCOUNT, "AZURE_STORAGE_AUTH_MODE": "workload_identity"},
    "AZURE_STORAGE_ACCOUNT_URL=acct": {**AZURE, "AZURE_STORAGE_ACCOUNT_URL": "acct"},
    "OSS_REGION is not set": {**OSS, "OSS_REGION": ""},
    "OSS_REGION=Hangzhou": {**OSS, "OSS_REGION": "Hangzhou"},
    "OSS_BUCKET is not set": {**OSS, "OSS_BUCKET": ""},
    "ALIBABA_CLOUD_ROLE_ARN is set, but ALIBABA_CLOUD_OIDC_PROVIDER_ARN is not": {**OSS, "ALIBABA_CLOUD_ROLE_ARN": "r"},
    "ALIBABA_CLOUD_OIDC_TOKEN_FILE=/no/file": {**OSS, **RRSA},
    "but ALIBABA_CLOUD_ACCESS_KEY_SECRET is not: set both": {**OSS, "ALIBABA_CLOUD_ACCESS_KEY_ID": "key"},
    "unknown storage backend 'tape': use one of aliyunoss, azureblob, gcs, local, localtest, s3": {
        "STORAGE_BACKEND": "tape",
    },
    "unknown storage backend 'tape'": {"RAYHISTORY_STORE": "tape://reel"},
    "RAYHISTORY_STORE=s3://: the bucket is missing": {"RAYHISTORY_STORE": "s3://"},
    "RAYHISTORY_STORE=file://dir: use file:///directory": {"RAYHISTORY_STORE": "file://dir"},
    "RAYHISTORY_STORE=s3://k@bucket: set credentials": {"RAYHISTORY_STORE": "s3://k@bucket"},
    "--store=s3://bucket and STORAGE_BACKEND=gcs contradict": {
        "RAYHISTORY_STORE": "s3://bucket", "STORAGE_BACKEND": "gcs",
    },
    "--store=s3://bucket/a and STORAGE_ROOT_DIR=b contradict": {
        "RAYHISTORY_STORE": "s3://bucket/a", "STORAGE_ROOT_DIR": "b",
    },
    "--store=s3://bucket and S3_BUCKET=other contradict": {
        **STATIC, "RAYHISTORY_STORE": "s3://bucket", "S3_BUCKET": "other",
    },
    "--store=file:///a and LOCAL_STORAGE_DIR=/b contradict": {
        "RAYHISTORY_STORE": "file:///a", "LOCAL_STORAGE_DIR": "/b",
    },
}  # fmt: skip


@pytest.mark.parametrize("message", INVALID_SETTINGS)
def test_invalid_setting_is_reported_at_start_in_one_line(opened: Open, message: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        opened(INVALID_SETTINGS[message])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


URLS = {
    "s3://bucket/some/prefix/": ("s3", "some/prefix", "s3://bucket"),
    "gs://bucket/prefix": ("gcs", "prefix", "gs://bucket"),
    "az://container": ("azureblob", "", "az://container"),
    "oss://bucket/p": ("aliyunoss", "p", "oss://bucket"),
}


@pytest.mark.parametrize("url", URLS)
def test_store_url_sets_backend_bucket_and_prefix(opened: Open, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_store = opened(
        {
            "RAYHISTORY_STORE": url, **STATIC, "GOOGLE_BEARER_TOKEN": "t", "OSS_REGION": "oss-cn-hangzhou",
            "OSS_ACCESS_KEY_ID": "k", "OSS_ACCESS_KEY_SECRET": "s",
            "AZURE_STORAGE_ACCOUNT_URL": "https://acct.blob.core.windows.net",
        }
    )  # fmt: skip
    backend, prefix, shown = URLS[url]
    settings, _ = resolve(COLLECTOR, {})
    assert (settings.storage_backend, settings.storage_root_dir, opened_store.url) == (backend, prefix, shown)
    # Repeating the same value is valid: `rayhistory run` passes its settings to the collector by variables.
    resolve(COLLECTOR, {}, {"RAYHISTORY_STORE": url, "STORAGE_BACKEND": backend, "STORAGE_ROOT_DIR": prefix})


def test_store_accepts_directories_and_file_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (f"file://{tmp_path}", str(tmp_path)):
        settings, _ = resolve(SERVER, {"setting_store": text}, {})
        assert (settings.storage_backend, settings.local_storage_dir) == ("local", str(tmp_path))
        assert open_store(settings).url == f"file://{tmp_path}"


S3_ENDPOINTS = {
    "minio:9000": ({"S3_ENDPOINT": "minio:9000", "S3DISABLE_SSL": "true"}, "http://minio:9000", False),
    "path style": ({"S3_ENDPOINT": "https://minio", "S3FORCE_PATH_STYLE": "true"}, "https://minio", False),
    "virtual host": ({"S3_ENDPOINT": "https://ceph", "S3FORCE_PATH_STYLE": "false"}, "https://bucket.ceph", True),
    "aws": ({"S3_REGION": "eu-west-1"}, None, True),
    "aws, path style": ({"S3_REGION": "eu-west-1", "S3FORCE_PATH_STYLE": "true"}, None, False),
}


@pytest.mark.parametrize("case", S3_ENDPOINTS)
def test_kuberay_variables_set_the_s3_endpoint(opened: Open, case: str) -> None:
    environment, endpoint, virtual = S3_ENDPOINTS[case]
    config = client_of(opened({**S3, "S3_BUCKET": "bucket", **environment})).config
    assert config.get("endpoint") == endpoint
    assert config.get("virtual_hosted_style_request", "false") == str(virtual).lower()
    assert config.get("region", "eu-west-1") == "eu-west-1"


def test_json_file_replaces_variables_as_in_kuberay(opened: Open, tmp_path: Path) -> None:
    """The bucket variable still counts if the file has no bucket. Strings and booleans are both accepted."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"s3Endpoint": "minio:9000", "s3DisableSSL": True, "s3ForcePathStyle": "true"}))
    environment = {"STORAGE_BACKEND_CONFIG_PATH": str(path), "S3_REGION": "ignored", "S3_BUCKET": "bucket"}
    store = opened({**S3, **environment})
    assert store.url == "s3://bucket"
    assert client_of(store).config["endpoint"] == "http://minio:9000"
    assert client_of(store).config.get("region") != "ignored"
    path.write_text('{"s3Bucket": 7}')
    with pytest.raises(InvalidSetting, match=r"s3Bucket in .*config.json: use a string, not 7"):
        opened({})
    path.write_text("[]")
    with pytest.raises(InvalidSetting, match=r"STORAGE_BACKEND_CONFIG_PATH=.*: not a JSON object"):
        opened({})


def test_other_backends_read_their_json_keys(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "gcsBucket": "from-json", "azureContainer": "from-json", "azureAccountURL": "https://a.blob.core.windows.net",
                "ossBucket": "from-json", "ossRegion": "cn-beijing", "ossEndpoint": "oss-cn-beijing.aliyuncs.com",
            }
        )
    )  # fmt: skip
    environment = {
        "RUNTIME_CLASS_CONFIG_PATH": str(path), "GCS_BUCKET": "from-env", "GOOGLE_BEARER_TOKEN": "t",
        "OSS_ACCESS_KEY_ID": "k", "OSS_ACCESS_KEY_SECRET": "s",
    }  # fmt: skip
    for name, url in (("gcs", "gs"), ("azureblob", "az"), ("aliyunoss", "oss")):
        assert opened({**environment, "RUNTIME_CLASS_NAME": name}).url == f"{url}://from-json"


def test_oss_backend_without_client_names_the_package(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def import_without_client(name: str, package: str | None = None) -> Any:
        if name == "alibabacloud_oss_v2":
            raise ModuleNotFoundError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", import_without_client)
    with pytest.raises(UsageError, match=r"pip install 'rayhistory\[oss\]'"):
        opened(OSS)


def test_write_without_permission_names_the_operation(seaweed: str, opened: Open) -> None:
    """A real server denies the write; the error has one line."""
    from rayhistory.errors import StoreDenied

    bucket = f"denied-{secrets.token_hex(8)}"
    environment = {**S3, "S3_ENDPOINT": seaweed, "S3_BUCKET": bucket, "AWS_SECRET_ACCESS_KEY": weed.SECRET}

    async def work() -> None:
        writer = open_store_with({**environment, "AWS_ACCESS_KEY_ID": weed.KEY}, opened)
        await writer.put("there", b"1")
        reader = opened({**environment, "AWS_ACCESS_KEY_ID": weed.READER})
        assert await reader.get("there") == b"1"
        with pytest.raises(
            StoreDenied, match=r"s3://denied-\w+ \(put\): new: access denied \(403 AccessDenied"
        ) as raised:
            await reader.put("new", b"")
        assert "\n" not in str(raised.value)
        unknown = opened({**environment, "AWS_ACCESS_KEY_ID": "nobody"})
        with pytest.raises(StoreDenied):
            await unknown.list_folder("")

    asyncio.run(work())


def open_store_with(environment: dict[str, str], opened: Open) -> Store:
    opened(environment)
    return open_store(resolve(SERVER, {})[0], writable=True)
