"""`rayhistory.connect`: the history of a server, an object store or a directory."""

import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from rayhistory.api.history import History
from rayhistory.api.in_process import InProcessTransport
from rayhistory.errors import UsageError
from rayhistory.ray_address import SERVER_VARIABLE
from rayhistory.settings import CLI, Settings, resolve

_SERVED_AT = "http://127.0.0.1:{port}"
_TIMEOUT_S = 120.0
_IN_PROCESS_SETTINGS: dict[str, Any] = {
    "allowed_hosts": (), "auth": "none", "discover": False, "live": False, "index_ahead": False, "rate_limit": 0,
    "sql": True, "sql_memory": 2**30, "sql_timeout": 300.0,
}  # fmt: skip
"""Settings of the application in this process. A user who can read the store needs no further permission."""
_STORE_VARIABLES = {"STORAGE_BACKEND", "STORAGE_ROOT_DIR", "LOCAL_STORAGE_DIR", "RAYHISTORY_STORE", "RAY_ROOT_DIR"}
"""Variables that name a store. A given source replaces all of them."""


def connect(source: str | os.PathLike[str] | None = None, *, token: str | None = None) -> History:
    """Open a history server (`http://history:8080`), an object store (`s3://bucket/prefix`) or a directory.

    Without a source, RAYHISTORY_SERVER is used, else the store of the environment. `token` is for servers with
    `--auth`; its default is RAY_AUTH_TOKEN. Stores take their credentials from the environment.
    """
    name = os.fspath(source) if source is not None else os.environ.get(SERVER_VARIABLE, "")
    if name.startswith(("http://", "https://")):
        return History(partial(open_server, name, token or os.environ.get("RAY_AUTH_TOKEN", "")), name)
    settings = _store_settings(name)
    return History(partial(open_store_application, settings), name or "the store")


def _store_settings(name: str) -> Settings:
    if not name:
        return resolve(CLI, {}, os.environ)[0]
    if "://" not in name:
        if not Path(name).is_dir():
            raise UsageError(
                f"no directory {name}: use an existing directory, s3://bucket, or the URL of a history server"
            )
        name = f"file://{quote(str(Path(name).absolute()))}"
    environ = {variable: value for variable, value in os.environ.items() if variable not in _STORE_VARIABLES}
    return resolve(CLI, {"setting_store": name}, environ)[0]


@asynccontextmanager
async def open_server(url: str, token: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {token.strip()}"} if token.strip() else None
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S) as http:
        yield http


@asynccontextmanager
async def open_store_application(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Run the server's application in this process, so that a store and a server give the same results.

    Links in its responses lead to the address at which `rayhistory serve` listens on this machine.
    """
    from rayhistory.server.app import create_app  # noqa: PLC0415

    app = create_app(dataclasses.replace(settings, **_IN_PROCESS_SETTINGS))
    transport = InProcessTransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            base_url=_SERVED_AT.format(port=settings.port), transport=transport, timeout=_TIMEOUT_S
        ) as http,
    ):
        yield http
