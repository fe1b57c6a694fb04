"""Ray's own dashboard as a proxy of the history server: `ray start --head --proxy-server-url=…`."""

import asyncio
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from browser.chart_frames import expect_charts_of_the_api
from browser.monitored_browser import MonitoredBrowser, chromium, save_screenshot
from rayhistory.server.frontend import Frontends
from recorded.ray_versions import PYTHONS, THIS_PYTHON, name, ray_command
from recorded.recorder import Recording
from recorded.workloads import RUNNING, SAMPLE
from support.ray_without_collector import ray_without_collector
from support.server_process import running_server

WITHOUT_RAY = "import sys\nsys.modules['ray'] = None\n"
TASKS = "/api/v0/tasks?detail=1&limit=10000"
PLATFORM_EVENTS = "/api/v0/platform_events"
"""Ray's own frontend asks for them, and hides their page where they are missing."""
COOKIES = ("cluster_name", "cluster_namespace", "session_name", "owner_kind", "owner_name")


def has_proxy_mode(python: str) -> bool:
    """Return whether this Ray has proxy mode, as all versions from 2.55 on."""
    done = subprocess.run([ray_command(python), "start", "--help"], capture_output=True, text=True, check=True)
    return "--proxy-server-url" in done.stdout


PYTHONS_WITH_PROXY_MODE = [python for python in PYTHONS if python == THIS_PYTHON or has_proxy_mode(python)]


@contextmanager
def proxying_ray(address: str, python: str = THIS_PYTHON) -> Iterator[str]:
    """Run an empty Ray cluster in proxy mode, and yield the address of its dashboard."""
    temp_dir = Path(tempfile.mkdtemp(prefix="rp"))
    with asyncio.Runner() as runner:
        ray = ray_without_collector(temp_dir, f"--proxy-server-url={address}", ray=ray_command(python))
        try:
            started = runner.run(ray.__aenter__())
            try:
                yield started.dashboard
            finally:
                runner.run(ray.__aexit__(None, None, None))
        finally:
            shutil.rmtree(temp_dir, ignore_errors=True)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxied")


@pytest.fixture(scope="module")
def server(recorded: Recording, work: Path) -> Iterator[str]:
    """A server without a frontend of its own, like KubeRay's."""
    with running_server(recorded.store, work, at_start=WITHOUT_RAY) as address:
        yield address


