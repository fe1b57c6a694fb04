"""Settings of a backend: KubeRay's variables, its JSON file, or the store's URL."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import InvalidSetting
from rayhistory.settings import Settings


class BackendConfig:
    """Looks up values by variable name. As in KubeRay, the JSON file has precedence over the environment."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._path = settings.storage_backend_config_path
        self._json = _read_json(self._path) if self._path else {}
        self._url = settings.store

    def environment(self, variable: str) -> str:
        return self._environ.get(variable, "").strip()

    def text(self, variable: str, json_key: str, default: str = "", *, json_replaces_environment: bool = False) -> str:
        value = self._json.get(json_key)
        if value is None:
            value = "" if self._json and json_replaces_environment else self.environment(variable)
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str):
            raise InvalidSetting(f"{json_key} in {self._path}: use a string, not {value!r}")
        return value.strip() or default

    def bucket(self, variable: str, json_key: str, default: str = "") -> str:
        """Return the bucket name, from the URL if there is one. Raise an error if a variable names another bucket."""
        explicit = self.text(variable, json_key)
        if not self._url:
            name = explicit or default
            if not name:
                raise InvalidSetting(f"{variable} is not set: set it to the name of the bucket, or use --store")
            return name
        name = self._url.partition("://")[2].partition("/")[0]
        if explicit and explicit != name:
            given = f"--store={self._url} and {variable}={explicit}"
            raise InvalidSetting(f"{given} contradict each other: set only one")
        return name

    def bucket_origin(self, variable: str, json_key: str) -> str:
        """Return the source of the bucket name for an error message."""
        return "the bucket of --store" if self._url else self.origin(variable, json_key)

    def origin(self, variable: str, json_key: str) -> str:
        """Return the source of a setting for an error message: the variable, or the key in the JSON file."""
        return f"{json_key} in {self._path}" if json_key in self._json else variable


def _read_json(path: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InvalidSetting(f"STORAGE_BACKEND_CONFIG_PATH={path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidSetting(f"STORAGE_BACKEND_CONFIG_PATH={path}: not a JSON object ({error})") from None
