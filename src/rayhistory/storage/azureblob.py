"""Azure Blob, with a connection string, or an account URL and workload identity, managed identity or a secret.

KubeRay's variables: AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_URL, AZURE_STORAGE_CONTAINER, and
AZURE_STORAGE_AUTH_MODE, which is connection_string, workload_identity or default. Any other mode uses the settings that
are present.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore

from rayhistory.errors import InvalidSetting
from rayhistory.settings import Settings
from rayhistory.storage.azure_container import container_creator
from rayhistory.storage.cloud import CloudStore, client_options, retry_config
from rayhistory.storage.config_sources import BackendConfig

if TYPE_CHECKING:
    from obstore.store import AzureConfig

_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(-[a-z0-9]+)*\Z|\$root\Z")
_FEDERATED = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE")
_CONNECTION, _URL = "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_URL"


def open_azureblob(
    settings: Settings, *, writable: bool = False, environ: Mapping[str, str] | None = None
) -> CloudStore:
    config = BackendConfig(settings, environ)
    container = config.bucket("AZURE_STORAGE_CONTAINER", "azureContainer", "ray-historyserver")
    if not _CONTAINER.match(container):
        raise InvalidSetting(
            f"AZURE_STORAGE_CONTAINER={container}: invalid name, use lower-case letters, digits and '-'"
        )
    options = _account(config)
    endpoint = options.get("endpoint", "")
    try:
        client = AzureStore(
            container,
            config=options,
            client_options=client_options(allow_http=endpoint.startswith("http://")),
            retry_config=retry_config(),
        )
    except (BaseError, ValueError) as error:
        raise InvalidSetting(f"invalid Azure settings: {str(error).splitlines()[0]}") from None
    create_bucket = container_creator(options, container, config.environment) if writable else None
    return CloudStore(client, f"az://{container}", create_bucket)


def _account(config: BackendConfig) -> "AzureConfig":
    connection = config.text(_CONNECTION, "azureConnectionString")
    url = config.text(_URL, "azureAccountURL")
    mode = config.text("AZURE_STORAGE_AUTH_MODE", "azureAuthMode").lower()
    if mode == "connection_string" and not connection:
        raise InvalidSetting(f"{_CONNECTION} is not set, but AZURE_STORAGE_AUTH_MODE={mode} requires it")
    if mode in {"workload_identity", "default"} and not url:
        raise InvalidSetting(f"{_URL} is not set, but AZURE_STORAGE_AUTH_MODE={mode} requires it")
    if connection and mode not in {"workload_identity", "default"}:
        return _from_connection_string(connection)
    if url:
        return _from_url(url) | (_workload_identity(config) if mode == "workload_identity" else {})
    name = config.environment("AZURE_STORAGE_ACCOUNT_NAME")
    if not name:
        raise InvalidSetting(f"no storage account configured: set {_CONNECTION} or {_URL}")
    return {"account_name": name, "endpoint": f"https://{name}.blob.core.windows.net"}


def _from_url(url: str) -> "AzureConfig":
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
        raise InvalidSetting(f"{_URL}={url}: use https://<account>.blob.core.windows.net")
    # The account is in the path of an emulator's URL, and in the host name of Azure's.
    account = parts.path.strip("/").partition("/")[0] or parts.hostname.partition(".")[0]
    return {"account_name": account, "endpoint": url.rstrip("/")}


def _from_connection_string(text: str) -> "AzureConfig":
    fields = dict(pair.split("=", 1) for pair in text.split(";") if "=" in pair)
    name, key = fields.get("AccountName", ""), fields.get("AccountKey", "")
    signature = fields.get("SharedAccessSignature", "").lstrip("?")
    endpoint = fields.get("BlobEndpoint", "").rstrip("/")
    if not endpoint and name:
        scheme = fields.get("DefaultEndpointsProtocol", "https")
        endpoint = f"{scheme}://{name}.blob.{fields.get('EndpointSuffix', 'core.windows.net')}"
    if not endpoint or not (key or signature):
        required = "AccountName and AccountKey, or BlobEndpoint and SharedAccessSignature"
        raise InvalidSetting(f"{_CONNECTION} is incomplete: it needs {required}")
    options = _from_url(endpoint)
    if name:
        options["account_name"] = name
    if key:
        options["account_key"] = key
    else:
        options["sas_key"] = signature
    return options


def _workload_identity(config: BackendConfig) -> "AzureConfig":
    for variable in _FEDERATED:
        if not config.environment(variable):
            raise InvalidSetting(f"{variable} is not set, but AZURE_STORAGE_AUTH_MODE=workload_identity requires it")
    path = config.environment("AZURE_FEDERATED_TOKEN_FILE")
    if not Path(path).is_file():
        raise InvalidSetting(f"AZURE_FEDERATED_TOKEN_FILE={path}: no such file")
    return {"credential_type": "workload_identity"}
