"""Ray's frontends of other versions in a real browser, on a recorded session.

By default, a copy of the installed version stands in for another one. `make test-matrix` uses real versions: it sets
RAYHISTORY_TEST_DASHBOARDS to a directory filled by `rayhistory dashboards add`.
"""

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect

from browser.chart_frames import expect_charts_of_the_api
from browser.monitored_browser import MonitoredBrowser, chromium, save_screenshot
from rayhistory.server.frontend import Frontends
from recorded.recorder import Recording
from recorded.workloads import FAILING, RUNNING, SAMPLE
from support.server_process import running_server

REAL = os.environ.get("RAYHISTORY_TEST_DASHBOARDS", "")
COPY = "2.55.0"
VERSIONS = [each.version for each in Frontends(REAL).installed()] if REAL else ["2.60.0", COPY]


@pytest.fixture(scope="module")
def dashboards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with several versions, each marked by the language of its page."""
    directory = tmp_path_factory.mktemp("dashboards")
    if REAL:
        shutil.copytree(REAL, directory, dirs_exist_ok=True)
    (installed,) = (each for each in Frontends(str(directory)).installed() if each.from_ray)
    if not REAL:
        shutil.copytree(installed.path, directory / COPY)
    for each in Frontends(str(directory)).installed():
        if not each.from_ray:
            index = (each.path / "index.html").read_text()
            (each.path / "index.html").write_text(index.replace('lang="en"', f'lang="en" data-of="{each.version}"'))
    return directory


@pytest.fixture(scope="module")
def server(recorded: Recording, dashboards: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    work = tmp_path_factory.mktemp("server")
    (work / "cache").mkdir()
    (work / "cache" / "dashboards").symlink_to(dashboards)
    with running_server(recorded.store, work) as address:
        yield address


@pytest.fixture(scope="module")
def browser(server: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def expect_texts(page: Page | FrameLocator, *texts: str) -> None:
    for text in texts:
        expect(page.get_by_text(text).filter(visible=True).first).to_be_visible()


def is_of(page: Page | FrameLocator, version: str) -> None:
    here = expect(page.locator("html"))
    if version == "2.60.0":
        here.not_to_have_attribute("data-of", re.compile(".*"))
    else:
        here.to_have_attribute("data-of", version)


def go_to(page: Page, place: str) -> None:
    page.locator(f'a[href^="#/{place}"]').first.click()


@pytest.mark.skipif(not REAL, reason="the pages of the installed version are tested in test_dashboard.py")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_page_of_a_version_shows_the_session(
    monitored: MonitoredBrowser, server: str, recorded: Recording, version: str
) -> None:
    """Overview, jobs, a job with its tasks, actors, nodes and logs have content and no errors."""
    page = monitored.open(f"{server}{recorded.ref.url}?bare=always&dashboard={version}#/overview")
    is_of(page, version)
    expect_texts(page, "Recent jobs", SAMPLE, FAILING, RUNNING)
    save_screenshot(page, f"frontend-{version}-overview")
    go_to(page, "jobs")
    row = page.get_by_role("row").filter(has_text=SAMPLE).first
    expect(row).to_contain_text("SUCCEEDED")
    row.get_by_role("link").first.click()
    expect_texts(page, "Finished: 60", "Failed: 3", "Placement Group Table")
    page.get_by_text("Task Table").click()
    expect_texts(page, "load_shard")
    save_screenshot(page, f"frontend-{version}-job")
    go_to(page, "actors")
    expect_texts(page, "Trainer", "experiment-tracker")
    go_to(page, "cluster")
    expect_texts(page, "127.0.0.1 (Head)", "ALIVE")
    save_screenshot(page, f"frontend-{version}-cluster")
    go_to(page, "serve")
    expect_texts(page, "Serve not started")
    go_to(page, "logs")
    page.get_by_text(re.compile("^[0-9a-f]{56}$|ID: [0-9a-f]{56}")).first.click()
    expect_texts(page, "gcs_server.out")
    page.get_by_text(f"job-driver-{FAILING}.log").click()
    expect_texts(page, "given <script>")
    save_screenshot(page, f"frontend-{version}-log")
    again = monitored.open(page.url)
    is_of(again, version)
    expect_texts(again, "given <script>")


@pytest.mark.skipif(not REAL, reason="the charts of the installed version are tested in test_metrics.py")
@pytest.mark.parametrize("look", ["end-light", "end-dark", "earlier-light", "earlier-dark"])
@pytest.mark.parametrize("version", VERSIONS)
def test_metrics_page_and_overview_cards_of_a_version(
    monitored: MonitoredBrowser, server: str, recorded: Recording, version: str, look: str
) -> None:
    """The unmodified frontend shows Ray's charts, with the series of the API, at the end and at a point in time."""
    ended = max(job["end_time"] or 0 for job in recorded.live("/api/jobs/"))
    at, _, theme = look.partition("-")
    session = f"{server}{recorded.ref.url}" if at == "end" else f"{server}{recorded.ref.url[:-1]}@{ended}/"
    name = f"frontend-{version}-{look}"
    page = monitored.page()
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.goto(f"{session}?bare=always&dashboard={version}#/overview")
    is_of(page, version)
    expect_texts(page, "Recent jobs")
    expect(page.locator("iframe")).to_have_count(2)
    assert expect_charts_of_the_api(page, session) == 2
    save_screenshot(page, f"{name}-overview")
    go_to(page, "metrics")
    assert expect_charts_of_the_api(page, session) > 10
    save_screenshot(page, f"{name}-metrics")


