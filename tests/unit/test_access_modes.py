"""The ways of knowing visitors: tokens of ours, a proxy's headers, and signing in with Ray's dialog or our page."""

import re
from pathlib import Path

import pytest
from starlette.testclient import WebSocketDenialResponse

from guarded import DOTTED, HIDDEN, NOBODYS, OURS, as_cookies, bearer, chosen, guarded, rules
from rayhistory.access.limits import Allowance
from rayhistory.access.modes import Proxies, open_access
from rayhistory.access.rules import digest, read_rules
from rayhistory.access.visitor import matches
from rayhistory.errors import Misconfigured, TooManyCalls
from rayhistory.settings import Settings
from recorded_sample import REF

PAGE = {"Accept": "text/html"}
ANY = f"{REF.url}api/profiling_enabled"
COOKIE = re.compile(
    r"rayhistory-token=(?P<value>[^;]*); Path=/; Max-Age=(?P<age>\d+); HttpOnly; SameSite=Strict(?P<secure>; Secure)?"
)


def cookie_of(client_answer: object) -> re.Match[str]:
    found = COOKIE.fullmatch(client_answer.headers["set-cookie"])  # type: ignore[attr-defined]
    assert found
    return found


# Signing in


def test_rays_dialog_signs_in(tmp_path: Path) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        for place in ("/", REF.url):
            assert client.get(f"{place}api/authentication_mode").json() == {"authentication_mode": "token"}
            assert client.post(f"{place}api/authenticate", json={}).status_code == 401
            refused = client.post(f"{place}api/authenticate", headers=bearer(NOBODYS), json={})
            assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
            answer = client.post(f"{place}api/authenticate", headers=bearer(OURS), json={})
            assert answer.json() == {"status": "authenticated", "message": "Token is valid"}
            found = cookie_of(answer)
            assert (found["value"], found["secure"]) == (OURS, None)
            assert client.get(ANY).status_code == 200
            client.cookies.clear()


def test_our_page_signs_in_without_any_script(tmp_path: Path) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path), base_url="https://history.example") as client:
        sent = client.get(f"{REF.url}?x=1", headers=PAGE)
        assert (sent.status_code, sent.headers["location"]) == (
            303,
            f"/login?next={REF.url.replace('/', '%2F')}%3Fx%3D1",
        )
        page = client.get(sent.headers["location"])
        assert f'name="next" value="{REF.url}?x=1"' in page.text
        wrong = client.post("/api/authenticate", data={"token": NOBODYS, "next": "/home"})
        assert (wrong.status_code, "Invalid authentication token" in wrong.text) == (403, True)
        done = client.post("/api/authenticate", data={"token": f" {OURS}\n", "next": f"{REF.url}?x=1"})
        assert done.status_code == 200
        assert f'content="0; url={REF.url}?x=1"' in done.text
        assert cookie_of(done)["secure"]
        assert "signed in as <span" in client.get("/login").text
        gone = client.post("/logout")
        assert (cookie_of(gone)["value"], cookie_of(gone)["age"]) == ("", "0")
        assert client.get(ANY).status_code == 401


@pytest.mark.parametrize(
    "where", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", ""]
)
def test_signing_in_leads_to_no_other_site(tmp_path: Path, where: str) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        done = client.post("/api/authenticate", data={"token": OURS, "next": where})
        assert 'content="0; url=/home"' in done.text
        assert "evil" not in done.text


def test_pages_of_other_sites_can_neither_sign_in_nor_open_sockets(tmp_path: Path) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            sent = client.post("/api/authenticate", headers=bearer(OURS) | headers, json={})
            assert (sent.status_code, sent.text) == (403, "Pages of other sites may not do this")
            assert client.post("/logout", headers=headers).status_code == 403
        own = {"Origin": "http://testserver"}
        assert client.post("/api/authenticate", headers=bearer(OURS) | own, json={}).status_code == 200
        socket = client.websocket_connect(f"{REF.url}api/jobs/x/logs/tail", headers={"Origin": "https://evil.example"})
        with pytest.raises(WebSocketDenialResponse) as refused, socket:
            pass
        assert refused.value.status_code == 403


def test_without_access_control_everybody_is_welcome(tmp_path: Path) -> None:
    with guarded(tmp_path) as client:
        assert client.get("/api/authentication_mode").json() == {"authentication_mode": "disabled"}
        assert client.post("/api/authenticate", headers=bearer(OURS), json={}).status_code == 401
        assert client.get("/login").headers["location"] == "/home"
        assert len(client.get("/clusters").json()) == 3
        assert client.get(f"/s/{HIDDEN.namespace}/{HIDDEN.cluster}/latest/api/jobs/").status_code == 200


# The rules


def test_rules_are_read_again_when_they_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        rules(tmp_path, "this is no rule\n")
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        assert "the rules of access stay as they were" in caplog.messages
        rules(tmp_path, f"token bob {digest('another-token-of-bob')} team-*,default # and a remark\n")
        assert client.get(ANY, headers=bearer(OURS)).status_code == 403
        assert {
            each["namespace"] for each in client.get("/clusters", headers=bearer("another-token-of-bob")).json()
        } == {
            "default",
            "team-x",
        }


