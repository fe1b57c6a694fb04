"""Google Cloud Storage, with application default credentials: a key file, a user's login, the metadata server (GKE)."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from obstore.exceptions import BaseError
from obstore.store import GCSStore

from rayhistory.errors import Misconfigured
from rayhistory.settings import Settings
from rayhistory.storage.backend_config import BackendConfig
from rayhistory.storage.cloud import CloudStore, client_options, retry_config

if TYPE_CHECKING:
    from obstore.store import GCSConfig, GCSCredentialProvider

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z")
_OWN_TYPES = {"service_account", "authorized_user"}
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


def open_gcs(settings: Settings, *, writable: bool = False, environ: Mapping[str, str] | None = None) -> CloudStore:
    """The bucket must exist: KubeRay does not make it either."""
    config = BackendConfig(settings, environ)
    bucket = config.bucket("GCS_BUCKET", "gcsBucket")
    if not _BUCKET.match(bucket):
        raise Misconfigured(f"GCS_BUCKET={bucket}: not a bucket's name (lower-case letters, digits, '-', '_' and '.')")
    wish: GCSConfig = {}
    base = config.environment("STORAGE_EMULATOR_HOST") or config.environment("GOOGLE_BASE_URL")
    if base:
        wish["base_url"] = (base if "://" in base else f"http://{base}").rstrip("/")
    if config.environment("STORAGE_EMULATOR_HOST"):
        wish["bearer_token"] = "emulator"  # noqa: S105 - obstore asks the metadata server even for unsigned writes
    provider = None if "bearer_token" in wish else _credentials(config)
    try:
        client = GCSStore(
            bucket,
            config=wish,
            client_options=client_options(allow_http=wish.get("base_url", "").startswith("http://")),
            retry_config=retry_config(),
            credential_provider=provider,
        )
    except (BaseError, ValueError) as error:
        raise Misconfigured(f"the GCS settings cannot be used: {str(error).splitlines()[0]}") from None
    return CloudStore(client, f"gs://{bucket}")


def _credentials(config: BackendConfig) -> "GCSCredentialProvider | None":
    """None where obstore's own ways are enough; federation and impersonation are google-auth's."""
    path = config.environment(_KEY_FILE)
    if not path:
        return None
    try:
        kind = msgspec.json.decode(Path(path).read_bytes(), type=_KeyFile).type
    except OSError as error:
        raise Misconfigured(f"{_KEY_FILE}={path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise Misconfigured(f"{_KEY_FILE}={path}: not a key file ({error})") from None
    if kind in _OWN_TYPES:
        return None
    return _from_google_auth(path, kind)


def _from_google_auth(path: str, kind: str) -> "GCSCredentialProvider":
    try:
        google_auth = importlib.import_module("google.auth.exceptions")
        provided = importlib.import_module("obstore.auth.google")
    except ImportError:
        needs = "pip install google-auth requests"
        raise Misconfigured(f"{_KEY_FILE}={path}: credentials of type {kind!r} need more: {needs}") from None
    try:
        provider: GCSCredentialProvider = provided.GoogleCredentialProvider()
    except google_auth.GoogleAuthError as error:
        raise Misconfigured(f"{_KEY_FILE}={path}: {str(error).splitlines()[0]}") from None
    return provider


class _KeyFile(msgspec.Struct):
    type: str = ""
