"""`live` from the head of a running cluster: read only, passed on as it comes, and nothing that a head could misuse."""

import resource
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import WebSocketDenialResponse

import head_double
from beside_head import LIVE, REF, TASKS, TOKEN, beside, eventually, in_kubernetes, register, served, state_of
from guarded import HIDDEN, OURS, as_cookies, bearer, guarded, rules
from head_double import HeadDouble
from kubernetes_double import running
from rayhistory.live import proxy
from rayhistory.live.proxy import LiveProxy


def test_live_is_read_from_the_head(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with beside(tmp_path, head) as client:
        answer = client.get(f"{TASKS}?limit=3&filter_keys=state")
        assert answer.json() == {"live": True, "query": "limit=3&filter_keys=state"}
        assert "set-cookie" not in answer.headers
        assert "x-odd" not in answer.headers
        assert client.head(TASKS).status_code == 200
        page = client.get(f"{LIVE}/")
        assert (page.status_code, "Ray Dashboard" in page.text) == (200, True)
        assert client.get(f"/s/default/alive/{REF.session}/api/v0/tasks").json() != answer.json()
        entered = client.get("/enter_cluster/default/raycluster/alive/live")
        assert entered.json()["session"] == "live"
        assert client.get("/api/v0/tasks").json()["live"]
        assert {"GET /api/v0/tasks", "HEAD /api/v0/tasks", "GET /api/version"} == set(head.asked)


def test_without_the_setting_live_is_read_from_the_store(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with running(head.app()) as address:
        register(tmp_path, address)
        with guarded(tmp_path) as client:
            assert "data" in client.get(TASKS).json()
    assert head.asked == []


def test_only_reading_reaches_the_head(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with beside(tmp_path, head) as client:
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
    assert all(asked.endswith("/api/version") for asked in head.asked), head.asked


def test_the_head_gets_no_cookies_and_no_tokens_that_are_not_for_it(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    secrets = {"Cookie": f"rayhistory-token={OURS}; other=1", "X-Forwarded-User": "ada", "X-Secret": "1"}
    with beside(tmp_path, head, auth="token", access_file=rules(tmp_path)) as client:
        got = client.get(LIVE + head_double.ECHO, headers=secrets | {"User-Agent": "Mozilla/5.0"}).json()
        assert OURS not in str(got)
        assert set(got) <= {"host", "accept", "accept-encoding", "connection", "user-agent"}
        assert got["user-agent"] == "Mozilla/5.0"
        assert client.get(f"/s/{HIDDEN.namespace}/alive/live/api/v0/tasks", headers=secrets).status_code == 403
        assert client.get(TASKS).status_code == 401


def test_a_head_that_wants_a_token_gets_the_visitors_own(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    with beside(tmp_path, head, auth="token", access_file=rules(tmp_path)) as client:
        ours = {"Cookie": f"rayhistory-token={OURS}"}
        assert client.get(TASKS, headers=bearer(OURS)).text == "Unauthorized: Missing authentication token"
        both = bearer(OURS) | {"X-Ray-Authorization": "Bearer token-of-the-cluster"}
        assert client.get(TASKS, headers=both).json()["live"]
        wrong = client.post(f"{LIVE}/api/authenticate", headers=ours | bearer("another-token"), json={})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
        signed_in = client.post(f"{LIVE}/api/authenticate", headers=ours | bearer("token-of-the-cluster"), json={})
        name, _, rest = signed_in.headers["set-cookie"].partition("=")
        assert name.startswith("rayhistory-live-token-")
        assert rest == f"token-of-the-cluster; Path={LIVE}/; Max-Age=43200; HttpOnly; SameSite=Strict"
        kept = {"Cookie": f"rayhistory-token={OURS}; {name}=token-of-the-cluster"}
        assert client.get(TASKS, headers=kept).json()["live"]
        nobody = client.post(f"{LIVE}/api/authenticate", headers=bearer("token-of-the-cluster"), json={})
        assert (nobody.status_code, "set-cookie" in nobody.headers) == (403, False)


def test_without_access_control_rays_dialog_is_the_heads(tmp_path: Path) -> None:
    head = HeadDouble(REF.session, TOKEN)
    with beside(tmp_path, head) as client:
        assert client.get(f"{LIVE}/api/authentication_mode").status_code == 401  # of which session nobody can tell yet
        assert client.get(TASKS).status_code == 401
        assert client.get(TASKS, headers=bearer("token-of-the-cluster")).json()["live"]
        assert client.get(f"{LIVE}/api/authentication_mode").json() == {"authentication_mode": "token"}
        signed_in = client.post(f"{LIVE}/api/authenticate", headers=bearer("token-of-the-cluster"), json={})
        assert "rayhistory-live-token" in signed_in.headers["set-cookie"]


def test_token_mode_passes_on_the_visitors_token_and_no_other(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with beside(tmp_path, head, auth="token", access_file=rules(tmp_path), use_auth_token_mode=True) as client:
        assert (
            client.get(LIVE + head_double.ECHO, headers=bearer(OURS)).json()["x-ray-authorization"] == f"Bearer {OURS}"
        )


def test_another_cluster_at_the_registered_address_is_not_shown(tmp_path: Path) -> None:
    with beside(tmp_path, HeadDouble("session_of_somebody_else")) as client:
        assert "data" in client.get(TASKS).json()


@pytest.mark.parametrize(
    "address",
    ["http://169.254.169.254", "http://[fe80::1]:80", "http://[::ffff:169.254.169.254]",
     "http://[::ffff:a9fe:a9fe]:80", "http://2852039166", "http://0xa9fea9fe", "http://169.254.43518", "http://0",
     "http://169.254.169.254.", "http://\uff11\uff16\uff19.254.169.254", "ftp://head",
     "http://0.0.0.0:1", "http://u:p@head", "http://h/path",
     "http://head:99999", "file:///etc/passwd", "//head", "http://"],
)  # fmt: skip
def test_addresses_that_are_nobodys_dashboard_are_never_asked(tmp_path: Path, address: str) -> None:
    register(tmp_path, address)
    asked: list[str] = []

    class Counted(LiveProxy):
        async def get(self, target: Any, path: str, token: str = "") -> httpx.Response:
            asked.append(target.url)
            raise httpx.ConnectError("not in this test")

    with guarded(tmp_path, live=True) as client:
        client.app.state.live.proxy = Counted()  # type: ignore[attr-defined]
        assert "data" in client.get(TASKS).json()
    assert asked == []


def test_a_head_that_hangs_is_given_up(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with beside(tmp_path, head) as client:
        client.app.state.live.proxy = LiveProxy(silence=0.5)  # type: ignore[attr-defined]
        answer = client.get(LIVE + head_double.SLOW)
        assert answer.status_code == 504
        assert answer.text.startswith("The cluster's dashboard does not answer")
        assert client.get(TASKS).json()["live"]


def test_a_head_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with running(head.app()) as address:
        register(tmp_path, address)
    with guarded(tmp_path, live=True) as client:
        assert "data" in client.get(TASKS).json()


def test_redirects_to_elsewhere_are_not_followed(tmp_path: Path) -> None:
    with beside(tmp_path, HeadDouble(REF.session)) as client:
        answer = client.get(LIVE + head_double.ELSEWHERE)
        assert (answer.status_code, "location" in answer.headers) == (502, False)


def test_scripts_of_a_head_do_not_run_as_ours(tmp_path: Path) -> None:
    with beside(tmp_path, HeadDouble(REF.session)) as client:
        answer = client.get(LIVE + head_double.SCRIPT)
        assert answer.headers["content-type"] == "text/plain"
        assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_output_of_a_job_comes_through_a_socket(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    tail = f"{LIVE}/api/jobs/my-job/logs/tail"
    with beside(tmp_path, head, auth="token", access_file=rules(tmp_path)) as client:
        with client.websocket_connect(tail, headers=bearer(OURS)) as socket:
            assert socket.receive_text() == "one\n"
            assert socket.receive_text() == "for None\n"
            assert socket.receive()["type"] == "websocket.close"
        with client.websocket_connect(tail.replace("my-job", "endless"), headers=bearer(OURS)) as socket:
            socket.receive_text()
        eventually(lambda: head.given_up == 1)
        with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect(tail):
            pass
        assert refused.value.status_code == 401


def test_a_large_answer_is_streamed_and_has_a_limit(tmp_path: Path) -> None:
    """A GB passes through without being held; beyond the limit the connection breaks off."""
    head = HeadDouble(REF.session)
    with running(head.app()) as address:
        register(tmp_path, address)
        with served(tmp_path) as ours, httpx.Client(base_url=ours, timeout=120, trust_env=False) as client:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with client.stream("GET", LIVE + head_double.ENDLESS) as answer:
                assert sum(len(block) for block in answer.iter_raw()) == 1 << 30
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_an_answer_beyond_the_limit_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_LARGEST", 5 << 20)
    head = HeadDouble(REF.session)
    with running(head.app()) as address:
        register(tmp_path, address)
        with served(tmp_path) as ours, httpx.Client(base_url=ours, timeout=20, trust_env=False) as client:
            passed = 0
            with pytest.raises(httpx.RemoteProtocolError), client.stream("GET", LIVE + head_double.ENDLESS) as answer:
                for block in answer.iter_raw():
                    passed += len(block)
            assert passed <= 5 << 20


def test_who_leaves_ends_the_request_to_the_head(tmp_path: Path) -> None:
    head = HeadDouble(REF.session)
    with running(head.app()) as address:
        register(tmp_path, address)
        with served(tmp_path) as ours, httpx.Client(base_url=ours, timeout=20, trust_env=False) as client:
            with client.stream("GET", LIVE + head_double.FOLLOWED) as answer:
                assert next(answer.iter_raw()) == b"first\n"
            eventually(lambda: head.given_up == 1)
            with pytest.raises(httpx.ReadTimeout):
                client.get(LIVE + head_double.SLOW, timeout=0.5)
            client.close()
            eventually(lambda: head.given_up == 2)


# In Kubernetes


def test_a_cluster_in_kubernetes_is_read_through_its_api(tmp_path: Path) -> None:
    head = HeadDouble("any")
    with in_kubernetes(tmp_path, head, "my-head-svc") as (client, double):
        path = "/s/default/my.cluster.with.dots/live"
        double.put("rayclusters", "default", "my.cluster.with.dots", status={"head": {"serviceName": "my-head-svc"}})
        eventually(lambda: state_of(client, "my.cluster.with.dots") == "running")
        assert client.get(f"{path}/api/v0/tasks").json()["live"]
        got = client.get(path + head_double.ECHO, headers=bearer("of-ray")).json()
        assert ("authorization" in got, got["x-ray-authorization"]) == (False, "Bearer of-ray")
        with client.websocket_connect(f"{path}/api/jobs/x/logs/tail") as socket:
            assert socket.receive_text() == "one\n"
        live = [each for each in client.get("/clusters").json() if each["sessionName"] == "live"]
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


def test_a_cluster_that_is_deleted_while_it_is_viewed_goes_on_from_the_store(tmp_path: Path) -> None:
    with in_kubernetes(tmp_path, HeadDouble("any"), "head") as (client, double):
        double.put("rayclusters", "default", "sample", status={"head": {"serviceName": "head"}})
        tasks = "/s/default/sample/live/api/v0/tasks"
        eventually(lambda: client.get(tasks).json().get("live"))
        sample = next(row for row in client.get("/home.json").json()["sessions"] if row["cluster"] == "sample")
        assert sample["state"] == "running"
        assert client.get(sample["url"] + "api/v0/tasks").json()["data"]["result"]["total"] > 0
        double.delete("rayclusters", "default", "sample")
        eventually(lambda: "data" in client.get(tasks).json())
        assert state_of(client, "sample") == "gone"
        sample = next(row for row in client.get("/home.json").json()["sessions"] if row["cluster"] == "sample")
        assert sample["state"] == "ended"


def test_a_suspended_cluster_is_read_from_the_store(tmp_path: Path) -> None:
    with in_kubernetes(tmp_path, HeadDouble("any"), "head") as (client, double):
        double.put("rayclusters", "default", "sample", spec={"suspend": True}, status={"head": {"serviceName": "head"}})
        eventually(lambda: state_of(client, "sample") == "suspended")
        assert "data" in client.get("/s/default/sample/live/api/v0/tasks").json()


def test_while_a_service_is_upgraded_the_cluster_that_serves_is_shown(tmp_path: Path) -> None:
    with in_kubernetes(tmp_path, HeadDouble("any"), "old-head") as (client, double):
        for name, created in (("old", "2026-11-15T00:00:00Z"), ("new", "2026-11-16T00:00:00Z")):
            reference = {"kind": "RayService", "name": "web", "controller": True}
            double.put(
                "rayclusters", "default", name, status={"head": {"serviceName": f"{name}-head"}},
                metadata={"creationTimestamp": created, "ownerReferences": [reference]},
            )  # fmt: skip
        status = {"activeServiceStatus": {"rayClusterName": "old"}, "pendingServiceStatus": {"rayClusterName": "new"}}
        double.put("rayservices", "default", "web", status=status)
        eventually(lambda: state_of(client, "new") == "running")
        eventually(lambda: client.get("/s/default/~rayservice/web/live/api/v0/tasks").json().get("live"))
        entered = client.get("/enter_cluster/default/rayservice/web/live").json()
        assert entered["name"] == "old"


def test_lists_of_live_clusters_show_only_what_may_be_seen(tmp_path: Path) -> None:
    more: dict[str, Any] = {"auth": "token", "access_file": rules(tmp_path)}
    with in_kubernetes(tmp_path, HeadDouble("any"), "head", **more) as (client, double):
        for namespace in ("default", "team-x"):
            double.put("rayclusters", namespace, f"live-in-{namespace}", status={"head": {"serviceName": "head"}})
        for path in ("/clusters", "/api/history/clusters"):
            eventually(lambda path=path: "live-in-default" in client.get(path, headers=bearer(OURS)).text)
            assert "live-in-team-x" not in client.get(path, headers=bearer(OURS)).text
        assert client.get("/s/team-x/live-in-team-x/live/api/v0/tasks", headers=bearer(OURS)).status_code == 403
        forged = bearer(OURS) | as_cookies(
            {"cluster_name": "live-in-team-x", "cluster_namespace": "team-x", "session_name": "live"}
        )
        assert client.get("/api/v0/tasks", headers=forged).status_code == 403
