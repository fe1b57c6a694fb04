"""Create a missing Azure container, as KubeRay's collector does. obstore has no call for it."""

import asyncio
import base64
import hashlib
import hmac
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlencode, urlsplit

import msgspec

from rayhistory.errors import StoreDenied, StoreUnavailable
from rayhistory.storage.cloud import CreateBucket

if TYPE_CHECKING:
    from obstore.store import AzureConfig

_API_VERSION = "2023-11-03"
_PERMISSION = "Microsoft.Storage/storageAccounts/blobServices/containers/write"


def container_creator(options: "AzureConfig", container: str, environment: Callable[[str], str]) -> CreateBucket:
    def create() -> None:
        url = f"{options.get('endpoint', '')}/{container}?restype=container"
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-version": _API_VERSION, "x-ms-date": date, "Content-Length": "0"}
        if key := options.get("account_key"):
            headers["Authorization"] = _shared_key(options.get("account_name", ""), key, container, url, date)
        elif signature := options.get("sas_key"):
            url += f"&{signature}"
        else:
            headers["Authorization"] = f"Bearer {_federated_token(container, environment)}"
        try:
            _send(urllib.request.Request(url, method="PUT", headers=headers))  # noqa: S310
        except urllib.error.HTTPError as error:
            if error.code != 409:  # ContainerAlreadyExists: created by another process meanwhile
                _raise_not_created(container, f"{error.code} {error.headers.get('x-ms-error-code', '')}", error.code)

    return lambda: asyncio.to_thread(create)


def _shared_key(account: str, key: str, container: str, url: str, date: str) -> str:
    """Return the Shared Key authorization. All standard headers are empty because the request has no body."""
    path = urlsplit(url).path
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{_API_VERSION}\n/{account}{path}\nrestype:container"
    signature = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return f"SharedKey {account}:{base64.b64encode(signature).decode()}"


def _federated_token(container: str, environment: Callable[[str], str]) -> str:
    """Return a token for the pod's workload identity or the client secret."""
    client, tenant = environment("AZURE_CLIENT_ID"), environment("AZURE_TENANT_ID")
    assertion, secret = environment("AZURE_FEDERATED_TOKEN_FILE"), environment("AZURE_CLIENT_SECRET")
    if not client or not tenant or not (assertion or secret):
        _raise_not_created(container, "these credentials cannot create it, create it by hand", 403)
    form = {"client_id": client, "grant_type": "client_credentials", "scope": "https://storage.azure.com/.default"}
    if secret:
        form["client_secret"] = secret
    else:
        form["client_assertion_type"] = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        try:
            form["client_assertion"] = Path(assertion).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            _raise_not_created(container, f"AZURE_FEDERATED_TOKEN_FILE: {error}", 0)
    authority = environment("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com"
    url = f"{authority.rstrip('/')}/{tenant}/oauth2/v2.0/token"
    try:
        response = _send(urllib.request.Request(url, data=urlencode(form).encode()))  # noqa: S310
    except urllib.error.HTTPError as error:
        _raise_not_created(container, f"token request failed: {error}", error.code)
    return msgspec.json.decode(response, type=_Token).access_token


class _Token(msgspec.Struct):
    access_token: str


def _send(request: urllib.request.Request) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError:
        raise
    except OSError as error:
        raise StoreUnavailable(f"{request.host}: {error}") from None


def _raise_not_created(container: str, reason: str, status: int) -> NoReturn:
    message = f"container {container} does not exist and cannot be created ({reason})"
    if status in {400, 401, 403}:
        raise StoreDenied(f"{message}: grant {_PERMISSION}")
    raise StoreUnavailable(message)
