"""One run of a Ray without any collector, for all tests that need what is left of such a session."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
from starlette.testclient import TestClient

import kept
from plainray import EXPORTING, PlainRay, plain_ray, run_sample
from rayhistory.server.app import create_app
from rayhistory.settings import resolve

LISTS = "detail=1&limit=10000"
QUESTIONS = (
    f"/api/v0/tasks?{LISTS}", f"/api/v0/actors?{LISTS}", f"/api/v0/nodes?{LISTS}", f"/api/v0/workers?{LISTS}",
    f"/api/v0/placement_groups?{LISTS}", "/api/jobs/", "/api/version",
)  # fmt: skip
LOG = "job-driver-sample-job.log"


class PlainSession(msgspec.Struct):
    """`directory` holds `disk/session_…`, and `store` with the snapshot, whose own words are `said`."""

    directory: Path
    live: dict[str, Any]
    said: str
    log: str
    refused: str

    @classmethod
    def load(cls, directory: Path) -> Self:
        known = msgspec.json.decode((directory / "live.json").read_bytes())
        return cls(directory, known["live"], known["said"], known["log"], known["refused"])

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
        known = asyncio.run(_record(directory, temp_dir))
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)
    (directory / "live.json").write_bytes(msgspec.json.encode(known))


async def _record(directory: Path, temp_dir: Path) -> dict[str, Any]:
    async with plain_ray(temp_dir, **EXPORTING) as ray:
        await run_sample(ray)
        await asyncio.sleep(3)  # Ray tells of its tasks every second
        known = await _look(directory, ray)
    (directory / "disk").mkdir()
    no_sockets = shutil.ignore_patterns("sockets")
    shutil.copytree(ray.session, directory / "disk" / ray.session.name, symlinks=True, ignore=no_sockets)
    return known


async def _look(directory: Path, ray: PlainRay) -> dict[str, Any]:
    place = kept.directory(directory / "store")
    looked = await asyncio.to_thread(kept.rayhistory, place, "snapshot", ray.dashboard, "--name", "looked")
    assert looked.returncode == 0, looked.stderr
    refused = await asyncio.to_thread(kept.rayhistory, place, "import-dir", str(ray.session), "--name", "disk")
    async with httpx.AsyncClient(base_url=ray.dashboard, timeout=60, trust_env=False) as http:
        live = {uri: (await http.get(uri)).json() for uri in QUESTIONS}
    log = (ray.session / "logs" / LOG).read_text()
    return {"live": live, "said": looked.stdout, "log": log, "refused": refused.stderr}


def opened(store: Path, cache: Path) -> TestClient:
    """Our server on a store; to be used as a context manager."""
    flags = {"setting_local_storage_dir": str(store), "setting_cache_dir": str(cache)}
    return TestClient(create_app(resolve("historyserver", flags | {"setting_index_ahead": "false"}, {})[0]))


def base_of(client: TestClient) -> str:
    (listed,) = client.get("/clusters").json()
    return f"/s/{listed['namespace']}/{listed['name']}/{listed['sessionName']}"


def listed(client: TestClient, uri: str, *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return by_key(client.get(base_of(client) + uri).json()["data"]["result"]["result"], *keys)


def differences(ours: dict[Any, dict[str, Any]], theirs: dict[Any, dict[str, Any]], but: set[str]) -> list[str]:
    assert set(ours) == set(theirs)
    return [
        f"{key}.{field}: {row.get(field)!r}, live {theirs[key].get(field)!r}"
        for key, row in ours.items()
        for field in set(row) | set(theirs[key])
        if field not in but and row.get(field) != theirs[key].get(field)
    ]
