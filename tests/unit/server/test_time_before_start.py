"""A point in time before the session's start is an error, and not an empty session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rayhistory.errors import ERROR_HEADER, TimeBeforeStart
from support.cli_call import Command
from support.recorded_sample import REF, serving, settings_for, store_indexed_sample

LONG_AGO = "2020-01-01T00:00:00Z"
START_MS, START, END = 1_794_770_302_063, "2026-11-15T19:18:22.063Z", "2026-11-15T19:21:53.632Z"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("times")) as client:
        yield client


def url_at(at: str | int, path: str) -> str:
    return f"http://testserver{REF.url[:-1]}@{at}/{path}"


@pytest.mark.parametrize("at", [LONG_AGO, START_MS - 1])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("api/jobs/", "msg"),
        ("api/v0/tasks", "msg"),
        ("nodes?view=summary", "msg"),
        ("api/history/diagnosis", "error"),
        ("api/history/rows/tasks", "error"),
        ("api/history/metrics", "error"),
        ("api/history/search?q=x", "error"),
        ("prometheus/api/v1/query?query=up", "error"),
    ],
)
def test_apis_name_start_and_end_in_their_own_shape(client: TestClient, at: str | int, path: str, field: str) -> None:
    response = client.get(url_at(at, path))
    assert (response.status_code, response.headers[ERROR_HEADER]) == (404, TimeBeforeStart.code)
    text = str(response.json()[field])
    assert START in text
    assert END in text


def test_version_check_of_job_clients_succeeds_so_that_they_print_the_next_error(client: TestClient) -> None:
    assert client.get(url_at(LONG_AGO, "api/version")).status_code == 200


def test_pages_link_to_the_start(client: TestClient) -> None:
    response = client.get(url_at(LONG_AGO, "diagnosis"), headers={"Accept": "text/html"})
    assert response.status_code == 404
    assert f"{REF.url[:-1]}@{START_MS}/" in response.text


@pytest.mark.parametrize("path", ["api/jobs/", "api/v0/tasks", "api/history/overview", "api/history/metrics", ""])
def test_slider_can_show_the_very_start(client: TestClient, path: str) -> None:
    started_ms = client.get("api/history/overview").json()["started_ms"]
    assert started_ms == START_MS
    assert client.get(url_at(started_ms, path)).status_code == 200


def test_time_after_the_end_shows_the_end(client: TestClient) -> None:
    assert client.get(url_at(2_000_000_000_000, "api/jobs/")).json() == client.get("api/jobs/").json() != []


@pytest.mark.parametrize("command", ["tasks", "diagnose", "gaps", "summary"])
def test_command_fails_with_start_and_end(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store_indexed_sample(settings_for(tmp_path))
    done = Command(tmp_path, monkeypatch, capfd)(command, f"{REF.path}@{LONG_AGO}")
    assert (done.code, done.out) == (2, "")
    assert START in done.err
    assert END in done.err
