"""The frame page: which requests get the bar, and which get Ray's frontend."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.recorded_sample import REF, serving

NAVIGATION = {"Sec-Fetch-Dest": "document", "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PLAIN_HTTP = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
BY_COOKIE = {"cluster_name": REF.cluster, "cluster_namespace": REF.namespace, "session_name": REF.session}
BAR, FRONTEND = 'id="bar"', 'id="root"'
AS_OF_MS = 1_794_770_340_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("frame")) as client:
        client.get("api/jobs/")  # index the session before pages are opened
        yield client


@pytest.mark.parametrize("headers", [NAVIGATION, PLAIN_HTTP], ids=["Sec-Fetch-Dest", "Accept"])
def test_browser_navigation_gets_the_bar(client: TestClient, headers: dict[str, str]) -> None:
    response = client.get("", headers=headers)
    assert BAR in response.text
    assert FRONTEND not in response.text
    assert f'data-session-path="{REF.url.rstrip("/")}"' in response.text


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("", {"Accept": "*/*"}),
        ("", {"Accept": "application/json"}),
        ("", {**NAVIGATION, "Sec-Fetch-Dest": "iframe"}),
        ("", {**NAVIGATION, "Sec-Fetch-Dest": "empty"}),
        ("?bare=1", {**NAVIGATION, "Sec-Fetch-Dest": "iframe"}),
        ("?bare=1", PLAIN_HTTP),
        ("?bare=always", NAVIGATION),
        ("?bare=always", PLAIN_HTTP),
    ],
)
def test_other_requests_get_the_frontend(client: TestClient, path: str, headers: dict[str, str]) -> None:
    """Programs, frames, and ?bare=always."""
    response = client.get(path, headers=headers)
    assert response.status_code == 200
    assert FRONTEND in response.text
    assert BAR not in response.text


@pytest.mark.parametrize("bare", ["0", "", "1", "true"])
def test_tab_has_the_bar_whatever_bare_says(client: TestClient, bare: str) -> None:
    """A link inside the frame has `?bare=1`. Opened in a new tab, it must not look like a live dashboard."""
    response = client.get(f"?bare={bare}", headers=NAVIGATION)
    assert BAR in response.text
    assert FRONTEND not in response.text


def test_script_decides_where_the_browser_does_not_say(client: TestClient) -> None:
    """Over plain HTTP, frame and tab send the same request."""
    script = '<script src="/assets/top-level.js">'
    assert script in client.get("?bare=1", headers=PLAIN_HTTP).text
    for path, headers in (
        ("?bare=always", PLAIN_HTTP),
        ("?bare=1", {"Accept": "*/*"}),
        ("?bare=1", {**NAVIGATION, "Sec-Fetch-Dest": "iframe"}),
    ):
        assert script not in client.get(path, headers=headers).text
    assert client.get("http://testserver/assets/top-level.js").status_code == 200


def test_frontend_does_not_ask_for_platform_events_that_a_session_lacks(client: TestClient) -> None:
    """A browser would report the 404. Programs, and browsers behind Ray's own dashboard, get the plain document."""
    script = '<script src="/assets/no-platform-events.js">'
    for headers in ({**NAVIGATION, "Sec-Fetch-Dest": "iframe"}, PLAIN_HTTP):
        assert script in client.get("?bare=1", headers=headers).text
    proxied = {**PLAIN_HTTP, "User-Agent": "Mozilla/5.0", "Content-Type": "application/json"}
    for headers in ({"Accept": "*/*"}, proxied):
        assert "/assets/" not in client.get("?bare=1", headers=headers).text
    assert client.get("http://testserver/assets/no-platform-events.js").status_code == 200


def test_time_before_the_start_is_refused_with_a_link_to_the_start(client: TestClient) -> None:
    response = client.get(f"http://testserver{REF.url[:-1]}@1960-01-01T00:00:00Z/", headers=NAVIGATION)
    assert response.status_code == 404
    assert "This time is before the session&#39;s start" in response.text
    assert re.search(rf'href="{REF.url[:-1]}@\d+/"', response.text)


def test_time_shortly_before_the_start_is_refused_with_a_link_that_works(client: TestClient) -> None:
    """The start comes from the session's own records and events."""
    started_ms = client.get("api/history/overview").json()["started_ms"]
    before = f"http://testserver{REF.url[:-1]}@{started_ms - 1000}/"
    response = client.get(before, headers=NAVIGATION)
    assert response.status_code == 404
    assert "This time is before the session&#39;s start" in response.text
    assert client.get(before, headers={"Accept": "*/*"}).status_code == 404
    link = re.search(rf'href="({REF.url[:-1]}@\d+/)"', response.text)
    assert link
    assert client.get(f"http://testserver{link[1]}", headers=NAVIGATION).status_code == 200


