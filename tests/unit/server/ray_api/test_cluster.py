"""Endpoints about the whole cluster, for a cluster that has ended."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.sessions import Layout
from support.recorded_sample import NODE, REF, serving, settings_for, store_sample

SECRETS = {"env_vars": {"K": "s3cret"}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("cluster")) as client:
        yield client


def test_no_driver_is_active_after_the_cluster_ended(client: TestClient) -> None:
    """The response has Ray's shape, which autoscalers read."""
    job_head = pytest.importorskip("ray.dashboard.modules.job.job_head")
    response = client.get("api/component_activities").json()
    assert set(response) == {"driver"}
    driver = job_head.RayActivityResponse(**response["driver"])
    ended = [job["end_time"] for job in client.get("api/jobs/").json() if job["job_id"]]
    assert (driver.is_active.value, driver.reason) == ("INACTIVE", None)
    assert driver.last_activity_at == max(ended) / 1000
    assert driver.timestamp >= driver.last_activity_at


@pytest.mark.slow
def test_drivers_are_active_as_of_a_time_when_they_ran(client: TestClient) -> None:
    jobs = [job for job in client.get("api/jobs/").json() if job["job_id"]]
    as_of_ms = min(job["end_time"] for job in jobs) - 1
    running = sum(job["start_time"] <= as_of_ms <= job["end_time"] for job in jobs)
    driver = client.get(f"http://testserver{REF.url[:-1]}@{as_of_ms}/api/component_activities").json()["driver"]
    assert (driver["is_active"], driver["reason"]) == ("ACTIVE", f"Number of active drivers: {running}")
    assert driver["timestamp"] <= as_of_ms / 1000


def platform_event(name: str, at: str, message: str) -> dict[str, Any]:
    """Return an event as Ray's aggregator sends it for Kubernetes."""
    source = {"platform": "KUBERNETES", "component": "kubelet", "metadata": {"host": "node-1"}}
    return {
        "eventId": name,
        "sourceType": "CLUSTER_LIFECYCLE",
        "eventType": "PLATFORM_EVENT",
        "timestamp": f"2026-11-15T{at}Z",
        "severity": "WARNING",
        "message": message,
        "platformEvent": {
            "source": source, "objectKind": "Pod", "objectName": "worker-1", "message": message, "reason": "BackOff",
            "customFields": {"count": "2"},
        },
    }  # fmt: skip


@pytest.mark.slow
def test_platform_events_are_listed_newest_first(tmp_path: Path) -> None:
    """The page does not sort. A repeated event has its latest time."""
    settings = settings_for(tmp_path)
    store_sample(settings)
    first = platform_event("Zmlyc3Q=", "19:19:01", "pulling")
    second = platform_event("c2Vjb25k", "19:19:02.5", "failed")
    third = platform_event("dGhpcmQ=", "19:19:03", "killed")
    again = platform_event("Zmlyc3Q=", "19:19:02.750", "pulling again")
    key = Layout().events_key(REF, NODE, "node_events", 1786526102000000777, compressed=False)
    (Path(settings.local_storage_dir) / key).write_bytes(
        b"\n".join(msgspec.json.encode(event) for event in (second, first, third, again))
    )
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        assert client.head("api/v0/platform_events").status_code == 200
        response = client.get("api/v0/platform_events").json()
    assert response == {"result": True, "msg": "Retrieved platform events", "data": {"events": [third, again, second]}}


def test_platform_events_page_is_hidden_without_events(client: TestClient) -> None:
    assert client.head("api/v0/platform_events").status_code == 404


@pytest.mark.parametrize("path", ["worker/traceback", "worker/cpu_profile", "memory_profile", "task/traceback"])
def test_profiling_is_unavailable(client: TestClient, path: str) -> None:
    """Older frontends link to these pages without checking that profiling is enabled."""
    response = client.get(f"{path}?pid=1&ip=127.0.0.1&node_id=x")
    assert (response.status_code, "running cluster" in response.text) == (410, True)


STORED_SECRETS = {
    "/api/train/v2/runs/v1": {"train_runs": [{"run_settings": {"worker_runtime_env": SECRETS}}]},
    "/api/serve/applications/": {"applications": {"a": {"deployed_app_config": {"runtime_env": SECRETS}}}},
    "/api/data/datasets/01000000": {"datasets": [{"config": SECRETS}]},
}


def test_stored_responses_are_masked_for_browsers(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    store_sample(settings)
    responses = [
        {
            "eventType": "DASHBOARD_SNAPSHOT",
            "timestamp": "2026-11-15T19:19:50.5Z",
            "dashboardSnapshot": {"uri": uri, "body": body},
        }
        for uri, body in STORED_SECRETS.items()
    ]
    key = Layout("").events_key(REF, NODE, "snapshots", 1786526102000000002, compressed=False)
    (tmp_path / "store" / key).write_bytes(b"\n".join(map(msgspec.json.encode, responses)))
    with TestClient(create_app(settings)) as client:
        for uri in STORED_SECRETS:
            assert "s3cret" in client.get(REF.url + uri[1:]).text, uri
            shown = client.get(REF.url + uri[1:], headers={"User-Agent": "Mozilla/5.0"}).text
            assert ("s3cret" in shown, "<redacted>" in shown) == (False, True), uri
