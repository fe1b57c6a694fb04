"""The page around a dashboard: who gets it and who does not, what its slider is told, and the page of gaps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.server.routes import course
from recorded_sample import REF, keep_only_node, live_rows, serving, settings_for

NAVIGATION = {"Sec-Fetch-Dest": "document", "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PLAIN_HTTP = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
BY_COOKIE = {"cluster_name": REF.cluster, "cluster_namespace": REF.namespace, "session_name": REF.session}
BAR, FRONTEND = 'id="bar"', 'id="root"'
MOMENT = 1_794_770_340_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("frame")) as client:
        client.get("api/jobs/")  # pages do not wait for the fold for long
        yield client


def totals(marks: list[dict[str, int]]) -> dict[str, int]:
    return {kind: sum(mark[kind] for mark in marks) for kind in ("tasks", "actors", "jobs")}


def ask(client: TestClient, path: str = "api/history/course") -> dict[str, Any]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("headers", [NAVIGATION, PLAIN_HTTP], ids=["says where to", "says what it reads"])
def test_a_browser_that_opens_a_session_gets_the_bar_around_it(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.get("", headers=headers)
    assert BAR in answer.text
    assert FRONTEND not in answer.text
    assert f'data-address="{REF.url.rstrip("/")}"' in answer.text


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("", {"Accept": "*/*"}),
        ("", {"Accept": "application/json"}),
        ("", {**NAVIGATION, "Sec-Fetch-Dest": "iframe"}),
        ("", {**NAVIGATION, "Sec-Fetch-Dest": "empty"}),
        ("?bare=1", NAVIGATION),
        ("?bare=1", PLAIN_HTTP),
        ("?bare=true", NAVIGATION),
    ],
)
def test_all_others_get_the_frontend_itself(client: TestClient, path: str, headers: dict[str, str]) -> None:
    """Programs, other people's frames, and whoever asks for it bare."""
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200
    assert FRONTEND in answer.text
    assert BAR not in answer.text


def test_bare_can_be_taken_back(client: TestClient) -> None:
    assert BAR in client.get("?bare=0", headers=NAVIGATION).text


def test_what_comes_through_rays_own_dashboard_has_no_bar(client: TestClient) -> None:
    """It passes on what a browser says, and adds a content type; our files are not where the page would look."""
    answer = client.get("", headers={**NAVIGATION, "User-Agent": "Mozilla/5.0", "Content-Type": "application/json"})
    assert FRONTEND in answer.text


def test_a_session_chosen_by_cookies_has_no_bar(client: TestClient) -> None:
    cookies = "; ".join(f"{name}={value}" for name, value in BY_COOKIE.items())
    answer = client.get("http://testserver/", headers={**NAVIGATION, "Cookie": cookies})
    assert FRONTEND in answer.text


def test_caches_are_told_what_decides(client: TestClient) -> None:
    for headers in (NAVIGATION, {"Accept": "*/*"}):
        answer = client.get("", headers=headers)
        assert {"Accept", "Sec-Fetch-Dest"} <= set(answer.headers["vary"].split(", "))
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["api/version", "api/jobs/", "nodes?view=summary", "timezone", "favicon.ico", "nothing"]
)
def test_other_paths_answer_a_navigation_as_always(client: TestClient, path: str) -> None:
    asked, navigated = client.get(path), client.get(path, headers=NAVIGATION)
    assert navigated.status_code == asked.status_code
    assert navigated.headers["content-type"] == asked.headers["content-type"]
    assert BAR not in navigated.text


def test_the_bar_can_be_shown_only_inside_of_our_own_pages(client: TestClient) -> None:
    """And what is inside it can be shown there."""
    for path in ("", "?bare=1"):
        headers = client.get(path, headers=NAVIGATION).headers
        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert "frame-ancestors 'self'" in headers["content-security-policy"]


@pytest.mark.parametrize("query", ["", "?bare=1", "?dashboard=2.60.0&bare=1"])
def test_the_way_to_the_canonical_address_keeps_what_was_asked_for(client: TestClient, query: str) -> None:
    base = f"http://testserver/s/{REF.namespace}/{REF.cluster}"
    latest = client.get(f"{base}/latest/{query}", follow_redirects=False)
    assert latest.headers["location"] == f"{REF.url}{query}"
    moment = client.get(f"{base}/{REF.session}@2026-11-15T19:19:00Z/{query}", follow_redirects=False)
    assert moment.headers["location"] == f"{REF.url[:-1]}@1794770340000/{query}"


def test_a_moment_has_a_bar_that_says_so(client: TestClient) -> None:
    answer = client.get(f"http://testserver{REF.url[:-1]}@{MOMENT}/", headers=NAVIGATION)
    assert "As of 2026-11-15 19:19 UTC" in answer.text
    assert f'data-address="{REF.url.rstrip("/")}"' in answer.text


def test_a_session_that_is_not_there_is_told_as_a_page(client: TestClient) -> None:
    answer = client.get("http://testserver/s/default/nobody/latest/", headers=NAVIGATION)
    assert answer.status_code == 404
    assert "No such session" in answer.text


def test_the_course_tells_when_something_failed(client: TestClient) -> None:
    """Tasks that Ray said had failed and one that ended with its job, an actor's restart and death, two jobs."""
    found = ask(client)
    failed = [row for row in live_rows("v0_tasks_detail") if row["state"] == "FAILED"]
    assert totals(found["failures"]) == {"tasks": len(failed) + 1, "actors": 2, "jobs": 2}
    times = [mark["at_ms"] for mark in found["failures"]]
    assert times == sorted(times)
    assert found["started_ms"] <= times[0] <= times[-1] <= found["last_ms"]
    assert {row["end_time_ms"] for row in failed if row["name"] == "suicide"} <= set(times)
    assert found["state"] == "ended"


