"""A server with sessions of two namespaces, one of which a visitor may see and the other not."""

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

from rayhistory.layout import Layout, SessionRef, StartRecord
from rayhistory.server.app import create_app
from rayhistory.settings import Settings
from rayhistory.storage import open_store
from recorded_sample import REF, keep_sample, settings_for

OURS = "token-of-ada-with-rights"
NOBODYS = "token-that-is-not-known"
HIDDEN = SessionRef.checked("team-x", "vault", "session_2026-11-15_20-00-00_000000_1", "rayjob", "nightly-of-x")
DOTTED = SessionRef.checked("default", "a.cluster.with.dots", "session_2026-11-15_20-00-01_000000_1")


def keep_sessions(settings: Settings) -> None:
    """The recorded one in `default`, an empty one beside it, and one in `team-x`."""
    keep_sample(settings)

    async def more() -> None:
        store, layout = open_store(settings, writable=True), Layout(settings.storage_root_dir)
        for ref in (HIDDEN, DOTTED):
            await store.put(layout.metadata_key(ref), b"")
        await store.close()

    asyncio.run(more())


def keep_live(directory: Path, dashboard: str, ref: SessionRef) -> None:
    """What a head's collector writes: that the session is alive, and where its dashboard is."""

    async def write() -> None:
        store, layout = open_store(settings_for(directory), writable=True), Layout("")
        start = StartRecord(ref.namespace, ref.cluster, ref.session, 1_786_500_000_000, dashboard_address=dashboard)
        await store.put(layout.metadata_key(ref), b"")
        await store.put(layout.start_key(ref), msgspec.json.encode(start))
        await store.put(layout.alive_key(ref), b"")
        await store.close()

    asyncio.run(write())


def rules(directory: Path, text: str = f"token ada {OURS} default\n") -> str:
    path = directory / "access"
    path.write_text(text)
    return str(path)


@contextmanager
def guarded(
    directory: Path, *, address: str = "127.0.0.1", base_url: str = "http://testserver", **settings: Any
) -> Iterator[TestClient]:
    chosen = dataclasses.replace(settings_for(directory), index_ahead=False, **settings)
    keep_sessions(chosen)
    with TestClient(create_app(chosen), base_url=base_url, follow_redirects=False, client=(address, 50000)) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def below_a_session(app: Any) -> list[Route | WebSocketRoute]:
    """Every route below the address of a session."""
    (mounted,) = (route for route in app.routes if isinstance(route, Mount) and route.path == "/s")
    router: Router = mounted.app._routes.app  # type: ignore[attr-defined]
    routes = [route for route in router.routes if isinstance(route, Route | WebSocketRoute)]
    assert len(routes) == len(router.routes) > 40
    return routes


def own_routes(app: Any) -> list[Route]:
    return [route for route in app.routes if isinstance(route, Route)]


def filled(path: str) -> str:
    """A path of a route, with something in the place of its parameters."""
    parts = [("x" if part.startswith("{") else part) for part in path.split("/")]
    return "/".join(parts)


def chosen(ref: SessionRef = REF) -> dict[str, str]:
    """KubeRay's cookies for a session, which anybody can write."""
    return {
        "cluster_name": ref.cluster,
        "cluster_namespace": ref.namespace,
        "session_name": ref.session,
        "owner_kind": ref.owner_kind or "",
        "owner_name": ref.owner_name or "",
    }


def as_cookies(values: dict[str, str]) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in values.items())}


PROGRAM = Path(sys.executable).with_name("historyserver")


def environment(directory: Path) -> dict[str, str]:
    foreign = ("RAYHISTORY_", "STORAGE_", "LOCAL_STORAGE_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return clean | {"LOCAL_STORAGE_DIR": str(directory / "store"), "RAYHISTORY_CACHE_DIR": str(directory / "cache")}


@contextmanager
def program(directory: Path, *flags: str) -> Iterator[str]:
    (directory / "store").mkdir(exist_ok=True)
    command = [PROGRAM, "--host=127.0.0.1", "--port=0", *flags]
    with (directory / "said").open("w") as said:
        process = subprocess.Popen(command, env=environment(directory), stderr=said)
    (directory / "pid").write_text(str(process.pid))
    try:
        until = time.monotonic() + 60
        while not (found := re.search(r"https?://127\.0\.0\.1:\d+", (directory / "said").read_text())):
            assert process.poll() is None and time.monotonic() < until, (directory / "said").read_text()
            time.sleep(0.05)
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)
