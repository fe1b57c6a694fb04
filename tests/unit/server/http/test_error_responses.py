"""Every error has a code: in the body of our own API, and in a header of every response."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rayhistory.errors import (
    ERROR_HEADER,
    IndexFailed,
    ProductFailed,
    ProductNotBuilt,
    SessionNotIndexed,
    StoreDenied,
    StoreThrottled,
)
from rayhistory.server.http.error_responses import api_error_response, code_of_status, ray_error_response
from rayhistory.server.http.paths import HISTORY_API, is_history_api
from support.recorded_sample import REF
from support.two_namespaces import (
    ALLOWED_TOKEN,
    HIDDEN,
    bearer,
    fill_path,
    serve_two_namespaces,
    server_routes,
    session_routes,
    write_access_file,
)

NO_SESSION = "/s/default/unknown/latest"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("errors")
    with serve_two_namespaces(
        directory, auth="token", access_file=write_access_file(directory), rate_limit=0
    ) as client:
        yield client


def history_api_paths(client: TestClient) -> list[str]:
    """List the paths of our own API, those of a session without the session."""
    paths = [fill_path(route.path) for route in session_routes(client.app) if is_history_api(route.path)]
    assert len(paths) >= 5
    return paths


def assert_api_error(client: TestClient, path: str, status: int, code: str, **headers: str) -> None:
    response = client.get(path, headers=headers)
    assert response.status_code == status, (path, response.text)
    assert response.headers[ERROR_HEADER] == code, path
    error = response.json()["error"]
    assert set(error) == {"status", "code", "message"}
    assert (error["status"], error["code"]) == (status, code)
    assert error["message"]


def test_every_session_route_of_our_api_reports_codes(client: TestClient) -> None:
    allowed = bearer(ALLOWED_TOKEN)
    for path in history_api_paths(client):
        assert_api_error(client, NO_SESSION + path, 404, "session_not_found", **allowed)
        assert_api_error(client, HIDDEN.url[:-1] + path, 403, "access_denied", **allowed)
        assert_api_error(client, REF.url[:-1] + path, 401, "not_signed_in")
        assert_api_error(client, f"{REF.url[:-1]}@soon{path}", 400, "invalid_request", **allowed)
        assert_api_error(client, "/s/Default/sample/latest" + path, 400, "invalid_request", **allowed)


def test_every_server_route_of_our_api_reports_codes(client: TestClient) -> None:
    paths = [route.path for route in server_routes(client.app) if is_history_api(route.path)]
    assert len(paths) >= 3
    for path in paths:
        assert_api_error(client, path, 401, "not_signed_in")
    assert_api_error(client, f"{HISTORY_API}sessions?state=x", 400, "invalid_request", **bearer(ALLOWED_TOKEN))


@pytest.mark.slow
def test_unknown_paths_and_missing_sessions_have_codes(client: TestClient) -> None:
    allowed = bearer(ALLOWED_TOKEN)
    assert_api_error(client, f"{REF.url}api/history/unknown", 404, "not_found", **allowed)
    assert_api_error(client, f"{HISTORY_API}gaps", 400, "no_session_selected", **allowed)
    assert_api_error(client, f"{REF.url}api/history/rows/unknown", 400, "invalid_request", **allowed)
    assert_api_error(client, f"{REF.url}api/history/rows/tasks?where=x", 400, "invalid_request", **allowed)


def test_path_with_a_line_break_gets_the_error_of_its_api(client: TestClient) -> None:
    """Starlette's Mount does not match such a path, and its default response is plain text."""
    response = client.get(f"{REF.url}api/history/rows/tasks%0A1", headers=bearer(ALLOWED_TOKEN))
    assert response.status_code == 404
    assert response.json()["error"]["code"] == response.headers[ERROR_HEADER] == "not_found"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_other_methods_have_a_code(client: TestClient, method: str) -> None:
    for path in (f"{HISTORY_API}sessions", f"{REF.url}api/v0/tasks"):
        response = client.request(method, path, headers=bearer(ALLOWED_TOKEN))
        assert (response.status_code, response.headers[ERROR_HEADER]) == (405, "method_not_allowed")
        if is_history_api(path):
            assert response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (f"{NO_SESSION}/api/v0/tasks", 404, "session_not_found"),
        (f"{REF.url}api/v0/tasks?limit=x", 400, "invalid_request"),
        (f"{REF.url}api/jobs/unknown", 404, "not_found"),
        (f"{REF.url}unknown", 404, "not_found"),
        (f"{REF.url}static/unknown.js", 404, "not_found"),
        ("/assets/unknown.js", 404, "not_found"),
        ("/api/v0/tasks", 400, "no_session_selected"),
        ("/enter_cluster/default/raycluster/unknown", 404, "session_not_found"),
        (f"{REF.url}api/v0/logs/file?node_id=x&filename=y", 500, "log_not_found"),
    ],
)
def test_rays_routes_report_the_code_in_a_header(client: TestClient, path: str, status: int, code: str) -> None:
    response = client.get(path, headers=bearer(ALLOWED_TOKEN))
    assert (response.status_code, response.headers.get(ERROR_HEADER)) == (status, code)


def test_pages_report_the_code_in_a_header(client: TestClient) -> None:
    page = client.get(f"{NO_SESSION}/", headers=bearer(ALLOWED_TOKEN) | {"Accept": "text/html"})
    assert (page.status_code, page.headers[ERROR_HEADER]) == (404, "session_not_found")
    assert "text/html" in page.headers["content-type"]


def test_successful_responses_have_no_code(client: TestClient) -> None:
    for path in (f"{HISTORY_API}sessions", f"{REF.url}api/profiling_enabled"):
        assert ERROR_HEADER not in client.get(path, headers=bearer(ALLOWED_TOKEN)).headers


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (SessionNotIndexed("reading events"), 503, "session_not_indexed"),
        (ProductNotBuilt("diagnosis: reading"), 503, "product_not_built"),
        (ProductFailed("out of memory"), 500, "product_failed"),
        (StoreThrottled("slow down"), 503, "store_throttled"),
        (StoreDenied("no permission"), 503, "store_denied"),
        (IndexFailed("out of memory"), 500, "index_failed"),
    ],
)
def test_errors_that_pass_ask_to_retry(error: Exception, status: int, code: str) -> None:
    for respond in (api_error_response, ray_error_response):
        response = respond(error)  # type: ignore[arg-type]
        assert (response.status_code, response.headers[ERROR_HEADER]) == (status, code)
        assert ("retry-after" in response.headers) == (status == 503)


def test_statuses_without_an_error_class_have_a_code() -> None:
    assert code_of_status(410) == "not_found"
    assert code_of_status(426) == "invalid_request"
    assert code_of_status(501) == "internal_error"


def test_code_header_is_readable_across_origins(tmp_path: Path) -> None:
    origin = "https://notebook.example"
    with serve_two_namespaces(tmp_path, cors_origins=(origin,)) as client:
        response = client.get(f"{NO_SESSION}/api/v0/tasks", headers={"Origin": origin})
        assert ERROR_HEADER in response.headers["access-control-expose-headers"]