def test_many_failures_are_few_marks_and_none_is_lost(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = ask(client)["failures"]
    monkeypatch.setattr(course, "MOST_MARKS", 3)
    few = ask(client, "api/history/course?another=question")["failures"]
    assert len(everything) > 3 >= len(few)
    assert totals(few) == totals(everything)
    assert few[-1]["at_ms"] == everything[-1]["at_ms"]


def test_the_course_up_to_a_moment_ends_there(client: TestClient) -> None:
    whole, then = ask(client), ask(client, f"http://testserver{REF.url[:-1]}@{MOMENT}/api/history/course")
    assert then["last_ms"] == MOMENT
    assert then["started_ms"] == whole["started_ms"]
    assert then["failures"]
    assert max(mark["at_ms"] for mark in then["failures"]) <= MOMENT
    assert totals(then["failures"])["tasks"] < totals(whole["failures"])["tasks"]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ({}, False),
        ({"actor_died_error_context": {"reason": "OUT_OF_SCOPE", "error_message": "all references removed"}}, False),
        ({"actor_died_error_context": {"reason": "RAY_KILL"}}, False),
        ({"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": "type: INTENDED_USER_EXIT"}}, False),
        ({"actor_died_error_context": {"reason": "WORKER_DIED", "error_message": "type: SYSTEM_ERROR"}}, True),
        ({"actor_died_error_context": {"reason": "NODE_DIED"}}, True),
        ({"actor_died_error_context": "odd"}, True),
        ({"creation_task_failure_context": {}}, True),
        ({"oom_context": {"error_message": "out of memory"}}, True),
    ],
)
def test_an_actor_that_was_meant_to_end_has_not_failed(cause: dict[str, Any], expected: bool) -> None:
    assert course.has_failed(cause) is expected


def test_the_course_costs_nothing_when_nothing_changed(client: TestClient) -> None:
    tag = client.get("api/history/course").headers["etag"]
    assert client.get("api/history/course", headers={"If-None-Match": tag}).status_code == 304


def test_gaps_are_a_page_and_the_same_as_json(client: TestClient) -> None:
    page = client.get("gaps", headers=NAVIGATION)
    assert page.headers["content-type"].startswith("text/html")
    body = ask(client, "gaps.json")
    assert body == ask(client, "api/history/gaps")
    kinds = {row["kind"] for row in body["gaps"]}
    assert "task without a definition" in kinds
    for kind in kinds:
        assert (kind[0].upper() + kind[1:]).replace("'", "&#39;") in page.text


def test_a_session_from_which_nothing_was_lost_is_complete(tmp_path: Path) -> None:
    """Ray reports no end of nodes: that they were closed is told, and is no loss."""
    settings = settings_for(tmp_path)
    keep_only_node(settings)
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        gaps = ask(client, "api/history/gaps")
        assert "node closed at the session's end" in {row["kind"] for row in gaps["gaps"]}
        assert (gaps["complete"], ask(client)["gaps"]) == (True, 0)
        assert "Nothing was lost" in client.get("gaps", headers=NAVIGATION).text


def test_a_session_from_which_something_was_lost_is_not_complete(client: TestClient) -> None:
    assert ask(client, "api/history/gaps")["complete"] is False
    assert ask(client)["gaps"] > 0
    assert "Nothing was lost" not in client.get("gaps", headers=NAVIGATION).text


def test_the_page_of_gaps_of_no_session_says_so(client: TestClient) -> None:
    answer = client.get("http://testserver/s/default/nobody/latest/gaps", headers=NAVIGATION)
    assert answer.status_code == 404
    assert "No such session" in answer.text
    failed = client.get("http://testserver/s/default/nobody/latest/gaps.json")
    assert failed.json()["error"]["status"] == 404


@pytest.mark.parametrize("headers", [{"User-Agent": "Mozilla/5.0"}, {}], ids=["page", "program"])
def test_what_is_open_at_a_moment_goes_on_until_then_on_pages(client: TestClient, headers: dict[str, str]) -> None:
    """They count from its start to its end, or to today; programs are told that there was no end."""
    tasks = client.get("api/v0/tasks?detail=1&limit=10000").json()["data"]["result"]["result"]
    longest = max(
        (task for task in tasks if task["start_time_ms"]), key=lambda t: t["end_time_ms"] - t["start_time_ms"]
    )
    moment = int(longest["start_time_ms"] + longest["end_time_ms"]) // 2

    def then(path: str) -> Any:
        return client.get(f"http://testserver{REF.url[:-1]}@{moment}/{path}", headers=headers).json()

    tasks = then("api/v0/tasks?detail=1&limit=10000")["data"]["result"]["result"]
    actors = then("logical/actors")["data"]["actors"].values()
    ends = {
        "jobs": {job["end_time"] for job in then("api/jobs/") if job["status"] == "RUNNING"},
        "tasks": {task["end_time_ms"] for task in tasks if task["state"] == "RUNNING"},
        "actors": {actor["endTime"] or None for actor in actors if actor["state"] == "ALIVE"},
    }
    assert ends == {kind: {moment if headers else None} for kind in ends}
