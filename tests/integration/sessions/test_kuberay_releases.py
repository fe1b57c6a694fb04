"""Sessions of every release of KubeRay's collector open with the same tables."""

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from folding import NODE, RECORDED
from rayhistory.events.tables import REPEATED
from rayhistory.server.app import create_app
from rayhistory.settings import resolve

SESSION = "session_2026-11-15_19-18-08_055078_15551"
HOUR = "2026-11-15-19"
PLACEMENT_GROUPS = "restful__api__v0__placement_groups?detail=1&limit=10000"
SERVE = "restful__api__serve__applications"
ENDPOINTS = Path(__file__).parents[1] / "data/ray-2.60/endpoints"


def job_of(event: dict[str, Any]) -> str | None:
    nested = next((value for value in event.values() if isinstance(value, dict)), {})
    return nested.get("jobId") or None if "Worker" not in json.dumps(list(event)) else None


def grouped() -> dict[str | None, list[dict[str, Any]]]:
    groups: dict[str | None, list[dict[str, Any]]] = {}
    for event in RECORDED:
        groups.setdefault(job_of(event), []).append(event)
    return groups


def lines(events: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def array(events: list[dict[str, Any]]) -> bytes:
    return json.dumps(events).encode()


def hexed(job: str) -> str:
    return base64.b64decode(job).hex()


def generation_a(root: Path) -> None:
    """v1.6: the cluster first, logs before the node, JSON arrays without extension, jobs in base64, folder markers."""
    base = root / "c_ns" / SESSION
    write(root / "metadir/c_ns" / SESSION, b"")
    old_tree(base, array, "")


def generation_b(root: Path) -> None:
    write(root / "cluster-metadata/raycluster/ns_c" / SESSION, b"")
    old_tree(root / "c_ns" / SESSION, array, "")


def generation_c(root: Path) -> None:
    write(root / "cluster-metadata/raycluster/ns_c" / SESSION, b"")
    old_tree(root / "c_ns" / SESSION, lambda events: gzip.compress(array(events)), ".gz")


def old_tree(base: Path, body: Callable[[list[dict[str, Any]]], bytes], extension: str) -> None:
    for job, events in grouped().items():
        folder = base / "job_events" / job if job else base / "node_events"
        write(folder / f"{NODE}-{HOUR}{extension}", body(events))
    write(base / "logs" / NODE / "raylet.out", b"hello from the raylet\n")
    write(base / "fetched_endpoints" / PLACEMENT_GROUPS, placement_groups())
    write(base / "fetched_endpoints" / SERVE, b'{"applications": {"greeter": {"status": "RUNNING"}}}')


def generation_d(root: Path) -> None:
    new_tree(root, lambda events: gzip.compress(array(events)), ".gz", lambda job: job)


def generation_e(root: Path) -> None:
    new_tree(root, lines, "-1794770300000000000.jsonl", hexed)


def generation_e_gzip(root: Path) -> None:
    new_tree(root, lambda events: gzip.compress(lines(events)), "-1794770300000000000.jsonl.gz", hexed)


def new_tree(
    root: Path, body: Callable[[list[dict[str, Any]]], bytes], extension: str, folder_of: Callable[[str], str]
) -> None:
    write(root / "cluster-metadata/raycluster/ns_c" / SESSION, b"")
    base = root / "cluster-history/raycluster/ns/c" / SESSION
    for job, events in grouped().items():
        folder = f"job_events/{folder_of(job)}" if job else "node_events"
        write(base / NODE / folder / f"{NODE}-{HOUR}{extension}", body(events))
    write(base / NODE / "logs/raylet.out", b"hello from the raylet\n")
    write(base / "fetched_endpoints" / PLACEMENT_GROUPS, placement_groups())
    write(base / "fetched_endpoints" / SERVE, b'{"applications": {"greeter": {"status": "RUNNING"}}}')


def mixed(root: Path) -> None:
    """Two releases wrote parts of the same session."""
    generation_a(root)
    generation_e(root)


def partly_owned(root: Path) -> None:
    """Only some of the cluster's collectors knew what had created it."""
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


def test_a_session_of_the_field_notes_opens(tmp_path: Path) -> None:
    """One object with all events, in a bucket that has other things as well."""
    base = tmp_path / "store/log/ns/c" / SESSION
    write(base / "events.log", lines(RECORDED))
    write(base / "metadata.json", b'{"whatever": "it says"}')
    write(tmp_path / "store/log/photos/holiday" / SESSION / "beach.jpg", b"")
    write(tmp_path / "store/log/readme", b"")
    flags = {"setting_local_storage_dir": str(tmp_path / "store"), "setting_cache_dir": str(tmp_path / "cache"),
             "setting_storage_root_dir": "log", "setting_index_ahead": "false"}  # fmt: skip
    with TestClient(create_app(resolve("historyserver", flags, {})[0])) as client:
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
def test_a_session_opens_whichever_release_wrote_it(
    tmp_path: Path, generation: Callable[[Path], None], prefix: str
) -> None:
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
        assert not [gap for gap in gaps if gap["source"] and gap["kind"] != REPEATED]
