"""A session recorded from Ray 2.60: its events, and the responses of its live dashboard.

The workload had finished, failed, nested and retried tasks, actors that restarted and died, submitted jobs and
placement groups. The responses in `data/ray-2.60/endpoints` were recorded about half a minute before the end.
"""

import asyncio
import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from rayhistory.cli.session_store import open_session_store
from rayhistory.index.service.ahead_indexer import AheadIndexer
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.server.app import create_app
from rayhistory.server.products import PRODUCTS
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import Settings, resolve
from rayhistory.storage import open_store
from support import paths

DATA = paths.DATA / "ray-2.60"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
REF = SessionRef.checked("default", "sample", "session_2026-11-15_19-18-08_055078_15551")

_WRITTEN_NS = 1786526102000000001
_RESPONSE_TIME = "2026-11-15T19:19:50.5Z"
_DASHBOARD_RESPONSES = {
    "/api/jobs/": "jobs_after_snap",
    "/api/v0/placement_groups?detail=1&limit=10000": "v0_placement_groups_detail",
    "/api/v0/workers?detail=1&limit=10000": "v0_workers_detail",
    "/api/v0/runtime_envs?detail=1": "v0_runtime_envs_detail",
    "/api/version": "version",
    "/nodes?view=summary": "nodes_summary",
}


def live(name: str) -> Any:
    """Return a response of the live dashboard."""
    return json.loads((DATA / "endpoints" / f"{name}.json").read_text())


def live_rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = live(name)["data"]["result"]["result"]
    return rows


def settings_for(directory: Path) -> Settings:
    return resolve(
        "historyserver",
        {"setting_local_storage_dir": str(directory / "store"), "setting_cache_dir": str(directory / "cache")},
        {},
    )[0]


def store_sample(
    settings: Settings,
    logs: Mapping[str, bytes] | None = None,
    ref: SessionRef = REF,
    responses: Mapping[str, Any] | None = None,
) -> None:
    """Store the session as a collector does. `logs` are files of its one node, `responses` replace those of Ray."""
    asyncio.run(_store(settings, logs or {}, ref, responses or {}))


def store_indexed_sample(settings: Settings, logs: Mapping[str, bytes] | None = None) -> None:
    """Store the session with its tables and products, which are built once per process."""
    shutil.copytree(_indexed_store(), settings.local_storage_dir, dirs_exist_ok=True)
    asyncio.run(_put(settings, _log_objects(settings, logs or {}, REF)))


@functools.cache
def _indexed_store() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="rh-sample-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    settings = settings_for(directory)
    store_sample(settings)
    asyncio.run(_index(settings))
    return Path(settings.local_storage_dir)


async def _index(settings: Settings) -> None:
    async with open_session_store(settings) as (store, layout, catalog):
        builder = IndexBuilder(settings, store, layout, products=PRODUCTS)
        manifest = await AheadIndexer(catalog, builder).index(
            await catalog.find(REF.namespace, REF.cluster, REF.session)
        )
        assert manifest
        await builder.products.build(REF, manifest)
        await builder.close()


def store_only_node(settings: Settings) -> None:
    """Store only the events of the node. Such a session has no loss, because a node without an end is none."""
    store_sample(settings)
    for responses in Path(settings.local_storage_dir).rglob("snapshots/**/*.jsonl*"):  # they name jobs
        responses.unlink()
    (events,) = Path(settings.local_storage_dir).rglob("node_events/*")
    lines = [line for line in events.read_text().splitlines() if json.loads(line)["eventType"].startswith("NODE_")]
    events.write_text("\n".join(lines))


async def _store(settings: Settings, logs: Mapping[str, bytes], ref: SessionRef, changed: Mapping[str, Any]) -> None:
    layout = Layout(settings.storage_root_dir)
    bodies = {**{uri: live(name) for uri, name in _DASHBOARD_RESPONSES.items()}, **changed}
    responses = [json.dumps(_dashboard_response(uri, body)) for uri, body in bodies.items()]
    objects = {
        layout.metadata_key(ref): b"",
        layout.events_key(ref, NODE, "node_events", _WRITTEN_NS, compressed=False): (
            DATA / "events.jsonl"
        ).read_bytes(),
        layout.events_key(ref, NODE, "snapshots", _WRITTEN_NS, compressed=False): "\n".join(responses).encode(),
        **_log_objects(settings, logs, ref),
    }
    await _put(settings, objects)


def _log_objects(settings: Settings, logs: Mapping[str, bytes], ref: SessionRef) -> dict[str, bytes]:
    layout = Layout(settings.storage_root_dir)
    return {layout.log_key(ref, NODE, path): content for path, content in logs.items()}


async def _put(settings: Settings, objects: Mapping[str, bytes]) -> None:
    store = open_store(settings, writable=True)
    for key, content in objects.items():
        await store.put(key, content)
    await store.close()


def _dashboard_response(uri: str, body: Any) -> dict[str, Any]:
    return {
        "eventType": "DASHBOARD_SNAPSHOT",
        "timestamp": _RESPONSE_TIME,
        "dashboardSnapshot": {"uri": uri, "body": body},
    }


@contextmanager
def serving(directory: Path, logs: Mapping[str, bytes] | None = None) -> Iterator[TestClient]:
    """Yield a client of the server. Its base URL is the path of the session."""
    settings = settings_for(directory)
    store_indexed_sample(settings, logs)
    with _client(settings) as client:
        yield client


@contextmanager
def serving_with(directory: Path, responses: Mapping[str, Any]) -> Iterator[TestClient]:
    """Like `serving`, with other responses of the dashboard. The index is built for it."""
    settings = settings_for(directory)
    store_sample(settings, responses=responses)
    with _client(settings) as client:
        yield client


def _client(settings: Settings) -> TestClient:
    return TestClient(create_app(settings), base_url=f"http://testserver{REF.url}")
