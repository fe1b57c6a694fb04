"""Nobody sees what is not theirs: on every route, however a session is named."""

from collections.abc import Iterator

import pytest
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse

from guarded import (
    HIDDEN,
    NOBODYS,
    OURS,
    as_cookies,
    bearer,
    below_a_session,
    chosen,
    filled,
    guarded,
    own_routes,
    rules,
)
from rayhistory.server.guard import PUBLIC
from recorded_sample import REF

OWNER = f"/s/{HIDDEN.namespace}/~rayjob/{HIDDEN.owner_name}"
PREFIXES = (
    HIDDEN.url[:-1], f"/s/{HIDDEN.namespace}/{HIDDEN.cluster}/latest", f"/s/{HIDDEN.namespace}/{HIDDEN.cluster}/live",
    f"{HIDDEN.url[:-1]}@1786526102000", OWNER, f"{OWNER}/live", f"/s/%74eam-x/{HIDDEN.cluster}/latest",
    f"/s/{HIDDEN.namespace}/not-there/latest",
)  # fmt: skip
ENTRIES = (
    f"/enter_cluster/{HIDDEN.namespace}/raycluster/{HIDDEN.cluster}",
    f"/enter_cluster/{HIDDEN.namespace}/{HIDDEN.cluster}/live",
    f"/enter_cluster/{HIDDEN.namespace}/rayjob/{HIDDEN.owner_name}/latest",
    f"/enter_cluster/{HIDDEN.namespace}/raycluster/{HIDDEN.cluster}/{HIDDEN.session}",
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("guarded")
    with guarded(directory, auth="token", access_file=rules(directory), expensive_calls=0) as client:
        yield client


def ask(client: TestClient, route: Route | WebSocketRoute, path: str, headers: dict[str, str]) -> int:
    """The status that a route answers with."""
    if isinstance(route, WebSocketRoute):
        try:
            with client.websocket_connect(path, headers=headers):
                return 101
        except WebSocketDenialResponse as denied:
            return denied.status_code
    return client.get(path, headers=headers).status_code


def test_without_a_token_no_route_below_a_session_answers(client: TestClient) -> None:
    for route in below_a_session(client.app):
        for path, headers in ((REF.url[:-1] + filled(route.path), {}), (filled(route.path), as_cookies(chosen()))):
            public = path == "/favicon.ico" or path.startswith("/static/")
            assert ask(client, route, path, headers) == (404 if public else 401), path


@pytest.mark.parametrize("prefix", PREFIXES)
def test_no_route_shows_a_session_of_another_namespace(client: TestClient, prefix: str) -> None:
    for route in below_a_session(client.app):
        assert ask(client, route, prefix + filled(route.path), bearer(OURS)) == 403, route.path


def test_forged_cookies_of_kuberay_grant_nothing(client: TestClient) -> None:
    forged = as_cookies(chosen(HIDDEN)) | bearer(OURS)
    for route in below_a_session(client.app):
        path = filled(route.path)
        public = path == "/favicon.ico" or path.startswith("/static/")
        assert ask(client, route, path, forged) == (404 if public else 403), path


@pytest.mark.parametrize("path", ENTRIES)
def test_a_session_of_another_namespace_cannot_be_entered(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401
    answer = client.get(path, headers=bearer(OURS))
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert (
        client.get(f"/enter_cluster/{REF.namespace}/raycluster/{REF.cluster}", headers=bearer(OURS)).status_code == 200
    )


def test_every_route_of_the_server_is_guarded_or_meant_to_be_public(client: TestClient) -> None:
    """A route that is added is found here: it asks for a token, and shows nothing of other namespaces."""
    for route in own_routes(client.app):
        path = filled(route.path)
        without = client.get(path)
        assert (without.status_code == 401) != path.startswith(PUBLIC), path
        answer = client.get(path, headers=bearer(OURS))
        for secret in (HIDDEN.namespace, HIDDEN.cluster, HIDDEN.session, HIDDEN.owner_name):
            assert str(secret) not in answer.text + without.text, path
    mounts = {route.path for route in client.app.routes if isinstance(route, Mount)}  # type: ignore[attr-defined]
    assert mounts == {"/assets", "/s", ""}


def test_lists_show_what_may_be_opened_and_nothing_else(client: TestClient) -> None:
    listed = client.get("/clusters", headers=bearer(OURS)).json()
    assert {(each["namespace"], each["name"]) for each in listed} == {
        ("default", "sample"),
        ("default", "a.cluster.with.dots"),
    }
    for query in ("", "?namespace=team-x", "?q=vault", "?state=ended", "?owner=rayjob"):
        rows = client.get(f"/home.json{query}", headers=bearer(OURS)).json()
        assert {row["namespace"] for row in rows["sessions"]} <= {"default"}
        assert rows["total"] == len(rows["sessions"])
        assert HIDDEN.session not in client.get(f"/home{query}", headers=bearer(OURS)).text


def test_what_is_theirs_answers_on_every_route(client: TestClient) -> None:
    for route in below_a_session(client.app):
        assert ask(client, route, REF.url[:-1] + filled(route.path), bearer(OURS)) not in (401, 403), route.path
    assert client.get("/api/jobs/", headers=bearer(OURS) | as_cookies(chosen())).status_code == 200


def test_a_wrong_token_is_answered_as_ray_does(client: TestClient) -> None:
    missing, wrong = (client.get(f"{REF.url}api/v0/tasks", headers=h) for h in ({}, bearer(NOBODYS)))
    assert (missing.status_code, missing.text) == (401, "Unauthorized: Missing authentication token")
    assert (wrong.status_code, wrong.text) == (403, "Forbidden: Invalid authentication token")
    assert missing.headers["www-authenticate"] == "Bearer"
    own = client.get(f"{REF.url}api/history/gaps", headers=bearer(NOBODYS))
    assert own.json() == {"error": {"status": 403, "message": "Forbidden: Invalid authentication token"}}


@pytest.mark.parametrize("token", ["", "x" * 20_000, "ü-token-with-umlauts-in-it", "Basic abc", "a\tb"])
def test_strange_tokens_are_no_tokens(client: TestClient, token: str) -> None:
    headers = [(b"authorization", b"Bearer " + token.encode("latin-1"))]
    assert client.get(f"{REF.url}api/v0/tasks", headers=headers).status_code in (401, 403)  # type: ignore[arg-type]
    cookie = [(b"cookie", b"rayhistory-token=" + token.encode("latin-1"))]
    assert client.get(f"{REF.url}api/v0/tasks", headers=cookie).status_code in (401, 403)  # type: ignore[arg-type]


def test_a_token_is_taken_from_where_ray_looks_for_it(client: TestClient) -> None:
    for headers in (bearer(OURS), {"X-Ray-Authorization": f"Bearer {OURS}"}, {"Cookie": f"rayhistory-token={OURS}"},
                    {"Authorization": f"bearer {OURS}"}):  # fmt: skip
        assert client.get(f"{REF.url}api/v0/tasks", headers=headers).status_code == 200
    assert (
        client.get(f"{REF.url}api/v0/tasks", headers={"Cookie": f"ray-authentication-token={OURS}"}).status_code == 401
    )