def test_unknown_page_of_a_session_gets_a_page(client: TestClient) -> None:
    response = client.get("nothing", headers=NAVIGATION)
    assert (response.status_code, response.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Page not found" in response.text
    assert client.get("nothing").text == "404: Not Found"


def test_requests_through_the_ray_proxy_get_no_bar(client: TestClient) -> None:
    """The proxy forwards the browser's headers and adds a content type. The bar's files would not be found there."""
    response = client.get("", headers={**NAVIGATION, "User-Agent": "Mozilla/5.0", "Content-Type": "application/json"})
    assert FRONTEND in response.text


def test_session_selected_by_cookies_has_no_bar(client: TestClient) -> None:
    cookies = "; ".join(f"{name}={value}" for name, value in BY_COOKIE.items())
    response = client.get("http://testserver/", headers={**NAVIGATION, "Cookie": cookies})
    assert FRONTEND in response.text


def test_vary_header_names_what_decides(client: TestClient) -> None:
    for headers in (NAVIGATION, {"Accept": "*/*"}):
        response = client.get("", headers=headers)
        assert {"Accept", "Sec-Fetch-Dest"} <= set(response.headers["vary"].split(", "))
        assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["api/version", "api/jobs/", "nodes?view=summary", "timezone", "favicon.ico"])
def test_navigation_to_other_paths_gets_no_bar(client: TestClient, path: str) -> None:
    plain, navigated = client.get(path), client.get(path, headers=NAVIGATION)
    assert navigated.status_code == plain.status_code
    assert navigated.headers["content-type"] == plain.headers["content-type"]
    assert BAR not in navigated.text


def test_frame_page_can_be_embedded_only_by_the_same_origin(client: TestClient) -> None:
    """The frontend can be embedded in the frame page."""
    for path in ("", "?bare=1"):
        headers = client.get(path, headers=NAVIGATION).headers
        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert "frame-ancestors 'self'" in headers["content-security-policy"]


@pytest.mark.parametrize("query", ["", "?bare=1", "?dashboard=2.60.0&bare=1"])
def test_redirect_to_the_canonical_url_keeps_the_query(client: TestClient, query: str) -> None:
    base = f"http://testserver/s/{REF.namespace}/{REF.cluster}"
    latest = client.get(f"{base}/latest/{query}", follow_redirects=False)
    assert latest.headers["location"] == f"{REF.url}{query}"
    as_of = client.get(f"{base}/{REF.session}@2026-11-15T19:19:00Z/{query}", follow_redirects=False)
    assert as_of.headers["location"] == f"{REF.url[:-1]}@1794770340000/{query}"


def test_bar_shows_the_as_of_time(client: TestClient) -> None:
    response = client.get(f"http://testserver{REF.url[:-1]}@{AS_OF_MS}/", headers=NAVIGATION)
    assert "As of 2026-11-15 19:19 UTC" in response.text
    assert f'data-session-path="{REF.url.rstrip("/")}"' in response.text


def test_unknown_session_gets_an_error_page(client: TestClient) -> None:
    response = client.get("http://testserver/s/default/unknown/latest/", headers=NAVIGATION)
    assert response.status_code == 404
    assert "Session not found" in response.text


@pytest.mark.slow
@pytest.mark.parametrize("headers", [{"User-Agent": "Mozilla/5.0"}, {}], ids=["page", "program"])
def test_open_rows_end_as_of_the_shown_time_for_browsers(client: TestClient, headers: dict[str, str]) -> None:
    """Pages would count until now. Programs get no end time."""
    tasks = client.get("api/v0/tasks?detail=1&limit=10000").json()["data"]["result"]["result"]
    longest = max(
        (task for task in tasks if task["start_time_ms"]), key=lambda t: t["end_time_ms"] - t["start_time_ms"]
    )
    as_of_ms = int(longest["start_time_ms"] + longest["end_time_ms"]) // 2

    def then(path: str) -> Any:
        return client.get(f"http://testserver{REF.url[:-1]}@{as_of_ms}/{path}", headers=headers).json()

    tasks = then("api/v0/tasks?detail=1&limit=10000")["data"]["result"]["result"]
    actors = then("logical/actors")["data"]["actors"].values()
    ends = {
        "jobs": {job["end_time"] for job in then("api/jobs/") if job["status"] == "RUNNING"},
        "tasks": {task["end_time_ms"] for task in tasks if task["state"] == "RUNNING"},
        "actors": {actor["endTime"] or None for actor in actors if actor["state"] == "ALIVE"},
    }
    assert ends == {kind: {as_of_ms if headers else None} for kind in ends}
