"""Google Cloud Storage with application default credentials: key file, user login, or metadata server (GKE)."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from obstore.exceptions import BaseError
from obstore.store import GCSStore

from rayhistory.errors import InvalidSetting
from rayhistory.settings import Settings
from rayhistory.storage.cloud import CloudStore, client_options, retry_config
from rayhistory.storage.config_sources import BackendConfig

if TYPE_CHECKING:
    from obstore.store import GCSConfig, GCSCredentialProvider

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z")
_OBSTORE_TYPES = {"service_account", "authorized_user"}
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


def open_gcs(settings: Settings, *, writable: bool = False, environ: Mapping[str, str] | None = None) -> CloudStore:
    """Open an existing bucket; as in KubeRay, it is not created."""
    config = BackendConfig(settings, environ)
    bucket = config.bucket("GCS_BUCKET", "gcsBucket")
    if not _BUCKET.match(bucket):
        raise InvalidSetting(
            f"GCS_BUCKET={bucket}: invalid bucket name, use lower-case letters, digits, '-', '_' and '.'"
        )
    options: GCSConfig = {}
    base = config.environment("STORAGE_EMULATOR_HOST") or config.environment("GOOGLE_BASE_URL")
    if base:
        options["base_url"] = (base if "://" in base else f"http://{base}").rstrip("/")
    if config.environment("STORAGE_EMULATOR_HOST"):
        options["bearer_token"] = "emulator"  # noqa: S105 - without one, obstore queries the metadata server
    provider = None if "bearer_token" in options else _credentials(config)
    try:
        client = GCSStore(
            bucket,
            config=options,
            client_options=client_options(allow_http=options.get("base_url", "").startswith("http://")),
            retry_config=retry_config(),
            credential_provider=provider,
        )
    except (BaseError, ValueError) as error:
        raise InvalidSetting(f"invalid GCS settings: {str(error).splitlines()[0]}") from None
    return CloudStore(client, f"gs://{bucket}")


def _credentials(config: BackendConfig) -> "GCSCredentialProvider | None":
    """Return a provider for federation and impersonation, which need google-auth; None for obstore's own types."""
    path = config.environment(_KEY_FILE)
    if not path:
        return None
    try:
        kind = msgspec.json.decode(Path(path).read_bytes(), type=_KeyFile).type
    except OSError as error:
        raise InvalidSetting(f"{_KEY_FILE}={path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidSetting(f"{_KEY_FILE}={path}: invalid key file ({error})") from None
    if kind in _OBSTORE_TYPES:
        return None
    return _from_google_auth(path, kind)


def _from_google_auth(path: str, kind: str) -> "GCSCredentialProvider":
    try:
        google_auth = importlib.import_module("google.auth.exceptions")
        provided = importlib.import_module("obstore.auth.google")
    except ImportError:
        needs = "pip install google-auth requests"
        raise InvalidSetting(f"{_KEY_FILE}={path}: credentials of type {kind!r} need google-auth: {needs}") from None
    try:
        provider: GCSCredentialProvider = provided.GoogleCredentialProvider()
    except google_auth.GoogleAuthError as error:
        raise InvalidSetting(f"{_KEY_FILE}={path}: {str(error).splitlines()[0]}") from None
    return provider


class _KeyFile(msgspec.Struct):
    type: str = ""
