"""A session recorded from real Ray 2.60: its events, and what the live dashboard said.

The workload had tasks of every fate, nested and retried ones, actors that restarted and died, submitted jobs and
placement groups. The answers in `data/ray-2.60/endpoints` are from about half a minute before its end.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from rayhistory.layout import Layout, SessionRef
from rayhistory.server.app import create_app
from rayhistory.settings import Settings, resolve
from rayhistory.storage import open_store

DATA = Path(__file__).parent / "data" / "ray-2.60"
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
REF = SessionRef.checked("default", "sample", "session_2026-11-15_19-18-08_055078_15551")

_WRITTEN_NS = 1786526102000000001
_SEEN = "2026-11-15T19:19:50.5Z"
_SNAPSHOTS = {
    "/api/jobs/": "jobs_after_snap",
    "/api/v0/placement_groups?detail=1&limit=10000": "v0_placement_groups_detail",
    "/api/v0/workers?detail=1&limit=10000": "v0_workers_detail",
    "/api/v0/runtime_envs?detail=1": "v0_runtime_envs_detail",
    "/api/version": "version",
    "/nodes?view=summary": "nodes_summary",
}


def live(name: str) -> Any:
    """What the live dashboard answered."""
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


def keep_sample(settings: Settings, logs: Mapping[str, bytes] | None = None, ref: SessionRef = REF) -> None:
    """Puts the session into the store, as a collector would have; logs are files of its one node."""
    asyncio.run(_keep(settings, logs or {}, ref))


def keep_only_node(settings: Settings) -> None:
    """Puts as much of the session into the store that nothing of it is lost: its node, of which Ray reports no end."""
    keep_sample(settings)
    (events,) = Path(settings.local_storage_dir).rglob("node_events/*")
    lines = [line for line in events.read_text().splitlines() if json.loads(line)["eventType"].startswith("NODE_")]
    events.write_text("\n".join(lines))


async def _keep(settings: Settings, logs: Mapping[str, bytes], ref: SessionRef) -> None:
    layout, store = Layout(settings.storage_root_dir), open_store(settings, writable=True)
    snapshots = [json.dumps(_snapshot(uri, name)) for uri, name in _SNAPSHOTS.items()]
    objects = {
        layout.metadata_key(ref): b"",
        layout.events_key(ref, NODE, "node_events", _WRITTEN_NS, compressed=False): (
            DATA / "events.jsonl"
        ).read_bytes(),
        layout.events_key(ref, NODE, "snapshots", _WRITTEN_NS, compressed=False): "\n".join(snapshots).encode(),
        **{layout.log_key(ref, NODE, path): content for path, content in logs.items()},
    }
    for key, content in objects.items():
        await store.put(key, content)
    await store.close()


def _snapshot(uri: str, name: str) -> dict[str, Any]:
    return {
        "eventType": "DASHBOARD_SNAPSHOT",
        "timestamp": _SEEN,
        "dashboardSnapshot": {"uri": uri, "body": live(name)},
    }


@contextmanager
def serving(directory: Path, logs: Mapping[str, bytes] | None = None) -> Iterator[TestClient]:
    """A client of the whole server; its addresses are relative to the session's."""
    settings = settings_for(directory)
    keep_sample(settings, logs)
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        yield client