@pytest.mark.parametrize(
    ("text", "said"),
    {
        "robot x *": "'robot' is not token, user or group",
        "token ada short *": "at least 16 characters",
        "token ada": "use: token NAME TOKEN NAMESPACES",
        "token ada sha256:ABC default": "64 hexadecimal digits",
        f"token a {OURS} x\ntoken b {OURS} y": "line 2: this token is there already",
        "user ada": "use: user NAME NAMESPACES",
        "user": "use: token NAME TOKEN NAMESPACES, or user|group",
        'group "open default': "No closing quotation",
        "user ada Default": "lower-case",
        "user ada default,": "not a namespace: ''",
        "user ada a*b": "lower-case",
    }.items(),
)
def test_rules_that_cannot_be_read_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(said)):
        read_rules(Path(rules(tmp_path, text)))


def test_beginnings_of_names_end_with_a_star() -> None:
    assert matches("team-a", ["team-*"])
    assert matches("anything", ["*"])
    assert not matches("team-a", ["team", "team-", "eam-*", "*-a"])
    assert not matches("default", [])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(auth="token"), "--auth=token needs --access-file"),
        (Settings(auth="token", access_file="/not/there"), "--access-file=/not/there: No such file"),
        (Settings(auth="proxy", access_file="/dev/null"), "--auth=proxy needs --trusted-proxies"),
        (Settings(auth="proxy", access_file="/dev/null", trusted_proxies=("10.0.0.0/99",)), "--trusted-proxies: "),
        (Settings(auth="kubernetes"), "--auth=kubernetes needs Kubernetes"),
    ],
)
def test_a_mode_that_lacks_something_says_what(settings: Settings, said: str) -> None:
    with pytest.raises(Misconfigured, match=re.escape(said)):
        open_access(settings, None)


# A proxy's headers

GROUPS = 'user ada@example.com default\ngroup "data engineers" team-*\n'


def as_ada(groups: str = "") -> dict[str, str]:
    return {"X-Forwarded-User": "ada@example.com", "X-Forwarded-Groups": groups}


def test_groups_of_a_proxys_visitor_are_mapped_to_namespaces(tmp_path: Path) -> None:
    with guarded(
        tmp_path, auth="proxy", access_file=rules(tmp_path, GROUPS), trusted_proxies=("127.0.0.0/8",)
    ) as client:
        assert client.get(ANY, headers=as_ada()).status_code == 200
        assert client.get(f"{HIDDEN.url}api/jobs/", headers=as_ada()).status_code == 403
        assert client.get(f"{HIDDEN.url}api/jobs/", headers=as_ada("staff, data engineers")).status_code == 200
        assert client.get("/clusters", headers={"X-Forwarded-User": "nobody"}).json() == []
        assert client.get("/api/authentication_mode").json() == {"authentication_mode": "disabled"}
        assert client.get(REF.url, headers=PAGE).status_code == 401
        assert (
            client.get(ANY, headers=[("X-Forwarded-User", "ada@example.com"), ("X-Forwarded-User", "root")]).status_code
            == 401
        )


def test_forged_headers_from_elsewhere_count_for_nothing(tmp_path: Path) -> None:
    with guarded(
        tmp_path,
        address="203.0.113.9",
        auth="proxy",
        access_file=rules(tmp_path, GROUPS),
        trusted_proxies=("127.0.0.1",),
    ) as client:
        for forged in (
            {},
            {"X-Forwarded-For": "127.0.0.1"},
            {"Forwarded": "for=127.0.0.1"},
            {"X-Real-IP": "127.0.0.1"},
        ):
            assert client.get(ANY, headers=as_ada("data engineers") | forged).status_code == 401
        assert client.get("/clusters", headers=as_ada() | as_cookies(chosen())).status_code == 401


def test_only_a_trusted_proxy_is_believed_about_addresses_and_encryption(tmp_path: Path) -> None:
    said = {"X-Forwarded-For": "198.51.100.7, 127.0.0.2", "X-Forwarded-Proto": "https"}
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path), trusted_proxies=("127.0.0.0/8",)) as client:
        assert cookie_of(client.post("/api/authenticate", headers=bearer(OURS) | said, json={}))["secure"]
        said["X-Forwarded-Proto"] = "https,http"
        assert cookie_of(client.post("/api/authenticate", headers=bearer(OURS) | said, json={}))["secure"]
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        assert not cookie_of(client.post("/api/authenticate", headers=bearer(OURS) | said, json={}))["secure"]
    assert Proxies(("::1", "10.0.0.0/8"))._holds("::ffff:10.1.2.3")


# Names, headers, limits, the audit log


def test_a_name_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with guarded(tmp_path, allowed_hosts=("history.example", "*.team.example")) as client:
        for host, status in {
            "history.example": 200, "HISTORY.example:8080": 200, "a.team.example": 200,
            "team.example": 400, "rebound.example": 400, "history.example.evil": 400, "": 400,
        }.items():  # fmt: skip
            assert client.get("/livez", headers={"Host": host}).status_code == status, host


