"""What Ray says of a cluster as a whole, asked of one that is gone."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from recorded_sample import REF, serving


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
