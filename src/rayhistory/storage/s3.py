"""S3 and compatible stores: MinIO, Ceph, SeaweedFS, R2.

Credentials: static ones from the environment (both generations of KubeRay's variables), a profile file, web identity
(IRSA), pod identity, and the role of the container or instance.
"""

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from rayhistory.errors import InvalidSetting, StoreDenied, StoreUnavailable
from rayhistory.settings import Settings
from rayhistory.storage.cloud import CloudStore, CreateBucket, client_options, retry_config
from rayhistory.storage.config_sources import BackendConfig
from rayhistory.storage.s3_profile import read_profile

if TYPE_CHECKING:
    from obstore.store import S3Config

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_HOST = re.compile(r"(https?://)?([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?/?\Z")


def open_s3(settings: Settings, *, writable: bool = False, environ: Mapping[str, str] | None = None) -> CloudStore:
    config = BackendConfig(settings, environ)
    bucket = config.bucket("S3_BUCKET", "s3Bucket", "ray-historyserver")
    if not _BUCKET.match(bucket):
        origin = config.bucket_origin("S3_BUCKET", "s3Bucket")
        raise InvalidSetting(
            f"{origin}={bucket}: invalid name, use 3 to 63 lower-case letters, digits, '-' and '.', "
            "with a letter or digit at both ends"
        )
    options = _credentials(config) | _endpoint_options(config, bucket)
    try:
        client = S3Store(
            bucket,
            config=options,
            client_options=client_options(allow_http=options.get("endpoint", "").startswith("http://")),
            retry_config=retry_config(),
        )
    except (BaseError, ValueError) as error:
        raise InvalidSetting(f"invalid S3 settings: {str(error).splitlines()[0]}") from None
    return CloudStore(client, f"s3://{bucket}", _bucket_creator(client, bucket) if writable else None)


def _endpoint_options(config: BackendConfig, bucket: str) -> "S3Config":
    """Return endpoint, region and addressing style. As in KubeRay, a JSON file replaces the variables S3_*."""
    endpoint, region, path_style, no_tls = (
        config.text(variable, key, json_replaces_environment=True)
        for variable, key in (
            ("S3_ENDPOINT", "s3Endpoint"),
            ("S3_REGION", "s3Region"),
            ("S3FORCE_PATH_STYLE", "s3ForcePathStyle"),
            ("S3DISABLE_SSL", "s3DisableSSL"),
        )
    )
    options: S3Config = {}
    region = region or config.environment("AWS_REGION") or config.environment("AWS_DEFAULT_REGION")
    if region:
        options["region"] = region
    endpoint = endpoint or config.environment("AWS_ENDPOINT_URL_S3") or config.environment("AWS_ENDPOINT_URL")
    is_aws = not endpoint or "amazonaws.com" in endpoint
    # Outside AWS, buckets seldom have a host name, so path style is the default.
    virtual = path_style != "true" if is_aws else path_style == "false"
    if endpoint:
        match = _HOST.match(endpoint)
        if not match:
            raise InvalidSetting(f"{config.origin('S3_ENDPOINT', 's3Endpoint')}={endpoint}: use host:port or a URL")
        scheme = match[1] or ("http://" if no_tls == "true" else "https://")
        host = match[2] + (match[3] or "")
        options["endpoint"] = f"{scheme}{bucket}.{host}" if virtual else scheme + host
    if virtual and "." not in bucket:  # a certificate for *.s3.… does not cover a bucket with dots
        options["virtual_hosted_style_request"] = True
    return options


def _credentials(config: BackendConfig) -> "S3Config":
    """Return static credentials if there are any. obstore handles all other kinds by AWS's variables."""
    for names in (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        ("AWS_S3ID", "AWS_S3SECRET", "AWS_S3TOKEN"),
    ):
        key, secret, token = map(config.environment, names)
        if key and not secret:
            raise InvalidSetting(f"{names[0]} is set, but {names[1]} is not: set both")
        if key:
            return _static(key, secret, token)
    token_file = config.environment("AWS_WEB_IDENTITY_TOKEN_FILE")
    if token_file and not Path(token_file).is_file():
        raise InvalidSetting(f"AWS_WEB_IDENTITY_TOKEN_FILE={token_file}: no such file")
    if token_file or config.environment("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return {}
    profile = read_profile(config.environment)
    return {} if profile is None else _static(*profile)


def _static(key: str, secret: str, token: str) -> "S3Config":
    options: S3Config = {"access_key_id": key, "secret_access_key": secret}
    if token:
        options["session_token"] = token
    return options


def _bucket_creator(client: S3Store, bucket: str) -> CreateBucket:
    """Return a function that creates the bucket, as KubeRay's collector does. obstore only signs the request."""

    def create() -> None:
        url = obstore.sign(client, "PUT", "", timedelta(minutes=1))
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60):  # noqa: S310
                return
        except urllib.error.HTTPError as error:
            if error.code == 409:  # created by another process meanwhile
                return
            if error.code in {401, 403}:
                raise StoreDenied(
                    f"bucket {bucket} does not exist, and creating it is denied: create it, or grant s3:CreateBucket"
                ) from None
            raise StoreUnavailable(f"bucket {bucket} does not exist and cannot be created ({error})") from None
        except (OSError, BaseError) as error:
            raise StoreUnavailable(f"bucket {bucket} cannot be created: {str(error).splitlines()[0]}") from None

    return lambda: asyncio.to_thread(create)
