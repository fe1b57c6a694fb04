"""Links from Ray's dashboard to a Grafana."""

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from rayhistory.errors import UsageError
from rayhistory.server.app import create_app
from rayhistory.settings import Settings, resolve
from support.recorded_sample import REF, settings_for, store_indexed_sample

GRAFANA = "https://grafana.example.com/sub"
RAY_PROXY = {"Content-Type": "application/json", "User-Agent": "Mozilla/5.0"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = settings_for(tmp_path_factory.mktemp("grafana"))
    store_indexed_sample(settings)
    return settings


@pytest.fixture(scope="module")
def client(sample: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(sample)) as client:
        yield client


@pytest.fixture(scope="module")
def grafana_client(sample: Settings) -> Iterator[TestClient]:
    settings = dataclasses.replace(sample, grafana_url=GRAFANA)
    with TestClient(create_app(settings), follow_redirects=False) as client:
        yield client


def test_own_charts_take_the_place_of_grafana(client: TestClient) -> None:
    data = client.get(f"{REF.url}api/grafana_health").json()["data"]
    assert (data["grafanaHost"], data["sessionName"]) == ("grafana", REF.session)
    assert data["dashboardUids"]["serveDeployment"] == "rayServeDeploymentDashboard"
    assert client.get(f"{REF.url}api/prometheus_health").json()["result"] is True


@pytest.mark.parametrize(
    "page", ["d/rayDefaultDashboard/", "d/rayDataDashboard/data?kiosk=1", "d-solo/rayServeDashboard"]
)
def test_pages_of_charts_need_no_grafana(client: TestClient, page: str) -> None:
    response = client.get(f"{REF.url}grafana/{page}")
    assert response.status_code == 200
    assert "script-src" not in response.headers["content-security-policy"]
    assert "unsafe" not in response.headers["content-security-policy"]
    assert f'data-solo="{"1" if page.startswith("d-solo") else ""}"' in response.text


@pytest.mark.parametrize("page", ["d/unknown/", "d/", "admin/users", "d/uid/%2e%2e/admin"])
def test_other_pages_of_grafana_do_not_exist(client: TestClient, page: str) -> None:
    assert client.get(f"{REF.url}grafana/{page}").status_code == 404


def test_grafana_is_linked_below_the_session(grafana_client: TestClient) -> None:
    """The host is relative to the page, and the dashboards have Ray's names."""
    data = grafana_client.get(f"{REF.url}api/grafana_health").json()["data"]
    assert (data["grafanaHost"], data["sessionName"]) == ("grafana", REF.session)
    assert data["dashboardUids"]["default"] == "rayDefaultDashboard"
    assert grafana_client.get(f"{REF.url}api/prometheus_health").json()["result"] is True


def parse_target(location: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc}{parts.path}", {
        name: value for name, (value,) in parse_qs(parts.query).items()
    }


FRONTEND_QUERY = "orgId=1&theme=dark&refresh=5s&from=now-5m&to=now&var-SessionName=session_x&var-datasource=Prometheus"


def test_grafana_links_have_the_time_range_of_the_session(grafana_client: TestClient) -> None:
    """Frontends request the last five minutes, which have no data, and refresh every five seconds."""
    response = grafana_client.get(f"{REF.url}grafana/d/rayDefaultDashboard/?{FRONTEND_QUERY}")
    assert response.status_code == 302
    url, query = parse_target(response.headers["location"])
    assert url == f"{GRAFANA}/d/rayDefaultDashboard"
    first, last = int(query.pop("from")), int(query.pop("to"))
    assert query == {"orgId": "1", "theme": "dark", "var-SessionName": "session_x", "var-datasource": "Prometheus"}
    started, ended = (
        datetime.fromisoformat(text).timestamp() * 1000 for text in ("2026-11-15T19:18:00Z", "2026-11-15T19:22:30Z")
    )
    assert started < first < last < ended


def test_explicit_time_range_of_grafana_is_kept(grafana_client: TestClient) -> None:
    """The job page requests the time range of the job."""
    response = grafana_client.get(f"{REF.url}grafana/d-solo/uid/default-dashboard?from=1000&to=2000&panelId=24")
    url, query = parse_target(response.headers["location"])
    assert (url, query) == (
        f"{GRAFANA}/d-solo/uid/default-dashboard",
        {"from": "1000", "to": "2000", "panelId": "24"},
    )


def test_grafana_time_range_ends_at_the_as_of_time(grafana_client: TestClient) -> None:
    as_of_ms = int(datetime.fromisoformat("2026-11-15T19:19:00Z").timestamp() * 1000)
    response = grafana_client.get(f"{REF.url[:-1]}@{as_of_ms}/grafana/d/uid/?{FRONTEND_QUERY}")
    assert parse_target(response.headers["location"])[1]["to"] == str(as_of_ms)


@pytest.mark.parametrize("page", ["admin/users", "d/", "d/uid/%2e%2e/admin", "d/uid%3Fx", "%2F%2Fevil.example/d/uid"])
def test_only_dashboards_are_redirected_to_grafana(grafana_client: TestClient, page: str) -> None:
    assert grafana_client.get(f"{REF.url}grafana/{page}").status_code == 404


def test_ray_proxy_gets_a_page_instead_of_a_redirect(grafana_client: TestClient) -> None:
    """The page redirects the browser itself."""
    response = grafana_client.get(f'{REF.url}grafana/d/uid/?from=1&to=2&x="><script>', headers=RAY_PROXY)
    assert response.status_code == 200
    assert f'<meta http-equiv="refresh" content="0; url={GRAFANA}/d/uid?from=1&amp;to=2' in response.text
    assert "<script>" not in response.text


@pytest.mark.parametrize(
    "url", ["grafana.example.com", "javascript:alert(1)", "https://", "https://g/?x=1", "https://g#x"]
)
def test_invalid_grafana_url_is_rejected(url: str) -> None:
    with pytest.raises(UsageError, match="--grafana-url"):
        resolve("historyserver", {"setting_grafana_url": url}, {})
