"""Host and Origin checks."""

from pathlib import Path

import pytest
from starlette.testclient import WebSocketDenialResponse

from rayhistory.access.hosts import LOOPBACK, default_allowed_hosts
from support.recorded_sample import REF
from support.two_namespaces import ALLOWED_TOKEN, bearer, serve_two_namespaces, write_access_file


def test_unknown_host_is_refused(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path, allowed_hosts=("history.example", "*.team.example")) as client:
        for host, status in {
            "history.example": 200, "HISTORY.example:8080": 200, "a.team.example": 200,
            "team.example": 400, "rebound.example": 400, "history.example.evil": 400, "": 400,
        }.items():  # fmt: skip
            response = client.get("/api/history/sessions", headers={"Host": host})
            assert response.status_code == status, host
            assert response.headers.get("x-rayhistory-error") == (None if status == 200 else "host_not_allowed")
            if status == 400:
                assert response.text == f"host {host!r} is not allowed: add it to --allowed-hosts"


def test_probes_and_scrapes_of_a_pod_address_pass(tmp_path: Path) -> None:
    """The kubelet and Prometheus send the pod's address as Host, which is in no list."""
    with serve_two_namespaces(tmp_path, allowed_hosts=("history.example",)) as client:
        for host in ("10.0.3.7:8080", "[fd00::7]:8080"):
            for path in ("/livez", "/readyz", "/readz", "/metrics"):
                assert client.get(path, headers={"Host": host}).status_code == 200, (path, host)
            for path in ("/", "/home", "/livez/", "/metrics/x", "/api/history/sessions", "/assets/style.css"):
                assert client.get(path, headers={"Host": host}).status_code == 400, (path, host)
        assert client.get("/livez", headers={"Host": "probe.example"}).status_code == 200
        assert client.get("/metrics", headers={"Host": "rebound.example"}).status_code == 400


def test_pages_of_other_sites_can_neither_sign_in_nor_open_sockets(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            response = client.post("/api/authenticate", headers=bearer(ALLOWED_TOKEN) | headers, json={})
            assert (response.status_code, response.headers["x-rayhistory-error"]) == (403, "origin_not_allowed")
            assert response.text == "Cross-site request not allowed"
            assert client.post("/logout", headers=headers).status_code == 403
        own_origin = {"Origin": "http://testserver"}
        assert client.post("/api/authenticate", headers=bearer(ALLOWED_TOKEN) | own_origin, json={}).status_code == 200
        socket = client.websocket_connect(f"{REF.url}api/jobs/x/logs/tail", headers={"Origin": "https://evil.example"})
        with pytest.raises(WebSocketDenialResponse) as denied, socket:
            pass
        assert denied.value.status_code == 403


@pytest.mark.parametrize(
    ("listen", "allowed"),
    [
        ("127.0.0.1", (*LOOPBACK, "127.0.0.1")),
        ("::1", (*LOOPBACK, "::1")),
        ("localhost", (*LOOPBACK, "localhost")),
        ("0.0.0.0", ()),
        ("history.internal", ()),
    ],
)
def test_server_on_loopback_allows_only_names_of_loopback(listen: str, allowed: tuple[str, ...]) -> None:
    """No allowed hosts means all."""
    assert default_allowed_hosts((), listen) == allowed
    assert default_allowed_hosts(("history.example",), listen) == ("history.example",)