@pytest.fixture(scope="module", params=PYTHONS_WITH_PROXY_MODE, ids=name)
def dashboard(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with proxying_ray(server, request.param) as address:
        yield address


@pytest.fixture
def http(dashboard: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=dashboard, timeout=60, trust_env=False, follow_redirects=True) as http:
        yield http


@pytest.fixture
def entered(http: httpx.Client, recorded: Recording) -> httpx.Client:
    ref = recorded.ref
    http.get(f"/enter_cluster/{ref.namespace}/raycluster/{ref.cluster}/{ref.session}").raise_for_status()
    return http


def submission_ids(response: httpx.Response) -> set[Any]:
    return {job["submission_id"] for job in response.raise_for_status().json()}


def test_clusters_lists_sessions(http: httpx.Client, recorded: Recording) -> None:
    listed = http.get("/clusters").raise_for_status().json()
    entry = next(one for one in listed if one["name"] == recorded.ref.cluster)
    assert entry.keys() >= {"name", "namespace", "sessionName", "createTime", "createTimeStamp"}
    assert (entry["namespace"], entry["sessionName"]) == (recorded.ref.namespace, recorded.ref.session)


@pytest.mark.parametrize(
    "choice",
    [
        "{0.namespace}/{0.cluster}/{0.session}",
        "{0.namespace}/{0.cluster}",
        "{0.namespace}/raycluster/{0.cluster}",
        "{0.namespace}/RayCluster/{0.cluster}/{0.session}",
        "{0.namespace}/raycluster/{0.cluster}/latest",
        "{0.namespace}/raycluster/{0.cluster}/live",
    ],
)
def test_enter_cluster_selects_the_session(http: httpx.Client, recorded: Recording, choice: str) -> None:
    """With the paths and cookies of all KubeRay releases; Ray's dashboard then shows that session."""
    ref = recorded.ref
    response = http.get(f"/enter_cluster/{choice.format(ref)}").raise_for_status()
    expected = {"name": ref.cluster, "namespace": ref.namespace, "result": "success", "session": ref.session}
    assert response.json() == expected
    cookies = response.headers.get_list("set-cookie")
    assert [line.partition("=")[0] for line in cookies] == list(COOKIES)
    assert all(line.endswith("; Path=/; Max-Age=600") for line in cookies)
    assert SAMPLE in submission_ids(http.get("/api/jobs/"))


def test_every_response_renews_the_cookies(entered: httpx.Client) -> None:
    cookies = entered.get("/api/jobs/").headers.get_list("set-cookie")
    assert [line.partition("=")[0] for line in cookies] == list(COOKIES)


@pytest.mark.parametrize(
    "choice",
    ["default/raycluster/nobody", "default/rayjob/recorded", "default/recorded/session_2020-01-01_00-00-00_0_1"],
)
def test_unknown_cluster_cannot_be_entered(http: httpx.Client, choice: str) -> None:
    response = http.get(f"/enter_cluster/{choice}")
    assert response.status_code == 404
    assert not response.headers.get_list("set-cookie")


def test_without_a_selected_session_the_local_cluster_is_not_shown(http: httpx.Client) -> None:
    """The root page is the home page, and the API responds with 400."""
    assert "<title>" in http.get("/").text
    assert "recorded" in http.get("/").text
    assert http.get("/").text.partition("<main")[2] == http.get("/select_cluster").text.partition("<main")[2]
    assert http.get("/api/jobs/").status_code == 400
    assert http.get("/nodes?view=summary").status_code == 400


def test_proxied_responses_equal_those_of_the_server(entered: httpx.Client, server: str, recorded: Recording) -> None:
    """The bytes are equal with every content encoding."""
    direct = httpx.get(server + recorded.ref.url[:-1] + TASKS, trust_env=False, timeout=60)
    assert entered.get(TASKS).content == direct.content
    assert entered.get(TASKS, headers={"Accept-Encoding": "identity"}).content == direct.content
    assert entered.get(TASKS, headers={"Accept-Encoding": "gzip, deflate, br, zstd"}).content == direct.content
    assert direct.headers["content-encoding"] == "gzip"


def test_unchanged_response_is_not_sent_again(entered: httpx.Client) -> None:
    tag = entered.get(TASKS).headers["etag"]
    again = entered.get(TASKS, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_missing_data_is_never_replaced_by_the_local_cluster(entered: httpx.Client) -> None:
    """Ray falls back to its own cluster after a 404."""
    for path in ("/api/jobs/unknown", "/api/nothing", "/api/v0/logs/file?node_id=none&filename=x"):
        assert entered.get(path).status_code in (400, 410, 500), path
    summaries = entered.get("/nodes?view=summary").json()["data"]["summary"]
    (node,) = {one["raylet"]["nodeId"] for one in summaries}
    assert entered.get(f"/nodes/{node}").json()["data"]["detail"]["raylet"]["nodeId"] == node


def expect_texts(page: Page, *texts: str) -> None:
    for text in texts:
        expect(page.get_by_text(text).filter(visible=True).first).to_be_visible()


def walk(page: Page, screenshot: str) -> None:
    """Visit the pages of the dashboard by its links."""
    expect_texts(page, "Recent jobs", SAMPLE, RUNNING)
    save_screenshot(page, f"{screenshot}-overview")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("row").filter(has_text=SAMPLE).filter(has_text="SUCCEEDED").first).to_be_visible()
    save_screenshot(page, f"{screenshot}-jobs")
    page.get_by_role("link", name="Cluster", exact=True).click()
    expect_texts(page, "127.0.0.1 (Head)", "ALIVE")
    page.get_by_role("link", name="Actors", exact=True).click()
    expect_texts(page, "Trainer", "experiment-tracker")
    page.get_by_role("link", name="Logs", exact=True).click()
    expect_texts(page, "Select a node to view logs")
    save_screenshot(page, f"{screenshot}-logs")


def test_dashboard_of_ray_shows_the_selected_session(
    dashboard: str, recorded: Recording, work: Path, tmp_path: Path
) -> None:
    """Without a frontend on the server, Ray's local frontend is used; with one, the server's."""
    ref = recorded.ref
    with chromium() as browser:
        monitored = MonitoredBrowser(browser)
        monitored.expected_404s.add(PLATFORM_EVENTS)
        page = monitored.open(f"{dashboard}/clusters")
        expect_texts(page, ref.session)
        page.goto(f"{dashboard}/enter_cluster/{ref.namespace}/{ref.cluster}/{ref.session}")
        expect_texts(page, "success")
        page.goto(dashboard)
        walk(page, "proxied")
        expect(page.locator("html")).to_have_attribute("lang", "en")

        (installed,) = Frontends(str(tmp_path)).installed()
        added = work / "cache" / "dashboards" / "2.60.0"
        shutil.copytree(installed.path, added)
        index = (added / "index.html").read_text()
        (added / "index.html").write_text(index.replace('lang="en"', 'lang="en-GB"'))
        page.goto(f"{dashboard}/#/overview")
        page.reload()
        walk(page, "proxied-own-frontend")
        expect(page.locator("html")).to_have_attribute("lang", "en-GB")
        shutil.rmtree(added)
        monitored.close()
    assert monitored.errors == []


def test_charts_are_shown_through_the_proxy(
    dashboard: str, server: str, entered: httpx.Client, recorded: Recording
) -> None:
    """Metrics page and overview cards of Ray's own frontend, with the series of the server's API."""
    health = entered.get("/api/grafana_health").raise_for_status().json()["data"]
    assert health["sessionName"] == recorded.ref.session
    assert entered.get("/api/prometheus_health").raise_for_status().json()["result"] is True
    ref = recorded.ref
    with chromium() as browser:
        monitored = MonitoredBrowser(browser)
        monitored.expected_404s.add(PLATFORM_EVENTS)
        page = monitored.open(f"{dashboard}/enter_cluster/{ref.namespace}/{ref.cluster}/{ref.session}")
        expect_texts(page, "success")
        page.goto(f"{dashboard}/#/overview")
        expect_texts(page, "Recent jobs", SAMPLE)
        expect(page.locator("iframe")).to_have_count(2)
        assert expect_charts_of_the_api(page, f"{server}{ref.url}") == 2
        page.get_by_role("link", name="Metrics", exact=True).click()
        expect(page).to_have_url(re.compile("#/metrics"))
        assert expect_charts_of_the_api(page, f"{server}{ref.url}") > 10
        save_screenshot(page, "proxied-metrics")
        monitored.close()
    assert monitored.errors == []


def test_dashboard_started_for_one_session_needs_no_selection(history: str, recorded: Recording) -> None:
    """`--proxy-server-url=http://…/s/namespace/cluster/session`: no cookies, and no bar around Ray's pages."""
    with proxying_ray(f"{history}{recorded.ref.url[:-1]}") as dashboard:
        with httpx.Client(base_url=dashboard, timeout=60, trust_env=False) as http:
            assert SAMPLE in submission_ids(http.get("/api/jobs/"))
            tag = http.get(TASKS).headers["etag"]
            assert http.get(TASKS, headers={"If-None-Match": tag}).status_code == 304
            browsing = {"User-Agent": "Mozilla/5.0"}
            assert http.get("/api/jobs/unknown", headers=browsing).status_code == 410
            assert not http.cookies
        with chromium() as browser:
            monitored = MonitoredBrowser(browser)
            monitored.expected_404s.add(PLATFORM_EVENTS)
            page = monitored.open(dashboard)
            walk(page, "proxied-by-path")
            expect(page.locator("iframe")).to_have_count(0)
            monitored.close()
    assert monitored.errors == []
