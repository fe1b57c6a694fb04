"""The session `live` is read from the head of a running cluster, read-only and safe from the head."""

import resource
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import WebSocketDenialResponse

from rayhistory.live import head_proxy
from rayhistory.live.head_proxy import HeadProxy
from support import head_double
from support.head_double import HeadDouble
from support.kubernetes_double import run_app
from support.live_server import (
    LIVE,
    REF,
    TASKS,
    TOKEN,
    cluster_state,
    eventually,
    register_head,
    run_live_server,
    serve_in_kubernetes,
    serve_with_head,
)
from support.two_namespaces import (
    ALLOWED_TOKEN,
    HIDDEN,
    bearer,
    cookie_header_for,
    serve_two_namespaces,
    write_access_file,
)


def test_live_session_is_read_from_the_head(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with serve_with_head(tmp_path, head) as client:
        response = client.get(f"{TASKS}?limit=3&filter_keys=state")
        assert response.json() == {"live": True, "query": "limit=3&filter_keys=state"}
        assert "set-cookie" not in response.headers
        assert "x-unexpected" not in response.headers
        assert client.head(TASKS).status_code == 200
        page = client.get(f"{LIVE}/")
        assert (page.status_code, "Ray Dashboard" in page.text) == (200, True)
        assert client.get(f"/s/default/alive/{REF.session}/api/v0/tasks").json() != response.json()
        entered = client.get("/enter_cluster/default/raycluster/alive/live")
        assert entered.json()["session"] == "live"
        assert client.get("/api/v0/tasks").json()["live"]
        assert {"GET /api/v0/tasks", "HEAD /api/v0/tasks", "GET /api/version"} == set(head.requests)


def test_live_session_is_read_from_the_store_without_the_setting(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
        with serve_two_namespaces(tmp_path) as client:
            assert "data" in client.get(TASKS).json()
    assert head.requests == []


def test_only_read_requests_reach_the_head(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with serve_with_head(tmp_path, head) as client:
        assert client.post(TASKS, json={}).status_code == 405
        for path in (
            "/api/actors/kill?actor_id=x",
            "/worker/cpu_profile?pid=1",
            "/api/actors/../actors/kill",
            "/metrics",
        ):
            assert client.get(LIVE + path).status_code >= 400
        client.get(f"{LIVE}/api/history/gaps")
        client.get(f"{LIVE}/static/js/x.js")
    assert all(request.endswith("/api/version") for request in head.requests), head.requests


def test_head_gets_no_cookies_and_no_tokens_of_this_server(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    secrets = {"Cookie": f"rayhistory-token={ALLOWED_TOKEN}; other=1", "X-Forwarded-User": "ada", "X-Secret": "1"}
    with serve_with_head(tmp_path, head, auth="token", access_file=write_access_file(tmp_path)) as client:
        received = client.get(LIVE + head_double.ECHO, headers=secrets | {"User-Agent": "Mozilla/5.0"}).json()
        assert ALLOWED_TOKEN not in str(received)
        assert set(received) <= {"host", "accept", "accept-encoding", "connection", "user-agent"}
        assert received["user-agent"] == "Mozilla/5.0"
        assert client.get(f"/s/{HIDDEN.namespace}/alive/live/api/v0/tasks", headers=secrets).status_code == 403
        assert client.get(TASKS).status_code == 401


def test_head_with_tokens_gets_the_visitors_token(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    with serve_with_head(tmp_path, head, auth="token", access_file=write_access_file(tmp_path)) as client:
        own_cookie = {"Cookie": f"rayhistory-token={ALLOWED_TOKEN}"}
        assert client.get(TASKS, headers=bearer(ALLOWED_TOKEN)).text == "Unauthorized: Missing authentication token"
        both = bearer(ALLOWED_TOKEN) | {"X-Ray-Authorization": "Bearer token-of-the-cluster"}
        assert client.get(TASKS, headers=both).json()["live"]
        denied = client.post(f"{LIVE}/api/authenticate", headers=own_cookie | bearer("another-token"), json={})
        assert (denied.status_code, "set-cookie" in denied.headers) == (403, False)
        signed_in = client.post(
            f"{LIVE}/api/authenticate", headers=own_cookie | bearer("token-of-the-cluster"), json={}
        )
        name, _, rest = signed_in.headers["set-cookie"].partition("=")
        assert name.startswith("rayhistory-live-token-")
        assert rest == f"token-of-the-cluster; Path={LIVE}/; Max-Age=43200; HttpOnly; SameSite=Strict"
        both_cookies = {"Cookie": f"rayhistory-token={ALLOWED_TOKEN}; {name}=token-of-the-cluster"}
        assert client.get(TASKS, headers=both_cookies).json()["live"]
        anonymous = client.post(f"{LIVE}/api/authenticate", headers=bearer("token-of-the-cluster"), json={})
        assert (anonymous.status_code, "set-cookie" in anonymous.headers) == (403, False)


def test_rays_dialog_signs_in_at_the_head_without_authentication(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    with serve_with_head(tmp_path, head) as client:
        assert client.get(f"{LIVE}/api/authentication_mode").status_code == 401  # not verified yet
        assert client.get(TASKS).status_code == 401
        assert client.get(TASKS, headers=bearer("token-of-the-cluster")).json()["live"]
        assert client.get(f"{LIVE}/api/authentication_mode").json() == {"authentication_mode": "token"}
        signed_in = client.post(f"{LIVE}/api/authenticate", headers=bearer("token-of-the-cluster"), json={})
        assert "rayhistory-live-token" in signed_in.headers["set-cookie"]


def test_token_mode_passes_the_visitors_token(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with serve_with_head(
        tmp_path, head, auth="token", access_file=write_access_file(tmp_path), use_auth_token_mode=True
    ) as client:
        assert (
            client.get(LIVE + head_double.ECHO, headers=bearer(ALLOWED_TOKEN)).json()["x-ray-authorization"]
            == f"Bearer {ALLOWED_TOKEN}"
        )


def test_other_cluster_at_the_registered_address_is_not_shown(tmp_path: Path) -> None:
    with serve_with_head(tmp_path, HeadDouble("session_of_another_cluster")) as client:
        assert "data" in client.get(TASKS).json()


@pytest.mark.parametrize(
    "address",
    ["http://169.254.169.254", "http://2852039166", "http://169.254.43518", "http://0", "http://169.254.169.254.",
     "http://10.0.0.1:8265", "http://head.invalid", "http://u:p@head", "http://h/path", "file:///etc/passwd"],
)  # fmt: skip
def test_disallowed_addresses_are_never_requested(tmp_path: Path, address: str) -> None:
    register_head(tmp_path, address)
    requests: list[str] = []

    class RecordingProxy(HeadProxy):
        async def get(self, address: Any, path: str, token: str = "") -> httpx.Response:
            requests.append(address.url)
            raise httpx.ConnectError("not in this test")

    with serve_two_namespaces(tmp_path, live=True) as client:
        client.app.state.live.proxy = RecordingProxy()  # type: ignore[attr-defined]
        assert "data" in client.get(TASKS).json()
    assert requests == []


def test_hanging_head_times_out(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with serve_with_head(tmp_path, head) as client:
        client.app.state.live.proxy = HeadProxy(read_timeout=0.5)  # type: ignore[attr-defined]
        response = client.get(LIVE + head_double.SLOW)
        assert (response.status_code, response.headers["x-rayhistory-error"]) == (504, "head_unavailable")
        assert response.text.startswith("The cluster's dashboard does not respond")
        assert client.get(TASKS).json()["live"]


def test_session_of_an_unreachable_head_is_read_from_the_store(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
    with serve_two_namespaces(tmp_path, live=True) as client:
        assert "data" in client.get(TASKS).json()


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with serve_with_head(tmp_path, HeadDouble(REF.session)) as client:
        response = client.get(LIVE + head_double.REDIRECT)
        assert (response.status_code, "location" in response.headers) == (502, False)
        assert response.headers["x-rayhistory-error"] == "head_error"


def test_scripts_of_a_head_are_served_as_text(tmp_path: Path) -> None:
    with serve_with_head(tmp_path, HeadDouble(REF.session)) as client:
        response = client.get(LIVE + head_double.SCRIPT)
        assert response.headers["content-type"] == "text/plain"
        assert response.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert response.headers["x-content-type-options"] == "nosniff"


def test_job_logs_are_followed_over_a_websocket(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    tail = f"{LIVE}/api/jobs/my-job/logs/tail"
    with serve_with_head(tmp_path, head, auth="token", access_file=write_access_file(tmp_path)) as client:
        with client.websocket_connect(tail, headers=bearer(ALLOWED_TOKEN)) as socket:
            assert socket.receive_text() == "one\n"
            assert socket.receive_text() == "for None\n"
            assert socket.receive()["type"] == "websocket.close"
        with client.websocket_connect(tail.replace("my-job", "endless"), headers=bearer(ALLOWED_TOKEN)) as socket:
            socket.receive_text()
        eventually(lambda: head.disconnects == 1)
        with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect(tail):
            pass
        assert denied.value.status_code == 401


def test_large_response_is_streamed(tmp_path: Path) -> None:
    """A response of 1 GB passes without being held in memory."""
    head = HeadDouble(REF.session)
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
        with run_live_server(tmp_path) as server, httpx.Client(base_url=server, timeout=120, trust_env=False) as client:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with client.stream("GET", LIVE + head_double.ENDLESS) as response:
                assert sum(len(block) for block in response.iter_raw()) == 1 << 30
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_response_beyond_the_limit_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_proxy, "_MAX_RESPONSE_BYTES", 5 << 20)
    head = HeadDouble(REF.session)
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
        with run_live_server(tmp_path) as server, httpx.Client(base_url=server, timeout=20, trust_env=False) as client:
            received = 0
            with pytest.raises(httpx.RemoteProtocolError), client.stream("GET", LIVE + head_double.ENDLESS) as response:
                for block in response.iter_raw():
                    received += len(block)
            assert received <= 5 << 20


def test_disconnect_ends_the_request_to_the_head(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with run_app(head.app()) as address:
        register_head(tmp_path, address)
        with run_live_server(tmp_path) as server, httpx.Client(base_url=server, timeout=20, trust_env=False) as client:
            with client.stream("GET", LIVE + head_double.LOG_STREAM) as response:
                assert next(response.iter_raw()) == b"first\n"
            eventually(lambda: head.disconnects == 1)
            with pytest.raises(httpx.ReadTimeout):
                client.get(LIVE + head_double.SLOW, timeout=0.5)
            client.close()
            eventually(lambda: head.disconnects == 2)


def test_cluster_is_read_through_the_kubernetes_api(tmp_path: Path) -> None:
    head = HeadDouble("any")
    with serve_in_kubernetes(tmp_path, head, "my-head-svc") as (client, double):
        path = "/s/default/my.cluster.with.dots/live"
        double.put("rayclusters", "default", "my.cluster.with.dots", status={"head": {"serviceName": "my-head-svc"}})
        eventually(lambda: cluster_state(client, "my.cluster.with.dots") == "running")
        assert client.get(f"{path}/api/v0/tasks").json()["live"]
        received = client.get(path + head_double.ECHO, headers=bearer("of-ray")).json()
        assert ("authorization" in received, received["x-ray-authorization"]) == (False, "Bearer of-ray")
        with client.websocket_connect(f"{path}/api/jobs/x/logs/tail") as socket:
            assert socket.receive_text() == "one\n"
        live = [row for row in client.get("/clusters").json() if row["sessionName"] == "live"]
        assert live == [
            {"name": "my.cluster.with.dots", "namespace": "default", "sessionName": "live",
             "createTime": "2026-11-15 19:18:08 +0000 UTC", "createTimeStamp": 1794770288}
        ]  # fmt: skip
        assert client.get("/enter_cluster/default/raycluster/my.cluster.with.dots/live").json()["session"] == "live"
        assert client.get("/api/v0/tasks").json()["live"]
        client.cookies.clear()
        assert client.get("/enter_cluster/default/raycluster/my.cluster.with.dots").json()["session"] == "live"
        client.cookies.clear()
        row = client.get("/home.json?state=running").json()["sessions"][0]
        assert (row["cluster"], row["url"], row["state"]) == ("my.cluster.with.dots", f"{path}/", "running")
        assert f'href="{path}/' in client.get("/home").text
        double.delete("rayclusters", "default", "my.cluster.with.dots")
        eventually(lambda: client.get(f"{path}/api/v0/tasks").status_code == 404)


def test_deleted_cluster_is_read_from_the_store(tmp_path: Path) -> None:
    with serve_in_kubernetes(tmp_path, HeadDouble("any"), "head") as (client, double):
        double.put("rayclusters", "default", "sample", status={"head": {"serviceName": "head"}})
        tasks = "/s/default/sample/live/api/v0/tasks"
        eventually(lambda: client.get(tasks).json().get("live"))
        sample = next(row for row in client.get("/home.json").json()["sessions"] if row["cluster"] == "sample")
        assert sample["state"] == "running"
        assert client.get(sample["url"] + "api/v0/tasks").json()["data"]["result"]["total"] > 0
        double.delete("rayclusters", "default", "sample")
        eventually(lambda: "data" in client.get(tasks).json())
        assert cluster_state(client, "sample") == "gone"
        sample = next(row for row in client.get("/home.json").json()["sessions"] if row["cluster"] == "sample")
        assert sample["state"] == "ended"


def test_suspended_cluster_is_read_from_the_store(tmp_path: Path) -> None:
    with serve_in_kubernetes(tmp_path, HeadDouble("any"), "head") as (client, double):
        double.put("rayclusters", "default", "sample", spec={"suspend": True}, status={"head": {"serviceName": "head"}})
        eventually(lambda: cluster_state(client, "sample") == "suspended")
        assert "data" in client.get("/s/default/sample/live/api/v0/tasks").json()


def test_active_cluster_of_an_upgrading_service_is_shown(tmp_path: Path) -> None:
    with serve_in_kubernetes(tmp_path, HeadDouble("any"), "old-head") as (client, double):
        for name, created in (("old", "2026-11-15T00:00:00Z"), ("new", "2026-11-16T00:00:00Z")):
            reference = {"kind": "RayService", "name": "web", "controller": True}
            double.put(
                "rayclusters", "default", name, status={"head": {"serviceName": f"{name}-head"}},
                metadata={"creationTimestamp": created, "ownerReferences": [reference]},
            )  # fmt: skip
        status = {"activeServiceStatus": {"rayClusterName": "old"}, "pendingServiceStatus": {"rayClusterName": "new"}}
        double.put("rayservices", "default", "web", status=status)
        eventually(lambda: cluster_state(client, "new") == "running")
        eventually(lambda: client.get("/s/default/~rayservice/web/live/api/v0/tasks").json().get("live"))
        entered = client.get("/enter_cluster/default/rayservice/web/live").json()
        assert entered["name"] == "old"


def test_lists_of_live_clusters_show_only_visible_namespaces(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"auth": "token", "access_file": write_access_file(tmp_path)}
    with serve_in_kubernetes(tmp_path, HeadDouble("any"), "head", **settings) as (client, double):
        for namespace in ("default", "team-x"):
            double.put("rayclusters", namespace, f"live-in-{namespace}", status={"head": {"serviceName": "head"}})
        for path in ("/clusters", "/api/history/clusters"):
            eventually(lambda path=path: "live-in-default" in client.get(path, headers=bearer(ALLOWED_TOKEN)).text)
            assert "live-in-team-x" not in client.get(path, headers=bearer(ALLOWED_TOKEN)).text
        assert (
            client.get("/s/team-x/live-in-team-x/live/api/v0/tasks", headers=bearer(ALLOWED_TOKEN)).status_code == 403
        )
        forged = bearer(ALLOWED_TOKEN) | cookie_header_for(
            {"cluster_name": "live-in-team-x", "cluster_namespace": "team-x", "session_name": "live"}
        )
        assert client.get("/api/v0/tasks", headers=forged).status_code == 403
