"""A backend's own settings: KubeRay's variables, its JSON file, or the store's URL."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import Misconfigured
from rayhistory.settings import BACKEND_OF_SCHEME, Settings


class BackendConfig:
    """Values by the variable's name. Where the JSON file has the key, it counts, as in KubeRay."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._path = settings.storage_backend_config_path
        self._json = _read_json(self._path) if self._path else {}
        self._url = settings.store

    @property
    def has_json(self) -> bool:
        return bool(self._json)

    def environment(self, variable: str) -> str:
        return self._environ.get(variable, "").strip()

    def text(self, variable: str, json_key: str, default: str = "", *, json_replaces_environment: bool = False) -> str:
        found = self._json.get(json_key)
        if found is None:
            found = "" if self._json and json_replaces_environment else self.environment(variable)
        if isinstance(found, bool):
            return str(found).lower()
        if not isinstance(found, str):
            raise Misconfigured(f"{json_key} in {self._path}: use a string, not {found!r}")
        return found.strip() or default

    def bucket(self, variable: str, json_key: str, default: str = "") -> str:
        """The bucket, from the URL where one was given; a different one beside it is a contradiction."""
        explicit = self.text(variable, json_key)
        if not self._url:
            name = explicit or default
            if not name:
                raise Misconfigured(f"{variable} is not set: name the bucket, or give --store")
            return name
        name = self._url.partition("://")[2].partition("/")[0]
        if explicit and explicit != name:
            said = f"--store={self._url} and {variable}={explicit}"
            raise Misconfigured(f"{said} contradict each other: give one of them")
        return name

    def named(self, variable: str, json_key: str) -> str:
        """How to call a setting in an error: by the variable, or by the key of the file that it came from."""
        return f"{json_key} in {self._path}" if json_key in self._json else variable


def scheme_of(backend: str) -> str:
    return next((scheme for scheme, name in BACKEND_OF_SCHEME.items() if name == backend), backend)


def _read_json(path: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise Misconfigured(f"STORAGE_BACKEND_CONFIG_PATH={path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise Misconfigured(f"STORAGE_BACKEND_CONFIG_PATH={path}: not a JSON object ({error})") from None