def test_security_headers_are_on_every_answer(tmp_path: Path) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path), allowed_hosts=("testserver",)) as client:
        for path, headers in {
            "/livez": {}, "/home": bearer(OURS), "/login": {}, ANY: bearer(OURS), "/assets/x": {},
            REF.url: bearer(OURS),
            "/api/jobs/": {}, "/clusters": {"Host": "evil"}, f"{HIDDEN.url}api/jobs/": bearer(OURS),
        }.items():  # fmt: skip
            answer = client.get(path, headers=headers)
            assert answer.headers["x-content-type-options"] == "nosniff", path
            assert answer.headers["x-frame-options"] == "SAMEORIGIN"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["cache-control"] in ("private, no-cache", "no-cache", "no-store"), path
        policy = client.get(REF.url, headers=bearer(OURS)).headers["content-security-policy"]
        assert "script-src" not in policy
        assert policy.startswith("default-src 'self'; style-src 'self' 'unsafe-inline'")


def test_what_nobody_foresaw_is_counted_and_has_the_headers_of_all(tmp_path: Path) -> None:
    with guarded(tmp_path) as client:
        client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
        del client.app.state.answers  # type: ignore[attr-defined]
        answer = client.get(f"{REF.url}api/version")
        assert (answer.status_code, answer.headers.get("x-content-type-options")) == (500, "nosniff")
        assert 'rayhistory_requests_total{status="500"} 1.0' in client.get("/metrics").text


def test_expensive_calls_are_limited_for_each_visitor(tmp_path: Path) -> None:
    both = f"token ada {OURS} default\ntoken bob {digest('another-token-of-bob')} default\n"
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path, both), expensive_calls=6) as client:
        summary = f"{REF.url}api/v0/tasks/summarize"
        statuses = [client.get(summary, headers=bearer(OURS)).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        limited = client.get(summary, headers=bearer(OURS))
        assert int(limited.headers["retry-after"]) in range(1, 11)
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        assert client.get(summary, headers=bearer("another-token-of-bob")).status_code == 200


def test_an_allowance_comes_back_with_time() -> None:
    now = 0.0
    allowance = Allowance(60, "calls", lambda: now)
    for _ in range(30):
        allowance.take("ada")
    with pytest.raises(TooManyCalls) as refused:
        allowance.take("ada")
    assert refused.value.retry_after == pytest.approx(1.0)
    now = 2.0
    allowance.take("ada")
    allowance.take("ada")
    with pytest.raises(TooManyCalls):
        allowance.take("ada")


def test_wrong_tokens_cannot_be_tried_without_end(tmp_path: Path) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        statuses = {client.get(ANY, headers=bearer(f"{NOBODYS}-{n}")).status_code for n in range(40)}
        assert statuses == {403, 429}


def test_a_page_with_an_expired_token_shuts_out_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        stale = {"Cookie": f"rayhistory-token={NOBODYS}"}
        assert {client.get(ANY, headers=stale).status_code for _ in range(40)} == {403}
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        assert len([each for each in caplog.records if each.getMessage() == "refused"]) == 1


def test_who_is_known_is_not_shut_out_by_the_tries_of_others(tmp_path: Path) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200
        assert 429 in {client.get(ANY, headers=bearer(f"{NOBODYS}-{n}")).status_code for n in range(40)}
        assert client.get(ANY, headers=bearer(OURS)).status_code == 200


def test_who_opened_what_is_written_down_once_a_visit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rayhistory.audit")

    def lines() -> list[tuple[str, str, str]]:
        records = [each for each in caplog.records if each.name == "rayhistory.audit"]
        return [
            (r.getMessage(), vars(r)["visitor"], vars(r).get("session") or vars(r).get("asked_for", ""))
            for r in records
        ]

    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        for _ in range(3):
            client.get(ANY, headers=bearer(OURS))
        client.get(f"{HIDDEN.url}api/jobs/", headers=bearer(OURS))
        client.get(ANY, headers=bearer(NOBODYS))
        client.post("/api/authenticate", headers=bearer(OURS), json={})
    assert lines() == [
        ("opened", "ada", f"{REF.namespace}/{REF.cluster}/{REF.session}"),
        ("refused", "ada", f"{HIDDEN.namespace}/{HIDDEN.cluster}/{HIDDEN.session}"),
        ("refused", "", ANY),
        ("signed in", "ada", ""),
    ]
    assert OURS not in caplog.text
    assert NOBODYS not in caplog.text


def test_names_with_dots_are_names_like_others(tmp_path: Path) -> None:
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path)) as client:
        assert client.get(f"{DOTTED.url}api/jobs/", headers=bearer(OURS)).status_code == 200
        entered = client.get(f"/enter_cluster/default/raycluster/{DOTTED.cluster}", headers=bearer(OURS))
        assert entered.json()["name"] == DOTTED.cluster
