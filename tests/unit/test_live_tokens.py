"""Tokens of a live cluster: each visitor's own, for that cluster only, and none of ours."""

from pathlib import Path
from typing import Any

import pytest

import head_double
from beside_head import LIVE, REF, TASKS, TOKEN, beside, eventually, in_kubernetes, state_of
from guarded import OURS, bearer, guarded, rules
from head_double import HeadDouble
from recorded_sample import REF as STORED

SIGN_IN = LIVE + head_double.AUTHENTICATE
BOB = "token-of-bob-with-rights"


def test_who_has_signed_in_at_a_head_has_not_signed_in_others(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    both = rules(tmp_path, f"token ada {OURS} default\ntoken bob {BOB} default\n")
    with beside(tmp_path, head, auth="token", access_file=both) as client:
        ada = {"Cookie": f"rayhistory-token={OURS}"}
        assert client.post(SIGN_IN, headers=ada | bearer(TOKEN), json={}).status_code == 200
        client.cookies.clear()
        assert client.get(TASKS, headers=bearer(BOB)).status_code == 401
        assert client.get(TASKS, headers=bearer(OURS) | {"X-Ray-Authorization": f"Bearer {TOKEN}"}).json()["live"]


def test_who_signs_in_here_next_is_not_signed_in_at_the_head(tmp_path: Path) -> None:
    """At the same browser: its cookie for the head cannot be taken back by signing out."""
    both = rules(tmp_path, f"token ada {OURS} default\ntoken bob {BOB} default\n")
    with beside(tmp_path, HeadDouble(REF.session, TOKEN), auth="token", access_file=both) as client:
        client.cookies.set("rayhistory-token", OURS)
        assert client.post(SIGN_IN, headers=bearer(TOKEN), json={}).status_code == 200
        assert client.get(TASKS).json()["live"]
        client.cookies.set("rayhistory-token", BOB)
        assert client.get(TASKS).status_code == 401


def test_a_proxys_own_token_and_cookies_of_ours_are_not_for_a_head(tmp_path: Path) -> None:
    behind: dict[str, Any] = {
        "auth": "proxy",
        "trusted_proxies": ("127.0.0.1",),
        "access_file": rules(tmp_path, "user ada default\n"),
    }
    said = bearer("of-the-proxy") | {"X-Forwarded-User": "ada", "Cookie": f"rayhistory-token={OURS}"}
    with beside(tmp_path, HeadDouble(REF.session), **behind) as client:
        got = client.get(LIVE + head_double.ECHO, headers=said)
        assert (got.status_code, "of-the-proxy" in got.text, OURS in got.text) == (200, False, False)
        got = client.get(LIVE + head_double.ECHO, headers=said | {"X-Ray-Authorization": f"Bearer {TOKEN}"})
        assert got.json()["x-ray-authorization"] == f"Bearer {TOKEN}"


def test_without_access_control_the_cookie_of_another_server_is_not_for_a_head(tmp_path: Path) -> None:
    with beside(tmp_path, HeadDouble(REF.session)) as client:
        got = client.get(LIVE + head_double.ECHO, headers={"Cookie": f"rayhistory-token={OURS}"})
        assert (got.status_code, OURS in got.text) == (200, False)


STRANGE = ({"Authorization": "Bearer " + "x" * 20_000}, {"X-Ray-Authorization": b"Bearer caf\xe9"},
           {"Cookie": "rayhistory-token=%C3%A9"})  # fmt: skip


@pytest.mark.parametrize("headers", STRANGE)
def test_a_token_that_is_none_matters_to_no_stored_session(tmp_path: Path, headers: dict[str, Any]) -> None:
    with guarded(tmp_path, live=True) as client:
        assert client.get(f"{STORED.url}api/version", headers=headers).status_code == 200
    with guarded(tmp_path) as client:
        assert client.get("/s/default/sample/live/api/version", headers=headers).status_code == 200


def test_a_token_that_is_none_is_refused_before_a_head_sees_it(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    with beside(tmp_path, head) as client:
        for headers in STRANGE[:2]:
            assert client.get(TASKS, headers=headers).status_code == 403
            assert client.post(SIGN_IN, headers=headers, json={}).status_code in (401, 403)
    assert "GET /api/v0/tasks" not in head.asked


def test_a_cluster_that_wants_a_token_can_be_entered_with_it(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    with beside(tmp_path, head, auth="token", access_file=rules(tmp_path)) as client:
        path = "/enter_cluster/default/raycluster/alive/live"
        assert client.get(path, headers=bearer(OURS)).status_code == 401
        entered = client.get(path, headers=bearer(OURS) | {"X-Ray-Authorization": f"Bearer {TOKEN}"})
        assert (entered.status_code, entered.json()["session"]) == (200, "live")


def test_signing_in_through_kubernetes_leaves_the_servers_own_token_in_its_place(tmp_path: Path) -> None:
    head = HeadDouble("any", TOKEN)
    more: dict[str, Any] = {"auth": "token", "access_file": rules(tmp_path)}
    with in_kubernetes(tmp_path, head, "head", **more) as (client, double):
        client.headers.update({"Cookie": f"rayhistory-token={OURS}"})
        double.put("rayclusters", "default", "guarded", status={"head": {"serviceName": "head"}})
        eventually(lambda: state_of(client, "guarded") == "running")
        path = f"/s/default/guarded/live{head_double.AUTHENTICATE}"
        wrong = client.post(path, headers=bearer("another-token"), json={})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
        signed_in = client.post(path, headers=bearer(TOKEN), json={})
        assert (signed_in.status_code, TOKEN in signed_in.headers["set-cookie"]) == (200, True)
