"""Requests to the dashboard: memory, failures, and the address of the head."""

import asyncio
import dataclasses

import pytest

from rayhistory.collector import dashboard_client
from rayhistory.collector.dashboard.schedule import JOBS
from rayhistory.collector.dashboard_client import (
    DashboardClient,
    DashboardError,
    DashboardFailure,
    operator_dashboard_address,
)
from rayhistory.settings import Settings
from support.dashboard_double import SESSION, FakeDashboard, run_dashboard


@pytest.mark.slow
def test_one_large_response_is_in_memory_at_a_time() -> None:
    """The next one waits until the first is stored; small ones do not wait."""

    async def use(client: DashboardClient, dashboard: FakeDashboard) -> None:
        dashboard.responses |= {"/a": "x" * 3_000_000, "/b": "y" * 3_000_000}
        async with asyncio.timeout(60):
            async with client.open_response("/a"):
                other = asyncio.create_task(client.get("/b"))
                for _ in range(50):
                    await client.get(JOBS)
                assert dashboard.count("/b") == 1
                assert not other.done()
            assert len(await other) > 3_000_000
        await client.close()

    with run_dashboard() as dashboard:
        settings = Settings(ray_dashboard_address=dashboard.url)
        asyncio.run(use(DashboardClient(settings, SESSION, lambda: None), dashboard))


def test_operator_address_is_accepted_in_all_its_forms() -> None:
    """With or without scheme and port, IPv4 and IPv6."""
    addresses = {
        "": None,
        "head.ns.svc.cluster.local": "http://head.ns.svc.cluster.local:8265",
        "https://head": "https://head:8265",
        "http://10.0.0.1:9000": "http://10.0.0.1:9000",
        "fd00::1": "http://[fd00::1]:8265",
        "[fd00::1]:9000": "http://[fd00::1]:9000",
    }
    assert {text: operator_dashboard_address(Settings(fq_ray_ip=text)) for text in addresses} == addresses


def failure_of(settings: Settings, uri: str = JOBS) -> DashboardError:
    """Return why a request fails."""

    async def request() -> DashboardError:
        client = DashboardClient(settings, SESSION, lambda: None)
        try:
            with pytest.raises(DashboardError) as caught:
                await client.get(uri)
        finally:
            await client.close()
        return caught.value

    return asyncio.run(request())


def reason_of(settings: Settings, uri: str = JOBS) -> str:
    return str(failure_of(settings, uri))


RIGHT, WRONG = "right", "wrong"


@pytest.mark.slow
def test_failed_request_has_a_short_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_dashboard(RIGHT) as dashboard:
        none = Settings(ray_dashboard_address=dashboard.url)
        right = dataclasses.replace(none, ray_auth_token=RIGHT)
        assert reason_of(none) == "authentication failed"
        assert reason_of(dataclasses.replace(none, ray_auth_token=WRONG)) == "authentication failed"
        assert reason_of(dataclasses.replace(none, ray_auth_mode="token")) == "no token"
        assert reason_of(right, "/unknown") == "status 500"
        assert failure_of(right, "/unknown").code is DashboardFailure.STATUS
        dashboard.responses["/large"] = "x" * 2000
        monkeypatch.setattr(dashboard_client, "_MAX_BODY_BYTES", 1000)
        assert reason_of(right, "/large") == "response too large"
        assert failure_of(right, "/large").size > 1000
    assert reason_of(right) == "no connection"


@pytest.mark.slow
def test_projected_token_is_required_where_it_is_configured() -> None:
    """Without the file, the dashboard would refuse each request."""
    with run_dashboard() as dashboard:
        settings = Settings(ray_dashboard_address=dashboard.url, ray_enable_k8s_token_auth=True, ray_auth_token=RIGHT)
        assert reason_of(settings) == "no token"
        assert dashboard.requests == []
