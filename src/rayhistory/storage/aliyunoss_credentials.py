"""Aliyun credentials: static ones, a role by OIDC (RRSA, as in KubeRay), or the RAM role of the instance."""

import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from rayhistory.errors import InvalidSetting

Keys = tuple[str, str, str | None, datetime | None]
"""Access key id, secret, token and expiry."""

_STATIC = (
    ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN"),
    ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_SESSION_TOKEN"),
)
_RRSA = ("ALIBABA_CLOUD_ROLE_ARN", "ALIBABA_CLOUD_OIDC_PROVIDER_ARN", "ALIBABA_CLOUD_OIDC_TOKEN_FILE")
_METADATA_URL = "http://100.100.100.200"
_REFRESH_BEFORE_EXPIRY = timedelta(minutes=5)


def find_credentials(environment: Callable[[str], str]) -> Callable[[], Keys]:
    """Return a function that returns keys, for the first configured kind of credentials.

    Raise InvalidSetting if this kind is configured incompletely.
    """
    for names in _STATIC:
        key, secret, token = map(environment, names)
        if key and not secret:
            raise InvalidSetting(f"{names[0]} is set, but {names[1]} is not: set both")
        if key:
            return lambda: (key, secret, token or None, None)
    given = [name for name in _RRSA if environment(name)]
    missing = [name for name in _RRSA if not environment(name)]
    if given and missing:
        raise InvalidSetting(f"{given[0]} is set, but {missing[0]} is not: set both")
    if given:
        path = environment(_RRSA[2])
        if not Path(path).is_file():
            raise InvalidSetting(f"{_RRSA[2]}={path}: no such file")
        return _CachedKeys(lambda: _assume_role(environment))
    if environment("ALIBABA_CLOUD_ECS_METADATA_DISABLED") == "true":
        raise InvalidSetting(f"no OSS credentials: set {_RRSA[0]}, {_RRSA[1]} and {_RRSA[2]}, or {_STATIC[0][0]}")
    return _CachedKeys(lambda: _instance_role(environment))


class _CachedKeys:
    """Refreshes keys shortly before they expire. One thread refreshes, the others wait."""

    def __init__(self, fetch: Callable[[], Keys]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._keys: Keys | None = None

    def __call__(self) -> Keys:
        with self._lock:
            expiry = self._keys[3] if self._keys else None
            if self._keys is None or (expiry is not None and datetime.now(UTC) > expiry - _REFRESH_BEFORE_EXPIRY):
                self._keys = self._fetch()
            return self._keys


class _Credentials(msgspec.Struct, rename="pascal"):
    access_key_id: str
    access_key_secret: str
    security_token: str
    expiration: datetime


class _Assumed(msgspec.Struct, rename="pascal"):
    credentials: _Credentials


def _assume_role(environment: Callable[[str], str]) -> Keys:
    role, provider, path = map(environment, _RRSA)
    region = environment("ALIBABA_CLOUD_STS_REGION")
    host = environment("ALIBABA_CLOUD_STS_ENDPOINT") or (f"sts.{region}.aliyuncs.com" if region else "sts.aliyuncs.com")
    query = {
        "Action": "AssumeRoleWithOIDC",
        "Version": "2015-04-01",
        "Format": "JSON",
        "Timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "SignatureNonce": secrets.token_hex(16),
    }
    form = {
        "RoleArn": role,
        "OIDCProviderArn": provider,
        "OIDCToken": Path(path).read_text().strip(),
        "RoleSessionName": environment("ALIBABA_CLOUD_ROLE_SESSION_NAME") or "rayhistory",
        "DurationSeconds": "3600",
    }
    url = f"{host if '://' in host else f'https://{host}'}/?{urlencode(query)}"
    return _keys(msgspec.json.decode(_request(url, data=urlencode(form).encode()), type=_Assumed).credentials)


def _instance_role(environment: Callable[[str], str]) -> Keys:
    base = environment("ALIBABA_CLOUD_ECS_METADATA_ENDPOINT") or _METADATA_URL
    ttl = {"X-aliyun-ecs-metadata-token-ttl-seconds": "600"}
    token = _request(f"{base}/latest/api/token", method="PUT", headers=ttl).decode()
    headers = {"X-aliyun-ecs-metadata-token": token}
    roles = f"{base}/latest/meta-data/ram/security-credentials/"
    role = environment("ALIBABA_CLOUD_ECS_METADATA") or _request(roles, headers=headers).decode().strip()
    return _keys(msgspec.json.decode(_request(roles + role, headers=headers), type=_Credentials))


def _keys(found: _Credentials) -> Keys:
    return found.access_key_id, found.access_key_secret, found.security_token, found.expiration


def _request(
    url: str, *, data: bytes | None = None, method: str | None = None, headers: dict[str, str] | None = None
) -> bytes:
    request = urllib.request.Request(url, data=data, method=method, headers=headers or {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError as error:
        raise OSError(f"{request.host}: {error.code} {error.read()[:200].decode(errors='replace')}") from None
    except urllib.error.URLError as error:
        raise OSError(f"{request.host}: {error.reason}") from None
