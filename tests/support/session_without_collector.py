"""A recorded session of a Ray cluster without a collector."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.settings import resolve
from support import archived_sessions
from support.ray_without_collector import EXPORT_FILES, RunningRay, ray_without_collector, run_sample_job
from support.reported_tasks import wait_until_reported

LISTS = "detail=1&limit=10000"
URIS = (
    f"/api/v0/tasks?{LISTS}", f"/api/v0/actors?{LISTS}", f"/api/v0/nodes?{LISTS}", f"/api/v0/workers?{LISTS}",
    f"/api/v0/placement_groups?{LISTS}", "/api/jobs/", "/api/version",
)  # fmt: skip
LOG = "job-driver-sample-job.log"


class UncollectedSession(msgspec.Struct):
    """A session on disk (`disk/session_…` in `directory`), and a snapshot of its running cluster (`store`)."""

    directory: Path
    live: dict[str, Any]
    snapshot_output: str
    log: str
    import_error: str
    """The error of `rayhistory import-dir` while Ray was running."""

    @classmethod
    def load(cls, directory: Path) -> Self:
        recorded = msgspec.json.decode((directory / "live.json").read_bytes())
        return cls(directory, **recorded)

    @property
    def on_disk(self) -> Path:
        return next((self.directory / "disk").glob("session_*"))

    def rows(self, uri: str, *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
        return by_key(self.live[uri]["data"]["result"]["result"], *keys)


def by_key(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[key] for key in keys): row for row in rows}


def record(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    temp_dir = Path(tempfile.mkdtemp(prefix="rp"))
    try:
        recorded = asyncio.run(_record(directory, temp_dir))
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)
    (directory / "live.json").write_bytes(msgspec.json.encode(recorded))


async def _record(directory: Path, temp_dir: Path) -> dict[str, Any]:
    async with ray_without_collector(temp_dir, ray=None, **EXPORT_FILES) as ray:
        await run_sample_job(ray)
        await wait_until_reported(ray.dashboard)
        recorded = await _record_running(directory, ray)
    (directory / "disk").mkdir()
    no_sockets = shutil.ignore_patterns("sockets")
    shutil.copytree(ray.session, directory / "disk" / ray.session.name, symlinks=True, ignore=no_sockets)
    return recorded


async def _record_running(directory: Path, ray: RunningRay) -> dict[str, Any]:
    store = archived_sessions.directory(directory / "store")
    snapshot = await asyncio.to_thread(
        archived_sessions.rayhistory, store, "snapshot", ray.dashboard, "--name", "captured"
    )
    assert snapshot.returncode == 0, snapshot.stderr
    rejected = await asyncio.to_thread(
        archived_sessions.rayhistory, store, "import-dir", str(ray.session), "--name", "disk"
    )
    async with httpx.AsyncClient(base_url=ray.dashboard, timeout=60, trust_env=False) as http:
        live = {uri: (await http.get(uri)).json() for uri in URIS}
    log = (ray.session / "logs" / LOG).read_text()
    return {"live": live, "snapshot_output": snapshot.stdout, "log": log, "import_error": rejected.stderr}


def serve_store(store: Path, cache: Path) -> TestClient:
    """Return a client of a server on this store, to be used as a context manager."""
    flags = {"setting_local_storage_dir": str(store), "setting_cache_dir": str(cache)}
    return TestClient(create_app(resolve("historyserver", flags | {"setting_index_ahead": "false"}, {})[0]))


def session_path(client: TestClient) -> str:
    (cluster,) = client.get("/clusters").json()
    return f"/s/{cluster['namespace']}/{cluster['name']}/{cluster['sessionName']}"


def list_rows(client: TestClient, uri: str, *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return by_key(client.get(session_path(client) + uri).json()["data"]["result"]["result"], *keys)


def differences(ours: dict[Any, dict[str, Any]], live: dict[Any, dict[str, Any]], except_fields: set[str]) -> list[str]:
    assert set(ours) == set(live)
    return [
        f"{key}.{field}: {row.get(field)!r}, live {live[key].get(field)!r}"
        for key, row in ours.items()
        for field in set(row) | set(live[key])
        if field not in except_fields and row.get(field) != live[key].get(field)
    ]
