"""Pages of Ray's libraries in a real browser, for a Ray with these libraries (`make test-matrix`)."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.chart_frames import expect_charts_of_the_api
from browser.monitored_browser import MonitoredBrowser, chromium, save_screenshot
from recorded import workloads
from recorded.ray_versions import LIBRARIES
from recorded.recorder import on_one_node, record_once
from recorded.workloads import Workload
from support.server_process import running_server

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="RAYHISTORY_TEST_LIBRARIES names no Ray with its libraries")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Workload, str]]:
    """Serve sessions that used a library."""
    with ExitStack() as servers:
        found: dict[Workload, str] = {}
        for workload in (workloads.data, workloads.serving):
            directory = tmp_path_factory.mktemp(workload.__name__)
            recorded = record_once(directory / "recorded", LIBRARIES[0], on_one_node(workload))
            server = servers.enter_context(running_server(recorded.store, directory / "work"))
            found[workload] = f"{server}{recorded.ref.url}?bare=always"
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


def test_job_page_shows_datasets(monitored: MonitoredBrowser, addresses: dict[Workload, str]) -> None:
    page = monitored.open(f"{addresses[workloads.data]}#/jobs/data-job")
    page.get_by_text("Ray Data Overview").click()
    datasets = page.get_by_role("row").filter(has_text="dataset_").filter(has_text="FINISHED")
    expect(datasets).to_have_count(2)
    for _ in range(2):
        page.get_by_role("img", name="Expand Dataset").first.click()
    for operator in ("MapBatches", "Filter"):
        expect(page.get_by_role("row").filter(has_text=operator).filter(has_text="FINISHED")).to_be_visible()
    monitored.settle(page)
    save_screenshot(page, "library-data")


def test_serve_pages_show_an_application(monitored: MonitoredBrowser, addresses: dict[Workload, str]) -> None:
    page = monitored.open(f"{addresses[workloads.serving]}#/serve")
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


def test_serve_pages_show_charts(monitored: MonitoredBrowser, addresses: dict[Workload, str]) -> None:
    """Ray's charts of all applications, and of one replica."""
    session = addresses[workloads.serving].removesuffix("?bare=always")
    page = monitored.open(f"{addresses[workloads.serving]}#/serve")
    expect_texts(page, "doubling")
    assert expect_charts_of_the_api(page, session) == 2  # QPS and latency; there were no errors
    expect_texts_of_charts(page, "doubling, /double")
    save_screenshot(page, "library-serve-charts")
    page.get_by_role("link", name="Doubler").first.click()
    page.get_by_role("row").filter(has_text="RUNNING").get_by_role("link").first.click()
    expect(page.get_by_text("Loading...").filter(visible=True)).to_have_count(0)
    assert expect_charts_of_the_api(page, session) > 0
    save_screenshot(page, "library-serve-replica-charts")


def test_metrics_page_shows_charts_of_ray_data(monitored: MonitoredBrowser, addresses: dict[Workload, str]) -> None:
    session = addresses[workloads.data].removesuffix("?bare=always")
    page = monitored.open(f"{addresses[workloads.data]}#/metrics")
    page.get_by_role("tab", name="Ray Data").click()
    monitored.settle(page)
    assert expect_charts_of_the_api(page, session) > 5
    save_screenshot(page, "library-data-charts")
