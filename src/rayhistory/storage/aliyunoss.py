"""Settings of Aliyun OSS. The client is alibabacloud-oss-v2, loaded only here, with V4 signatures.

The bucket must exist; as in KubeRay, it is not created.
"""

import importlib
import re
from collections.abc import Mapping
from typing import Any

from rayhistory.errors import InvalidSetting, UsageError
from rayhistory.settings import Settings
from rayhistory.storage.aliyunoss_credentials import find_credentials
from rayhistory.storage.aliyunoss_store import AliyunOssStore
from rayhistory.storage.config_sources import BackendConfig

_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]\Z")
_REGION = re.compile(r"[a-z]{2}-[a-z0-9-]+\Z")
_HOST = re.compile(r"(https?://)?[A-Za-z0-9.-]+(:\d{1,5})?/?\Z")


def open_aliyunoss(
    settings: Settings, *, writable: bool = False, environ: Mapping[str, str] | None = None
) -> AliyunOssStore:
    config = BackendConfig(settings, environ)
    bucket = config.bucket("OSS_BUCKET", "ossBucket")
    region = config.text("OSS_REGION", "ossRegion").removeprefix("oss-")
    endpoint = config.text("OSS_ENDPOINT", "ossEndpoint")
    if not _BUCKET.match(bucket):
        origin = config.bucket_origin("OSS_BUCKET", "ossBucket")
        raise InvalidSetting(
            f"{origin}={bucket}: invalid name, use 3 to 63 lower-case letters, digits and '-', "
            "with a letter or digit at both ends"
        )
    if not region:
        raise InvalidSetting("OSS_REGION is not set: set a region such as cn-hangzhou")
    if not _REGION.match(region):
        raise InvalidSetting(f"{config.origin('OSS_REGION', 'ossRegion')}={region}: use a region such as cn-hangzhou")
    if endpoint and not _HOST.match(endpoint):
        raise InvalidSetting(f"{config.origin('OSS_ENDPOINT', 'ossEndpoint')}={endpoint}: use a host or a URL")
    sdk = load_sdk()
    provider = find_credentials(config.environment)
    return AliyunOssStore(_client(sdk, region, endpoint, provider), sdk, bucket)


def load_sdk() -> Any:
    try:
        return importlib.import_module("alibabacloud_oss_v2")
    except ImportError:
        raise UsageError("the aliyunoss backend needs the OSS client: pip install 'rayhistory[oss]'") from None


def _client(sdk: Any, region: str, endpoint: str, provider: Any) -> Any:
    class Retryer(sdk.retry.StandardRetryer):  # type: ignore[misc]
        """The SDK's backoff with jitter, which also respects Retry-After."""

        def retry_delay(self, attempt: int, error: Exception) -> float:
            return max(float(super().retry_delay(attempt, error)), retry_after(error))

    config = sdk.config.load_default()
    config.region = region
    config.endpoint = endpoint.rstrip("/") or None
    config.credentials_provider = sdk.credentials.CredentialsProviderFunc(
        lambda: sdk.credentials.Credentials(*provider()),
    )
    config.retryer = Retryer(max_attempts=5, max_backoff=10.0)
    config.connect_timeout = 5
    config.readwrite_timeout = 60  # from byte to byte
    config.user_agent = "rayhistory"
    return sdk.Client(config)


def retry_after(error: Any) -> float:
    headers = getattr(error, "headers", None) or {}
    try:
        return min(60.0, float(headers.get("Retry-After", 0)))
    except ValueError:
        return 0.0
