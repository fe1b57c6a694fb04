"""Sessions of every release of KubeRay's collector open with the same tables."""

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.gaps import GapCode
from rayhistory.server.app import create_app
from rayhistory.settings import resolve
from support.folding import NODE, RECORDED
from support.paths import DATA

SESSION = "session_2026-11-15_19-18-08_055078_15551"
HOUR = "2026-11-15-19"
PLACEMENT_GROUPS = "restful__api__v0__placement_groups?detail=1&limit=10000"
SERVE = "restful__api__serve__applications"
ENDPOINTS = DATA / "ray-2.60/endpoints"


def job_of(event: dict[str, Any]) -> str | None:
    nested = next((value for value in event.values() if isinstance(value, dict)), {})
    return nested.get("jobId") or None if "Worker" not in json.dumps(list(event)) else None


def events_by_job() -> dict[str | None, list[dict[str, Any]]]:
    groups: dict[str | None, list[dict[str, Any]]] = {}
    for event in RECORDED:
        groups.setdefault(job_of(event), []).append(event)
    return groups


def lines(events: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def array(events: list[dict[str, Any]]) -> bytes:
    return json.dumps(events).encode()


def job_id_hex(job: str) -> str:
    return base64.b64decode(job).hex()


def generation_a(root: Path) -> None:
    """v1.6: cluster name first, logs above nodes, JSON arrays without extension, jobs in base64, folder markers."""
    base = root / "c_ns" / SESSION
    write(root / "metadir/c_ns" / SESSION, b"")
    v1_6_tree(base, array, "")


def generation_b(root: Path) -> None:
    write(root / "cluster-metadata/raycluster/ns_c" / SESSION, b"")
    v1_6_tree(root / "c_ns" / SESSION, array, "")


def generation_c(root: Path) -> None:
    write(root / "cluster-metadata/raycluster/ns_c" / SESSION, b"")
    v1_6_tree(root / "c_ns" / SESSION, lambda events: gzip.compress(array(events)), ".gz")


def v1_6_tree(base: Path, body: Callable[[list[dict[str, Any]]], bytes], extension: str) -> None:
    for job, events in events_by_job().items():
        folder = base / "job_events" / job if job else base / "node_events"
        write(folder / f"{NODE}-{HOUR}{extension}", body(events))
    write(base / "logs" / NODE / "raylet.out", b"hello from the raylet\n")
    write(base / "fetched_endpoints" / PLACEMENT_GROUPS, placement_groups())
    write(base / "fetched_endpoints" / SERVE, b'{"applications": {"greeter": {"status": "RUNNING"}}}')


def generation_d(root: Path) -> None:
    v1_7_tree(root, lambda events: gzip.compress(array(events)), ".gz", lambda job: job)


def generation_e(root: Path) -> None:
    v1_7_tree(root, lines, "-1794770300000000000.jsonl", job_id_hex)


def generation_e_gzip(root: Path) -> None:
    v1_7_tree(root, lambda events: gzip.compress(lines(events)), "-1794770300000000000.jsonl.gz", job_id_hex)


def v1_7_tree(
    root: Path, body: Callable[[list[dict[str, Any]]], bytes], extension: str, folder_of: Callable[[str], str]
) -> None:
    write(root / "cluster-metadata/raycluster/ns_c" / SESSION, b"")
    base = root / "cluster-history/raycluster/ns/c" / SESSION
    for job, events in events_by_job().items():
        folder = f"job_events/{folder_of(job)}" if job else "node_events"
        write(base / NODE / folder / f"{NODE}-{HOUR}{extension}", body(events))
    write(base / NODE / "logs/raylet.out", b"hello from the raylet\n")
    write(base / "fetched_endpoints" / PLACEMENT_GROUPS, placement_groups())
    write(base / "fetched_endpoints" / SERVE, b'{"applications": {"greeter": {"status": "RUNNING"}}}')


def mixed(root: Path) -> None:
    """Two releases wrote parts of one session."""
    generation_a(root)
    generation_e(root)


def partly_owned(root: Path) -> None:
    """Only some collectors of the cluster knew its owner."""
    generation_e(root)
    write(root / "cluster-metadata/rayjob/ns_nightly_c" / SESSION, b"")
    base = Path("ns/c") / SESSION / NODE / "node_events"
    owned = root / "cluster-history/rayjob" / "ns/nightly/c" / SESSION / NODE / "node_events"
    owned.parent.mkdir(parents=True)
    (root / "cluster-history/raycluster" / base).rename(owned)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def placement_groups() -> bytes:
    return (ENDPOINTS / "v0_placement_groups_detail.json").read_bytes()


def legacy_store(root: Path) -> None:
    """One object with all events, in a bucket with unrelated objects."""
    base = root / "log/ns/c" / SESSION
    write(base / "events.log", lines(RECORDED))
    write(base / "metadata.json", b'{"any": "content"}')
    write(root / "log/photos/holiday" / SESSION / "beach.jpg", b"")
    write(root / "log/readme", b"")


@pytest.mark.parametrize("enabled", [True, False])
def test_legacy_session_opens_only_with_its_setting(tmp_path: Path, *, enabled: bool) -> None:
    legacy_store(tmp_path / "store")
    flags = {"setting_local_storage_dir": str(tmp_path / "store"), "setting_cache_dir": str(tmp_path / "cache"),
             "setting_storage_root_dir": "log", "setting_index_ahead": "false",
             "setting_read_legacy_layout": str(enabled).lower()}  # fmt: skip
    with TestClient(create_app(resolve("historyserver", flags, {})[0])) as client:
        if not enabled:
            assert client.get("/clusters").json() == []
            assert client.get(f"/s/ns/c/{SESSION}/api/v0/tasks").status_code == 404
            return
        (listed,) = client.get("/clusters").json()
        assert (listed["namespace"], listed["name"], listed["sessionName"]) == ("ns", "c", SESSION)
        tasks = client.get(f"/s/ns/c/{SESSION}/api/v0/tasks?limit=1000").json()["data"]["result"]
        assert tasks["num_filtered"] == 23


GENERATIONS = [
    generation_a,
    generation_b,
    generation_c,
    generation_d,
    generation_e,
    generation_e_gzip,
    mixed,
    partly_owned,
]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("prefix", ["", "log"])
def test_session_of_every_release_opens(tmp_path: Path, generation: Callable[[Path], None], prefix: str) -> None:
    generation(tmp_path / "store" / prefix)
    flags = {"setting_local_storage_dir": str(tmp_path / "store"), "setting_cache_dir": str(tmp_path / "cache"),
             "setting_storage_root_dir": f"/{prefix}/", "setting_index_ahead": "false"}  # fmt: skip
    settings, _ = resolve("historyserver", flags, {})
    with TestClient(create_app(settings)) as client:
        (listed,) = client.get("/clusters").json()
        assert (listed["namespace"], listed["name"], listed["sessionName"]) == ("ns", "c", SESSION)
        base = f"/s/ns/c/{SESSION}"
        tasks = client.get(f"{base}/api/v0/tasks?limit=1000").json()["data"]["result"]
        assert tasks["num_filtered"] == 23
        actors = client.get(f"{base}/api/v0/actors").json()["data"]["result"]["result"]
        assert {actor["state"] for actor in actors} == {"DEAD"}
        groups = client.get(f"{base}/api/v0/placement_groups").json()["data"]["result"]["result"]
        assert {group["name"] for group in groups} == {"mypg", "infeasible"}
        assert "greeter" in client.get(f"{base}/api/serve/applications/").json()["applications"]
        log = client.get(f"{base}/api/v0/logs/file?node_id={NODE}&filename=raylet.out")
        assert log.text == "hello from the raylet\n"
        gaps = client.get(f"{base}/api/history/gaps").json()["gaps"]
        assert not [gap for gap in gaps if gap["place"] and gap["code"] != GapCode.EVENTS_REPEATED]
