"""Signing in with Ray's dialog and with our login page, and the limit on invalid tokens."""

import re
from pathlib import Path

import httpx2
import pytest

from support.recorded_sample import REF
from support.two_namespaces import (
    ALLOWED_TOKEN,
    DOTTED,
    UNKNOWN_TOKEN,
    bearer,
    serve_two_namespaces,
    write_access_file,
)

ACCEPT_HTML = {"Accept": "text/html"}
PROFILING = f"{REF.url}api/profiling_enabled"
TOKEN_COOKIE = re.compile(
    r"rayhistory-token=(?P<value>[^;]*); Path=/; Max-Age=(?P<age>\d+); HttpOnly; SameSite=Strict(?P<secure>; Secure)?"
)


def token_cookie(response: httpx2.Response) -> re.Match[str]:
    cookie = TOKEN_COOKIE.fullmatch(response.headers["set-cookie"])
    assert cookie
    return cookie


def test_rays_dialog_signs_in(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        for base in ("/", REF.url):
            assert client.get(f"{base}api/authentication_mode").json() == {"authentication_mode": "token"}
            assert client.post(f"{base}api/authenticate", json={}).status_code == 401
            denied = client.post(f"{base}api/authenticate", headers=bearer(UNKNOWN_TOKEN), json={})
            assert (denied.status_code, "set-cookie" in denied.headers) == (403, False)
            signed_in = client.post(f"{base}api/authenticate", headers=bearer(ALLOWED_TOKEN), json={})
            assert signed_in.json() == {"status": "authenticated", "message": "Token is valid"}
            cookie = token_cookie(signed_in)
            assert (cookie["value"], cookie["secure"]) == (ALLOWED_TOKEN, None)
            assert client.get(PROFILING).status_code == 200
            client.cookies.clear()


def test_login_page_signs_in_without_scripts(tmp_path: Path) -> None:
    with serve_two_namespaces(
        tmp_path, auth="token", access_file=write_access_file(tmp_path), base_url="https://history.example"
    ) as client:
        redirect = client.get(f"{REF.url}?x=1", headers=ACCEPT_HTML)
        login = f"/login?next={REF.url.replace('/', '%2F')}%3Fx%3D1"
        assert (redirect.status_code, redirect.headers["location"]) == (303, login)
        page = client.get(redirect.headers["location"])
        assert f'name="next" value="{REF.url}?x=1"' in page.text
        denied = client.post("/api/authenticate", data={"token": UNKNOWN_TOKEN, "next": "/home"})
        assert (denied.status_code, "Invalid authentication token" in denied.text) == (403, True)
        signed_in = client.post("/api/authenticate", data={"token": f" {ALLOWED_TOKEN}\n", "next": f"{REF.url}?x=1"})
        assert signed_in.status_code == 200
        assert f'content="0; url={REF.url}?x=1"' in signed_in.text
        assert token_cookie(signed_in)["secure"]
        assert "signed in as <span" in client.get("/login").text
        signed_out = client.post("/logout")
        assert (token_cookie(signed_out)["value"], token_cookie(signed_out)["age"]) == ("", "0")
        assert client.get(PROFILING).status_code == 401


@pytest.mark.parametrize(
    "next_path", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", ""]
)
def test_sign_in_redirects_to_no_other_site(tmp_path: Path, next_path: str) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        signed_in = client.post("/api/authenticate", data={"token": ALLOWED_TOKEN, "next": next_path})
        assert 'content="0; url=/home"' in signed_in.text
        assert "evil" not in signed_in.text


def test_denied_visitor_gets_a_page(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        denied = client.get("/s/team-x/vault/latest/", headers=bearer(ALLOWED_TOKEN) | ACCEPT_HTML)
        assert (denied.status_code, denied.headers["x-rayhistory-error"]) == (403, "access_denied")
        assert "Access denied" in denied.text


def test_invalid_tokens_are_limited(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        statuses = {client.get(PROFILING, headers=bearer(f"{UNKNOWN_TOKEN}-{n}")).status_code for n in range(40)}
        assert statuses == {403, 429}


def test_polling_with_an_expired_token_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        expired = {"Cookie": f"rayhistory-token={UNKNOWN_TOKEN}"}
        assert {client.get(PROFILING, headers=expired).status_code for _ in range(40)} == {403}
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        assert len([record for record in caplog.records if record.getMessage() == "access denied"]) == 1


def test_visitor_with_a_valid_token_is_not_locked_out_by_others(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200
        statuses = {client.get(PROFILING, headers=bearer(f"{UNKNOWN_TOKEN}-{n}")).status_code for n in range(40)}
        assert 429 in statuses
        assert client.get(PROFILING, headers=bearer(ALLOWED_TOKEN)).status_code == 200


def test_cluster_name_with_dots_is_admitted(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        assert client.get(f"{DOTTED.url}api/jobs/", headers=bearer(ALLOWED_TOKEN)).status_code == 200
        entered = client.get(f"/enter_cluster/default/raycluster/{DOTTED.cluster}", headers=bearer(ALLOWED_TOKEN))
        assert entered.json()["name"] == DOTTED.cluster
