"""What Ray says of a cluster as a whole, asked of one that is gone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from rayhistory.layout import Layout
from rayhistory.server.app import create_app
from recorded_sample import NODE, REF, keep_sample, serving, settings_for


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("cluster")) as client:
        yield client


def test_no_driver_is_active_in_a_cluster_that_is_gone(client: TestClient) -> None:
    """In Ray's own shape: what scales clusters down asks for it."""
    job_head = pytest.importorskip("ray.dashboard.modules.job.job_head")
    answer = client.get("api/component_activities").json()
    assert set(answer) == {"driver"}
    driver = job_head.RayActivityResponse(**answer["driver"])
    ended = [job["end_time"] for job in client.get("api/jobs/").json() if job["job_id"]]
    assert (driver.is_active.value, driver.reason) == ("INACTIVE", None)
    assert driver.last_activity_at == max(ended) / 1000
    assert driver.timestamp >= driver.last_activity_at


def test_drivers_are_active_at_the_moment_at_which_they_ran(client: TestClient) -> None:
    jobs = [job for job in client.get("api/jobs/").json() if job["job_id"]]
    moment = min(job["end_time"] for job in jobs) - 1
    running = sum(job["start_time"] <= moment <= job["end_time"] for job in jobs)
    driver = client.get(f"http://testserver{REF.url[:-1]}@{moment}/api/component_activities").json()["driver"]
    assert (driver["is_active"], driver["reason"]) == ("ACTIVE", f"Number of active drivers: {running}")
    assert driver["timestamp"] <= moment / 1000


def platform_event(name: str, at: str, message: str) -> dict[str, Any]:
    """As Ray's aggregator sends what happened in Kubernetes."""
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


def test_events_of_the_platform_are_told_the_newest_first(tmp_path: Path) -> None:
    """As Ray tells them: its page does not sort. One that came again has its latest time."""
    settings = settings_for(tmp_path)
    keep_sample(settings)
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
        answer = client.get("api/v0/platform_events").json()
    assert answer == {"result": True, "msg": "Retrieved platform events", "data": {"events": [third, again, second]}}


def test_without_events_of_the_platform_their_page_is_hidden(client: TestClient) -> None:
    assert client.head("api/v0/platform_events").status_code == 404
