"""`rayhistory snapshot`: a captured session shows what the dashboard of the running cluster showed."""

import re
from pathlib import Path

import pytest

from support import archived_sessions
from support.archived_sessions import rayhistory
from support.dashboard_of_running_cluster import RunningClusterDashboard
from support.session_without_collector import (
    LISTS,
    LOG,
    UncollectedSession,
    differences,
    list_rows,
    serve_store,
    session_path,
)

KEYS = {
    "tasks": ("task_id", "attempt_number"), "actors": ("actor_id",), "nodes": ("node_id",), "workers": ("worker_id",),
    "placement_groups": ("placement_group_id",),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_lists_match_the_dashboard(uncollected: UncollectedSession, tmp_path: Path, name: str) -> None:
    """No end is inferred, because the cluster was still running."""
    uri = f"/api/v0/{name}?{LISTS}"
    with serve_store(uncollected.directory / "store", tmp_path) as client:
        ours, live = list_rows(client, uri, *KEYS[name]), uncollected.rows(uri, *KEYS[name])
        assert ours
        assert not differences(ours, live, set())


def test_jobs_logs_and_events_are_captured(uncollected: UncollectedSession, tmp_path: Path) -> None:
    assert "default/captured/" in uncollected.snapshot_output
    with serve_store(uncollected.directory / "store", tmp_path) as client:
        base = session_path(client)
        assert client.get(f"{base}/api/jobs/").json() == uncollected.live["/api/jobs/"]
        assert (
            client.get(f"{base}/api/version").json()["ray_version"] == uncollected.live["/api/version"]["ray_version"]
        )
        (node,) = list_rows(client, f"/api/v0/nodes?{LISTS}", "node_id")
        file = client.get(f"{base}/api/v0/logs/file?node_id={node[0]}&filename={LOG}&lines=-1")
        assert file.text == uncollected.log
        events = client.get(f"{base}/events").json()["data"]["events"]["global"]
        assert "Started a ray job sample-job." in {event["message"] for event in events}
        timeline = client.get(f"{base}/api/v0/tasks/timeline").json()
        assert {"task::load_shard", "task:execute"} <= {span.get("cat") for span in timeline}
        assert client.get(f"{base}/api/history/gaps").json()["gaps"] == []


def test_truncated_task_list_is_captured_per_job(tmp_path: Path, running_cluster: str) -> None:
    location = archived_sessions.directory(tmp_path / "store")
    done = rayhistory(
        location,
        "snapshot",
        running_cluster,
        "--name",
        "captured",
        "--log-limit",
        "500",
        RAY_AUTH_TOKEN=RunningClusterDashboard.token,
    )
    assert done.returncode == 0, done.stderr
    assert "10 tasks, 1 log files, 500 B" in done.stdout
    assert "log truncated to 500: raylet.out" in done.stdout
    assert "request failed: log gone.log of abababab…: status 500" in done.stdout
    with serve_store(tmp_path / "store", tmp_path / "cache") as client:
        base = session_path(client)
        tasks = list_rows(client, f"/api/v0/tasks?{LISTS}", *KEYS["tasks"]).values()
        assert len(tasks) == 10
        assert {task["state"] for task in tasks} == {"RUNNING"}
        gaps = [(gap["code"], gap["detail"]) for gap in client.get(f"{base}/api/history/gaps").json()["gaps"]]
        assert gaps == [("dashboard_list_truncated", "/api/v0/tasks: 5 listed, 2000 missing")]
        file = client.get(
            f"{base}/api/v0/logs/file?node_id={RunningClusterDashboard.node}&filename=raylet.out&lines=-1"
        )
        assert file.text == "0123456789" * 50


@pytest.mark.parametrize("path", ["/api/v0/tasks", "/api/v0/actors", "/api/jobs/", "/api/v0/logs"])
@pytest.mark.parametrize(
    "body", [b'{"data": {"result": "\xff"}}', b"[" * 100_000], ids=["invalid UTF-8", "deep nesting"]
)
def test_unreadable_response_is_reported(tmp_path: Path, running_cluster: str, path: str, body: bytes) -> None:
    location = archived_sessions.directory(tmp_path / "store")
    RunningClusterDashboard.overrides = {path: body}
    done = rayhistory(
        location, "snapshot", running_cluster, "--log-limit", "500", RAY_AUTH_TOKEN=RunningClusterDashboard.token
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"request failed: {re.escape(path)}\S*: unreadable response", done.stdout)


@pytest.mark.parametrize("body", [b'{"ray_version": "\xff"}', b"[" * 100_000], ids=["invalid UTF-8", "deep nesting"])
def test_unreadable_version_is_rejected(tmp_path: Path, running_cluster: str, body: bytes) -> None:
    RunningClusterDashboard.overrides = {"/api/version": body}
    done = rayhistory(
        archived_sessions.directory(tmp_path), "snapshot", running_cluster, RAY_AUTH_TOKEN=RunningClusterDashboard.token
    )
    assert done.returncode == 1
    assert "is not a Ray dashboard" in done.stderr


def test_log_limit_0_captures_no_logs(tmp_path: Path, running_cluster: str) -> None:
    location = archived_sessions.directory(tmp_path / "store")
    done = rayhistory(
        location, "snapshot", running_cluster, "--log-limit", "0", RAY_AUTH_TOKEN=RunningClusterDashboard.token
    )
    assert done.returncode == 0, done.stderr
    assert not [uri for uri in RunningClusterDashboard.requests if "/logs" in uri]


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("http://127.0.0.1:9", "no Ray dashboard responds at http://127.0.0.1:9"),
        ("nonsense", "nonsense: use the URL of a dashboard"),
        ("ftp://x", "ftp://x: use the URL of a dashboard"),
        ("RUNNING", "set RAY_AUTH_TOKEN"),
    ],
)
def test_missing_dashboard_is_a_one_line_error(tmp_path: Path, running_cluster: str, address: str, error: str) -> None:
    location = archived_sessions.directory(tmp_path)
    done = rayhistory(location, "snapshot", running_cluster if address == "RUNNING" else address)
    assert done.returncode in {1, 2}
    assert error in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert location.objects() == {}
