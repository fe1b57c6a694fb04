"""`--auth=proxy`: a reverse proxy names the visitor in headers."""

from pathlib import Path

from support.recorded_sample import REF
from support.two_namespaces import (
    HIDDEN,
    cookie_header_for,
    kuberay_cookies,
    serve_two_namespaces,
    write_access_file,
)

ACCEPT_HTML = {"Accept": "text/html"}
PROFILING = f"{REF.url}api/profiling_enabled"
RULES = 'user ada@example.com default\ngroup "data engineers" team-*\n'


def as_ada(groups: str = "") -> dict[str, str]:
    return {"X-Forwarded-User": "ada@example.com", "X-Forwarded-Groups": groups}


def test_users_and_groups_are_mapped_to_namespaces(tmp_path: Path) -> None:
    with serve_two_namespaces(
        tmp_path, auth="proxy", access_file=write_access_file(tmp_path, RULES), trusted_proxies=("127.0.0.0/8",)
    ) as client:
        assert client.get(PROFILING, headers=as_ada()).status_code == 200
        assert client.get(f"{HIDDEN.url}api/jobs/", headers=as_ada()).status_code == 403
        assert client.get(f"{HIDDEN.url}api/jobs/", headers=as_ada("staff, data engineers")).status_code == 200
        assert client.get("/clusters", headers={"X-Forwarded-User": "nobody"}).json() == []
        assert client.get("/api/authentication_mode").json() == {"authentication_mode": "disabled"}
        assert client.get(REF.url, headers=ACCEPT_HTML).status_code == 401
        two_users = [("X-Forwarded-User", "ada@example.com"), ("X-Forwarded-User", "root")]
        assert client.get(PROFILING, headers=two_users).status_code == 401


def test_headers_from_an_untrusted_address_are_ignored(tmp_path: Path) -> None:
    with serve_two_namespaces(
        tmp_path,
        address="203.0.113.9",
        auth="proxy",
        access_file=write_access_file(tmp_path, RULES),
        trusted_proxies=("127.0.0.1",),
    ) as client:
        for forged in (
            {},
            {"X-Forwarded-For": "127.0.0.1"},
            {"Forwarded": "for=127.0.0.1"},
            {"X-Real-IP": "127.0.0.1"},
        ):
            assert client.get(PROFILING, headers=as_ada("data engineers") | forged).status_code == 401
        assert client.get("/clusters", headers=as_ada() | cookie_header_for(kuberay_cookies())).status_code == 401


def test_requests_without_the_proxys_secret_are_refused(tmp_path: Path) -> None:
    """The address alone proves nothing where the network of the proxy has other tenants."""
    name, secret = "X-Rayhistory-Proxy-Secret", "of the proxy"
    access_file = write_access_file(tmp_path, RULES)
    with serve_two_namespaces(
        tmp_path, auth="proxy", access_file=access_file, trusted_proxies=("127.0.0.0/8",), proxy_secret=secret
    ) as client:
        assert client.get(PROFILING, headers=as_ada()).status_code == 401
        assert client.get(PROFILING, headers=as_ada() | {name: "guessed"}).status_code == 401
        twice = [*as_ada().items(), (name, secret), (name, secret)]
        assert client.get(PROFILING, headers=twice).status_code == 401
        assert client.get(PROFILING, headers=as_ada() | {name: secret}).status_code == 200
