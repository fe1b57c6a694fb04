"""Dashboard responses in the fold."""

import os
from pathlib import Path

import pytest

from rayhistory.events.times import parse_ns
from rayhistory.gaps import GapCode
from rayhistory.sessions import Layout
from support.event_samples import PLACEMENT_GROUPS_URI
from support.folding import (
    RECORDED,
    REF,
    as_lines,
    fold_session,
    put,
    rows,
    tables_as_of,
)
from support.paths import DATA

ANOMALIES = f"source <> '' AND kind <> '{GapCode.EVENTS_REPEATED}'"
"""The condition of gaps in objects."""


def store_endpoint(directory: Path, body: bytes, modified: int, uri: str = PLACEMENT_GROUPS_URI) -> None:
    """Write a dashboard response as KubeRay's collector does."""
    path = directory / Layout().endpoint_key(REF, uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    os.utime(path, (modified, modified))


@pytest.mark.parametrize(
    "body", [b'{"data": "\xff"}', b"[" * 100_000, b"no"], ids=["invalid UTF-8", "deep nesting", "invalid JSON"]
)
def test_unreadable_response_is_a_gap(tmp_path: Path, body: bytes) -> None:
    put(tmp_path, 0, as_lines(RECORDED))
    store_endpoint(tmp_path, body, 1_794_770_400)
    manifest = fold_session(tmp_path)
    assert rows(tmp_path, manifest, f"SELECT kind, count FROM gaps WHERE {ANOMALIES}") == [
        ("dashboard_response_unreadable", 1)
    ]
    assert manifest.counts.tasks == 23


@pytest.mark.slow
def test_overwritten_response_is_read_again(tmp_path: Path) -> None:
    """The new one can have the same size, or the same modification time."""
    put(tmp_path, 0, as_lines(RECORDED))
    body = (DATA / "ray-2.60/endpoints/v0_placement_groups_detail.json").read_bytes()
    for state, modified in (b"CREATED", 1_794_770_400), (b"REMOVED", 1_794_770_401):
        response = body.replace(b'"REMOVED"', b'"%s"' % state)
        store_endpoint(tmp_path, response, modified)
        manifest = fold_session(tmp_path)
        assert rows(tmp_path, manifest, "SELECT DISTINCT state FROM placement_groups") == [(state.decode(),)]
    store_endpoint(tmp_path, response + b"\n", modified)
    assert fold_session(tmp_path).covered != manifest.covered


@pytest.mark.slow
def test_responses_are_written_to_files_of_bounded_size(tmp_path: Path) -> None:
    """Reading the last response must not decompress all of them."""

    def responses(first: int) -> bytes:
        return as_lines([
            {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": f"2026-11-15T19:{minute:02}:00Z",
             "dashboardSnapshot": {"uri": uri, "body": {"minute": minute, "more": "x" * 2**20}}}
            for minute in range(first, first + 10) for uri in ("/nodes?view=summary", "/api/cluster_status")
        ])  # fmt: skip

    put(tmp_path, 0, responses(0))
    assert len(fold_session(tmp_path).files["snapshots"]) == 3
    put(tmp_path, 1, responses(10))
    manifest = fold_session(tmp_path)
    assert len(manifest.files["snapshots"]) == 6
    query = "SELECT uri, count(*), max(body->>'minute') FROM {} GROUP BY 1 ORDER BY 1"
    last = [("/api/cluster_status", 20, "9"), ("/nodes?view=summary", 20, "9")]
    assert rows(tmp_path, manifest, query.format("snapshots")) == last
    as_of_ns = parse_ns("2026-11-15T19:05:30Z")
    assert as_of_ns
    assert len(tables_as_of(tmp_path, manifest, as_of_ns)["snapshots"]) == 12
