"""Tokens of a live cluster: each visitor uses their own, for that cluster only."""

from pathlib import Path
from typing import Any

import pytest

from support import head_double
from support.head_double import HeadDouble
from support.live_server import LIVE, REF, TASKS, TOKEN, cluster_state, eventually, serve_in_kubernetes, serve_with_head
from support.recorded_sample import REF as STORED
from support.two_namespaces import ALLOWED_TOKEN, bearer, serve_two_namespaces, write_access_file

SIGN_IN = LIVE + head_double.AUTHENTICATE
BOB = "token-of-bob-with-rights"


def test_sign_in_at_a_head_is_per_visitor(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    access_file = write_access_file(tmp_path, f"token ada {ALLOWED_TOKEN} default\ntoken bob {BOB} default\n")
    with serve_with_head(tmp_path, head, auth="token", access_file=access_file) as client:
        ada = {"Cookie": f"rayhistory-token={ALLOWED_TOKEN}"}
        assert client.post(SIGN_IN, headers=ada | bearer(TOKEN), json={}).status_code == 200
        client.cookies.clear()
        assert client.get(TASKS, headers=bearer(BOB)).status_code == 401
        assert client.get(TASKS, headers=bearer(ALLOWED_TOKEN) | {"X-Ray-Authorization": f"Bearer {TOKEN}"}).json()[
            "live"
        ]


def test_next_visitor_of_a_browser_is_not_signed_in_at_the_head(tmp_path: Path) -> None:
    """Signing out here cannot delete the cookie for the head, so it must not count for another visitor."""
    access_file = write_access_file(tmp_path, f"token ada {ALLOWED_TOKEN} default\ntoken bob {BOB} default\n")
    with serve_with_head(tmp_path, HeadDouble(REF.session, TOKEN), auth="token", access_file=access_file) as client:
        client.cookies.set("rayhistory-token", ALLOWED_TOKEN)
        assert client.post(SIGN_IN, headers=bearer(TOKEN), json={}).status_code == 200
        assert client.get(TASKS).json()["live"]
        client.cookies.set("rayhistory-token", BOB)
        assert client.get(TASKS).status_code == 401


def test_head_gets_neither_the_proxys_token_nor_our_cookie(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "auth": "proxy",
        "trusted_proxies": ("127.0.0.1",),
        "access_file": write_access_file(tmp_path, "user ada default\n"),
    }
    headers = bearer("of-the-proxy") | {"X-Forwarded-User": "ada", "Cookie": f"rayhistory-token={ALLOWED_TOKEN}"}
    with serve_with_head(tmp_path, HeadDouble(REF.session), **settings) as client:
        response = client.get(LIVE + head_double.ECHO, headers=headers)
        leaked = ("of-the-proxy" in response.text, ALLOWED_TOKEN in response.text)
        assert (response.status_code, *leaked) == (200, False, False)
        response = client.get(LIVE + head_double.ECHO, headers=headers | {"X-Ray-Authorization": f"Bearer {TOKEN}"})
        assert response.json()["x-ray-authorization"] == f"Bearer {TOKEN}"


def test_head_does_not_get_our_cookie_without_authentication(tmp_path: Path) -> None:
    with serve_with_head(tmp_path, HeadDouble(REF.session)) as client:
        response = client.get(LIVE + head_double.ECHO, headers={"Cookie": f"rayhistory-token={ALLOWED_TOKEN}"})
        assert (response.status_code, ALLOWED_TOKEN in response.text) == (200, False)


MALFORMED: tuple[dict[str, Any], ...] = (
    {"Authorization": "Bearer " + "x" * 20_000},
    {"X-Ray-Authorization": b"Bearer caf\xe9"},
    {"Cookie": "rayhistory-token=%C3%A9"},
)


@pytest.mark.parametrize("headers", MALFORMED)
def test_malformed_token_is_ignored_for_a_stored_session(tmp_path: Path, headers: dict[str, Any]) -> None:
    with serve_two_namespaces(tmp_path, live=True) as client:
        assert client.get(f"{STORED.url}api/version", headers=headers).status_code == 200
    with serve_two_namespaces(tmp_path) as client:
        assert client.get("/s/default/sample/live/api/version", headers=headers).status_code == 200


def test_malformed_token_never_reaches_a_head(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    with serve_with_head(tmp_path, head) as client:
        for headers in MALFORMED[:2]:
            assert client.get(TASKS, headers=headers).status_code == 403
            assert client.post(SIGN_IN, headers=headers, json={}).status_code in (401, 403)
    assert "GET /api/v0/tasks" not in head.requests


def test_cluster_with_tokens_is_entered_with_its_token(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    with serve_with_head(tmp_path, head, auth="token", access_file=write_access_file(tmp_path)) as client:
        path = "/enter_cluster/default/raycluster/alive/live"
        assert client.get(path, headers=bearer(ALLOWED_TOKEN)).status_code == 401
        entered = client.get(path, headers=bearer(ALLOWED_TOKEN) | {"X-Ray-Authorization": f"Bearer {TOKEN}"})
        assert (entered.status_code, entered.json()["session"]) == (200, "live")


def test_sign_in_through_kubernetes_keeps_the_servers_own_token(tmp_path: Path) -> None:
    head = HeadDouble("any", TOKEN)
    settings: dict[str, Any] = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serve_in_kubernetes(tmp_path, head, "head", **settings) as (client, double):
        client.headers.update({"Cookie": f"rayhistory-token={ALLOWED_TOKEN}"})
        double.put("rayclusters", "default", "protected", status={"head": {"serviceName": "head"}})
        eventually(lambda: cluster_state(client, "protected") == "running")
        path = f"/s/default/protected/live{head_double.AUTHENTICATE}"
        denied = client.post(path, headers=bearer("another-token"), json={})
        assert (denied.status_code, "set-cookie" in denied.headers) == (403, False)
        signed_in = client.post(path, headers=bearer(TOKEN), json={})
        assert (signed_in.status_code, TOKEN in signed_in.headers["set-cookie"]) == (200, True)
