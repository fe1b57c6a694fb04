"""Requests for the location of a task's output that name no task."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from support.recorded_sample import serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("task-output")) as client:
        yield client


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("", 400, "task_id is required"),
        ("task_id=ab&attempt=-1", 400, "invalid attempt '-1': use a whole number"),
        ("task_id=ab", 404, "task ab not found in this session"),
        ("task_id=ab&attempt=1", 404, "attempt 1 of task ab not found in this session"),
    ],
)
def test_error_says_what_is_missing_or_invalid(client: TestClient, query: str, status: int, message: str) -> None:
    response = client.get(f"api/history/task_log_info?{query}")
    assert (response.status_code, response.json()["error"]["message"]) == (status, message)
