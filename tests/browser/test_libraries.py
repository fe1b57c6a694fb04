"""Pages of Ray's libraries in a real browser, for a Ray with these libraries (`make test-matrix`).

Charts are shown by the frontends in RAYHISTORY_TEST_DASHBOARDS, too.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from browser.chart_frames import expect_charts_of_the_api
from browser.monitored_browser import MonitoredBrowser, chromium, save_screenshot
from rayhistory.server.frontend import Frontends
from recorded import workloads
from recorded.ray_versions import LIBRARIES
from recorded.recorder import on_one_node, record_once
from recorded.workloads import Workload
from support.server_process import running_server

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="RAYHISTORY_TEST_LIBRARIES names no Ray with its libraries")

DASHBOARDS = os.environ.get("RAYHISTORY_TEST_DASHBOARDS", "")
VERSIONS = [each.version for each in Frontends(DASHBOARDS).installed()] if DASHBOARDS else [""]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Workload, str]]:
    """Serve sessions that used a library."""
    with ExitStack() as servers:
        found: dict[Workload, str] = {}
        for workload in (workloads.data, workloads.serving):
            directory = tmp_path_factory.mktemp(workload.__name__)
            recorded = record_once(directory / "recorded", LIBRARIES[0], on_one_node(workload))
            if DASHBOARDS:
                (directory / "work/cache").mkdir(parents=True)
                (directory / "work/cache/dashboards").symlink_to(Path(DASHBOARDS).absolute())
            server = servers.enter_context(running_server(recorded.store, directory / "work"))
            found[workload] = f"{server}{recorded.ref.url}"
        yield found


@pytest.fixture(scope="module")
def browser(addresses: dict[Workload, str]) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def expect_texts(page: Page, *texts: str) -> None:
    for text in texts:
        expect(page.get_by_text(text).filter(visible=True).first).to_be_visible()


def expect_texts_of_charts(page: Page, *texts: str) -> None:
    for text in texts:
        expect(page.frame_locator("iframe").first.get_by_text(text).first).to_be_visible()


def as_of(session: str, look: str) -> str:
    """Return the address of a session, as of some seconds before its last sample if it is to be shown earlier."""
    last_ms = httpx.get(f"{session}api/history/charts", timeout=60).raise_for_status().json()["last_ms"]
    return session if look == "end" else f"{session[:-1]}@{last_ms - 4_000}/"


def query(version: str) -> str:
    return "?bare=always" + (f"&dashboard={version}" if version else "")


def test_job_page_shows_datasets(monitored: MonitoredBrowser, addresses: dict[Workload, str]) -> None:
    session = addresses[workloads.data]
    page = monitored.open(f"{session}?bare=always#/jobs/data-job")
    page.get_by_text("Ray Data Overview").click()
    datasets = page.get_by_role("row").filter(has_text="dataset_").filter(has_text="FINISHED")
    expect(datasets).to_have_count(2)
    for _ in range(2):
        page.get_by_role("img", name="Expand Dataset").first.click()
    for operator in ("MapBatches", "Filter"):
        expect(page.get_by_role("row").filter(has_text=operator).filter(has_text="FINISHED")).to_be_visible()
    (job,) = {each["job_id"] for each in httpx.get(f"{session}api/jobs/").json() if each["submission_id"] == "data-job"}
    found = httpx.get(f"{session}api/data/datasets/{job}").raise_for_status().json()["datasets"]
    rows = {int(each["ray_data_output_rows"]["max"]) for each in found}  # from stored metrics: there is no Prometheus
    assert max(rows) > 0
    for number in rows:
        expect(datasets.get_by_role("cell", name=f"{number}", exact=True).first).to_be_visible()
    monitored.settle(page)
    save_screenshot(page, "library-data")


def test_serve_pages_show_an_application(monitored: MonitoredBrowser, addresses: dict[Workload, str]) -> None:
    page = monitored.open(f"{addresses[workloads.serving]}?bare=always#/serve")
    expect_texts(page, "doubling", "/double", "RUNNING")
    save_screenshot(page, "library-serve")
    page.get_by_role("link", name="doubling").first.click()
    for name in ("Front", "Doubler"):
        expect(page.get_by_role("row").filter(has_text=name).filter(has_text="HEALTHY")).to_be_visible()
    monitored.settle(page)
    save_screenshot(page, "library-serve-application")
    page.get_by_role("link", name="Doubler").first.click()
    expect(page.get_by_role("row").filter(has_text="RUNNING")).to_have_count(2)
    monitored.settle(page)
    save_screenshot(page, "library-serve-deployment")


@pytest.mark.parametrize("look", ["end", "earlier"])
@pytest.mark.parametrize("version", VERSIONS)
def test_serve_pages_show_charts(
    monitored: MonitoredBrowser, addresses: dict[Workload, str], version: str, look: str
) -> None:
    """Ray's charts of all applications, and of one replica."""
    session = as_of(addresses[workloads.serving], look)
    page = monitored.open(f"{session}{query(version)}#/serve")
    expect_texts(page, "doubling")
    assert expect_charts_of_the_api(page, session) >= 2  # QPS and latency; there were no errors
    expect_texts_of_charts(page, "doubling, /double")
    save_screenshot(page, f"library-serve-charts-{version}-{look}")
    page.get_by_role("link", name="doubling").first.click()
    page.get_by_role("link", name="Doubler").first.click()
    page.get_by_role("row").filter(has_text="RUNNING").get_by_role("link").first.click()
    expect(page.get_by_text("Loading...").filter(visible=True)).to_have_count(0)
    assert expect_charts_of_the_api(page, session) > 0
    save_screenshot(page, f"library-serve-replica-charts-{version}-{look}")


@pytest.mark.parametrize("look", ["end", "earlier"])
@pytest.mark.parametrize("version", VERSIONS)
def test_metrics_page_shows_charts_of_ray_data(
    monitored: MonitoredBrowser, addresses: dict[Workload, str], version: str, look: str
) -> None:
    session = as_of(addresses[workloads.data], look)
    page = monitored.open(f"{session}{query(version)}#/metrics")
    page.get_by_role("tab", name="Ray Data").click()
    monitored.settle(page)
    assert expect_charts_of_the_api(page, session) > 5
    save_screenshot(page, f"library-data-charts-{version}-{look}")
