"""No route shows a session of another namespace, however the session is addressed."""

from collections.abc import Iterator

import pytest
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse

from rayhistory.server.http.paths import PUBLIC, is_frontend_file
from support.recorded_sample import REF
from support.two_namespaces import (
    ALLOWED_TOKEN,
    HIDDEN,
    UNKNOWN_TOKEN,
    bearer,
    cookie_header_for,
    fill_path,
    kuberay_cookies,
    serve_two_namespaces,
    server_routes,
    session_routes,
    write_access_file,
)

OWNER = f"/s/{HIDDEN.namespace}/~rayjob/{HIDDEN.owner_name}"
PREFIXES = (
    HIDDEN.url[:-1], f"/s/{HIDDEN.namespace}/{HIDDEN.cluster}/latest", f"/s/{HIDDEN.namespace}/{HIDDEN.cluster}/live",
    f"{HIDDEN.url[:-1]}@1786526102000", OWNER, f"{OWNER}/live", f"/s/%74eam-x/{HIDDEN.cluster}/latest",
    f"/s/{HIDDEN.namespace}/missing/latest",
)  # fmt: skip
ENTER_PATHS = (
    f"/enter_cluster/{HIDDEN.namespace}/raycluster/{HIDDEN.cluster}",
    f"/enter_cluster/{HIDDEN.namespace}/{HIDDEN.cluster}/live",
    f"/enter_cluster/{HIDDEN.namespace}/rayjob/{HIDDEN.owner_name}/latest",
    f"/enter_cluster/{HIDDEN.namespace}/raycluster/{HIDDEN.cluster}/{HIDDEN.session}",
)  # fmt: skip