def test_two_tabs_can_show_two_versions(monitored: MonitoredBrowser, server: str, recorded: Recording) -> None:
    """Each tab keeps its version, also after the other has loaded more files."""
    newer, older = VERSIONS[0], VERSIONS[-1]
    one = monitored.open(f"{server}{recorded.ref.url}?bare=always&dashboard={newer}#/overview")
    other = monitored.open(f"{server}{recorded.ref.url}?bare=always&dashboard={older}#/overview")
    for page, version in ((one, newer), (other, older)):
        is_of(page, version)
        expect_texts(page, "Recent jobs", SAMPLE)
        go_to(page, "actors")
        expect_texts(page, "experiment-tracker")


def test_version_that_is_not_installed_gets_an_error_page(browser: Browser, server: str, recorded: Recording) -> None:
    monitored = MonitoredBrowser(browser)
    page = monitored.open(f"{server}{recorded.ref.url}?dashboard=1.0.0")
    expect_texts(page, "This dashboard is not installed", VERSIONS[-1])
    save_screenshot(page, "no-such-dashboard")
    monitored.close()
    assert [error for error in monitored.errors if "400" not in error] == []


def test_files_with_one_name_are_equal_in_every_version(dashboards: Path) -> None:
    """Files are looked up by name in all versions."""
    known: dict[str, bytes] = {}
    for each in Frontends(str(dashboards)).installed():
        for path in (each.path / "static").rglob("*.*"):
            content = path.read_bytes()
            assert known.setdefault(str(path.relative_to(each.path)), content) == content


@contextmanager
def grafana() -> Iterator[tuple[str, list[str]]]:
    """A fake Grafana that records its requests."""
    requested: list[str] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>charts</p>")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requested
        finally:
            server.shutdown()
            thread.join()


def test_metrics_page_shows_grafana_in_the_time_range_of_the_session(
    monitored: MonitoredBrowser, recorded: Recording, tmp_path: Path
) -> None:
    """The frames of the frontend are redirected to the real Grafana."""
    with grafana() as (address, requested):
        reported = f"import os\nos.environ['RAYHISTORY_GRAFANA_URL'] = {address!r}\n"
        with running_server(recorded.store, tmp_path, at_start=reported) as server:
            page = monitored.open(f"{server}{recorded.ref.url}?bare=always#/metrics")
            expect_texts(page.frame_locator("iframe"), "charts")
            link = page.get_by_role("link", name="View tab in Grafana").get_attribute("href")
            assert link
            assert link.startswith("grafana/d/rayDefaultDashboard/")
            save_screenshot(page, "metrics-grafana")
            monitored.close()
    seen = next(urlsplit(path) for path in requested if path.startswith("/d/"))
    query = parse_qs(seen.query)
    live = recorded.live("/api/jobs/")
    assert query["var-SessionName"] == [recorded.ref.session]
    assert int(query["from"][0]) <= min(job["start_time"] for job in live)
    assert int(query["to"][0]) >= max(job["end_time"] or 0 for job in live)
    assert "refresh" not in query
