"""A server with sessions in two namespaces: the test's visitor may see `default` and not `team-x`."""

import asyncio
import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.routing import Mount, Route, Router, WebSocketRoute
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.sessions import Layout, SessionRef, StartRecord
from rayhistory.settings import Settings
from rayhistory.storage import open_store
from support.recorded_sample import REF, settings_for, store_indexed_sample

ALLOWED_TOKEN = "token-of-ada-with-rights"
UNKNOWN_TOKEN = "token-that-is-not-known"
HIDDEN = SessionRef.checked("team-x", "vault", "session_2026-11-15_20-00-00_000000_1", "rayjob", "nightly-of-x")
DOTTED = SessionRef.checked("default", "a.cluster.with.dots", "session_2026-11-15_20-00-01_000000_1")
HISTORYSERVER = Path(sys.executable).with_name("historyserver")
STDERR = "stderr.log"
_OWN_VARIABLES = ("RAYHISTORY_", "STORAGE_", "LOCAL_STORAGE_")


def store_sessions(settings: Settings) -> None:
    """Store the recorded session and an empty one in `default`, and one in `team-x`."""
    store_indexed_sample(settings)

    async def store_empty_sessions() -> None:
        store, layout = open_store(settings, writable=True), Layout(settings.storage_root_dir)
        for ref in (HIDDEN, DOTTED):
            await store.put(layout.metadata_key(ref), b"")
        await store.close()

    asyncio.run(store_empty_sessions())


def store_live_session(directory: Path, dashboard: str, ref: SessionRef) -> None:
    """Store what a head's collector writes for a running session: its start record and its heartbeat."""

    async def write() -> None:
        store, layout = open_store(settings_for(directory), writable=True), Layout("")
        start = StartRecord(ref.namespace, ref.cluster, ref.session, 1_786_500_000_000, dashboard_address=dashboard)
        await store.put(layout.metadata_key(ref), b"")
        await store.put(layout.start_key(ref), msgspec.json.encode(start))
        await store.put(layout.alive_key(ref), b"")
        await store.close()

    asyncio.run(write())


def write_access_file(directory: Path, text: str = f"token ada {ALLOWED_TOKEN} default\n") -> str:
    path = directory / "access"
    path.write_text(text)
    return str(path)


@contextmanager
def serve_two_namespaces(
    directory: Path, *, address: str = "127.0.0.1", base_url: str = "http://testserver", **overrides: Any
) -> Iterator[TestClient]:
    settings = dataclasses.replace(settings_for(directory), index_ahead=False, **overrides)
    store_sessions(settings)
    with TestClient(create_app(settings), base_url=base_url, follow_redirects=False, client=(address, 50000)) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def session_routes(app: Any) -> list[Route | WebSocketRoute]:
    """List every route below a session."""
    (mounted,) = (route for route in app.routes if isinstance(route, Mount) and route.path == "/s")
    router: Router = mounted.app._routes.app  # type: ignore[attr-defined]
    routes = [route for route in router.routes if isinstance(route, Route | WebSocketRoute)]
    assert len(routes) == len(router.routes) > 40
    return routes


def server_routes(app: Any) -> list[Route]:
    """List every route that is not below a session."""
    return [route for route in app.routes if isinstance(route, Route)]


def fill_path(path: str) -> str:
    """Replace the parameters of a route's path by a value."""
    parts = [("x" if part.startswith("{") else part) for part in path.split("/")]
    return "/".join(parts)


def kuberay_cookies(ref: SessionRef = REF) -> dict[str, str]:
    """Return KubeRay's cookies for a session, which any client can forge."""
    return {
        "cluster_name": ref.cluster,
        "cluster_namespace": ref.namespace,
        "session_name": ref.session,
        "owner_kind": ref.owner_kind or "",
        "owner_name": ref.owner_name or "",
    }


def cookie_header_for(values: dict[str, str]) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in values.items())}


def server_environment(directory: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    return inherited | {
        "LOCAL_STORAGE_DIR": str(directory / "store"),
        "RAYHISTORY_CACHE_DIR": str(directory / "cache"),
    }


@contextmanager
def run_historyserver(directory: Path, *flags: str) -> Iterator[str]:
    """Run the `historyserver` program on a free port and yield its address."""
    (directory / "store").mkdir(exist_ok=True)
    command: list[str | Path] = [HISTORYSERVER, "--host=127.0.0.1", "--port=0", *flags]
    with (directory / STDERR).open("w") as stderr:
        process = subprocess.Popen(command, env=server_environment(directory), stderr=stderr)
    (directory / "pid").write_text(str(process.pid))
    try:
        deadline = time.monotonic() + 60
        while not (address := re.search(r"https?://127\.0\.0\.1:\d+", (directory / STDERR).read_text())):
            assert process.poll() is None and time.monotonic() < deadline, (directory / STDERR).read_text()
            time.sleep(0.05)
        yield address[0]
    finally:
        process.terminate()
        process.wait(30)