STATIC_FILES = "/assets/"
"""At the root, the static files of our own pages are public."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("admission")
    with serve_two_namespaces(
        directory, auth="token", access_file=write_access_file(directory), rate_limit=0
    ) as client:
        yield client


def request_status(client: TestClient, route: Route | WebSocketRoute, path: str, headers: dict[str, str]) -> int:
    if isinstance(route, WebSocketRoute):
        try:
            with client.websocket_connect(path, headers=headers):
                return 101
        except WebSocketDenialResponse as denied:
            return denied.status_code
    return client.get(path, headers=headers).status_code


def test_session_routes_need_a_token(client: TestClient) -> None:
    for route in session_routes(client.app):
        for path, headers in (
            (REF.url[:-1] + fill_path(route.path), {}),
            (fill_path(route.path), cookie_header_for(kuberay_cookies())),
        ):
            is_public = is_frontend_file(path) or path.startswith(STATIC_FILES)
            assert request_status(client, route, path, headers) == (404 if is_public else 401), path


@pytest.mark.parametrize("prefix", PREFIXES)
def test_session_routes_deny_other_namespaces(client: TestClient, prefix: str) -> None:
    for route in session_routes(client.app):
        assert request_status(client, route, prefix + fill_path(route.path), bearer(ALLOWED_TOKEN)) == 403, route.path


def test_forged_kuberay_cookies_are_denied(client: TestClient) -> None:
    forged = cookie_header_for(kuberay_cookies(HIDDEN)) | bearer(ALLOWED_TOKEN)
    of_all_sessions = {route.path for route in server_routes(client.app)}  # they ignore cookies
    for route in session_routes(client.app):
        path = fill_path(route.path)
        if path in of_all_sessions:
            continue
        is_public = is_frontend_file(path) or path.startswith(STATIC_FILES)
        assert request_status(client, route, path, forged) == (404 if is_public else 403), path


@pytest.mark.parametrize("path", ENTER_PATHS)
def test_session_of_another_namespace_cannot_be_entered(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401
    response = client.get(path, headers=bearer(ALLOWED_TOKEN))
    assert response.status_code == 403
    assert "set-cookie" not in response.headers
    assert (
        client.get(
            f"/enter_cluster/{REF.namespace}/raycluster/{REF.cluster}", headers=bearer(ALLOWED_TOKEN)
        ).status_code
        == 200
    )


def test_server_routes_need_a_token_or_are_public(client: TestClient) -> None:
    """This test finds new routes: each needs a token and shows nothing of other namespaces."""
    for route in server_routes(client.app):
        path = fill_path(route.path)
        anonymous = client.get(path)
        assert (anonymous.status_code == 401) != path.startswith(PUBLIC), path
        response = client.get(path, headers=bearer(ALLOWED_TOKEN))
        for secret in (HIDDEN.namespace, HIDDEN.cluster, HIDDEN.session, HIDDEN.owner_name):
            assert str(secret) not in response.text + anonymous.text, path
    mounts = {route.path for route in client.app.routes if isinstance(route, Mount)}  # type: ignore[attr-defined]
    assert mounts == {"/assets", "/s", ""}


def test_lists_show_only_visible_sessions(client: TestClient) -> None:
    listed = client.get("/clusters", headers=bearer(ALLOWED_TOKEN)).json()
    assert {(row["namespace"], row["name"]) for row in listed} == {
        ("default", "sample"),
        ("default", "a.cluster.with.dots"),
    }
    for query in ("", "?namespace=team-x", "?q=vault", "?state=ended", "?owner=rayjob"):
        rows = client.get(f"/home.json{query}", headers=bearer(ALLOWED_TOKEN)).json()
        assert {row["namespace"] for row in rows["sessions"]} <= {"default"}
        assert rows["total"] == len(rows["sessions"])
        assert HIDDEN.session not in client.get(f"/home{query}", headers=bearer(ALLOWED_TOKEN)).text


def test_session_routes_admit_an_allowed_visitor(client: TestClient) -> None:
    for route in session_routes(client.app):
        assert request_status(client, route, REF.url[:-1] + fill_path(route.path), bearer(ALLOWED_TOKEN)) not in (
            401,
            403,
        ), route.path
    assert (
        client.get("/api/jobs/", headers=bearer(ALLOWED_TOKEN) | cookie_header_for(kuberay_cookies())).status_code
        == 200
    )


def test_invalid_token_is_reported_as_by_ray(client: TestClient) -> None:
    missing, invalid = (client.get(f"{REF.url}api/v0/tasks", headers=h) for h in ({}, bearer(UNKNOWN_TOKEN)))
    assert (missing.status_code, missing.text) == (401, "Unauthorized: Missing authentication token")
    assert (invalid.status_code, invalid.text) == (403, "Forbidden: Invalid authentication token")
    assert missing.headers["www-authenticate"] == "Bearer"
    api = client.get(f"{REF.url}api/history/gaps", headers=bearer(UNKNOWN_TOKEN))
    error = {"status": 403, "code": "invalid_token", "message": "Forbidden: Invalid authentication token"}
    assert api.json() == {"error": error}


@pytest.mark.parametrize("token", ["", "x" * 20_000, "ü-token-with-umlauts-in-it", "Basic abc", "a\tb"])
def test_malformed_tokens_are_refused(client: TestClient, token: str) -> None:
    headers = [(b"authorization", b"Bearer " + token.encode("latin-1"))]
    assert client.get(f"{REF.url}api/v0/tasks", headers=headers).status_code in (401, 403)
    cookie = [(b"cookie", b"rayhistory-token=" + token.encode("latin-1"))]
    assert client.get(f"{REF.url}api/v0/tasks", headers=cookie).status_code in (401, 403)


def test_token_is_read_from_the_headers_that_ray_reads(client: TestClient) -> None:
    tasks = f"{REF.url}api/v0/tasks"
    for headers in (
        bearer(ALLOWED_TOKEN),
        {"X-Ray-Authorization": f"Bearer {ALLOWED_TOKEN}"},
        {"Cookie": f"rayhistory-token={ALLOWED_TOKEN}"},
        {"Authorization": f"bearer {ALLOWED_TOKEN}"},
    ):
        assert client.get(tasks, headers=headers).status_code == 200
    rays_cookie = {"Cookie": f"ray-authentication-token={ALLOWED_TOKEN}"}
    assert client.get(tasks, headers=rays_cookie).status_code == 401
