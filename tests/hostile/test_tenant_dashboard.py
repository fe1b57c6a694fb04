"""A tenant on a node: a job that can write Ray's files, listen on ports, and post to the collector."""

import asyncio
from pathlib import Path

import pytest
from starlette.responses import RedirectResponse
from starlette.routing import WebSocketRoute
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocket

from rayhistory.collector.dashboard_client import DashboardClient, DashboardError
from rayhistory.collector.session.ray_discovery import find_dashboard_address
from rayhistory.settings import Settings
from support.dashboard_double import SESSION, VERSION, FakeDashboard, run_dashboard
from support.head_double import HeadDouble
from support.kubernetes_double import run_app
from support.live_server import cluster_state, eventually, serve_in_kubernetes

TOKEN = "token-of-the-cluster"


def verify_announced(directory: Path, address: str) -> None:
    """Verify the dashboard that the session's log names, as a head's collector does."""
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    (directory / "logs" / "dashboard.log").write_text(f"Dashboard head http address: {address}\n")
    settings = Settings(ray_dashboard_address="http://127.0.0.1:9", ray_auth_mode="token", ray_auth_token=TOKEN)

    async def verify() -> None:
        client = DashboardClient(settings, SESSION, lambda: find_dashboard_address(directory))
        try:
            with pytest.raises(DashboardError):
                await client.verify()  # nothing listens at the configured address
            await client.verify()
        finally:
            await client.close()

    asyncio.run(verify())


def received_tokens(dashboard: FakeDashboard) -> list[str]:
    return [value for headers in dashboard.headers for name, value in headers.items() if TOKEN in value]


@pytest.mark.parametrize("version", [{}, {"ray_version": "2.60.0"}, VERSION | {"session_name": "another"}])
def test_announced_dashboard_without_the_sessions_name_gets_no_token(tmp_path: Path, version: dict[str, str]) -> None:
    with run_dashboard() as dashboard:
        dashboard.responses["/api/version"] = version
        with pytest.raises(DashboardError):
            verify_announced(tmp_path, dashboard.url.removeprefix("http://"))
    assert dashboard.requests
    assert received_tokens(dashboard) == []


def test_first_request_to_an_announced_dashboard_has_no_token(tmp_path: Path) -> None:
    with run_dashboard() as dashboard:
        verify_announced(tmp_path, dashboard.url.removeprefix("http://"))
    assert dashboard.requests == ["/api/version"]
    assert received_tokens(dashboard) == []


def test_dashboard_that_requires_a_token_gets_it_in_the_second_request(tmp_path: Path) -> None:
    with run_dashboard(token=TOKEN) as dashboard:
        verify_announced(tmp_path, dashboard.url.removeprefix("http://"))
    assert dashboard.requests == ["/api/version", "/api/version"]
    assert len(received_tokens(dashboard)) == 1


def test_announced_name_is_not_asked_even_if_it_is_this_machine(tmp_path: Path) -> None:
    """A name may resolve to another machine when the token is sent."""
    with run_dashboard() as dashboard, pytest.raises(DashboardError):
        verify_announced(tmp_path, dashboard.url.replace("http://127.0.0.1", "localhost"))
    assert dashboard.requests == []


def test_head_cannot_redirect_a_websocket_to_another_head(tmp_path: Path) -> None:
    """The tenant runs the head: it must not choose what the server reads for a visitor of its namespace."""
    victim = HeadDouble("of another namespace")
    with run_app(victim.app()) as elsewhere:

        async def redirect(socket: WebSocket) -> None:
            location = elsewhere.replace("http://", "ws://") + "/api/jobs/secret/logs/tail"
            await socket.send_denial_response(RedirectResponse(location, 302))

        head = HeadDouble("any", overrides=[WebSocketRoute("/api/jobs/{job}/logs/tail", redirect)])
        with serve_in_kubernetes(tmp_path, head, "head") as (client, kubernetes):
            kubernetes.put("rayclusters", "default", "mine", status={"head": {"serviceName": "head"}})
            eventually(lambda: cluster_state(client, "mine") == "running")
            with (
                pytest.raises(WebSocketDenialResponse) as denied,
                client.websocket_connect("/s/default/mine/live/api/jobs/x/logs/tail"),
            ):
                pass
            assert denied.value.status_code == 502
