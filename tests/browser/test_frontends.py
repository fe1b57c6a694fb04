"""Ray's frontends of other versions in a real browser, on a recorded session.

Here the installed one stands under another name too. `make test-matrix` gets real ones: RAYHISTORY_TEST_DASHBOARDS is
the directory that `rayhistory dashboards add` put them into.
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

from browser.watched import Watched, chromium, keep_picture
from rayhistory.server.frontend import Frontends
from recorded.recorder import Recorded
from recorded.served import serving
from recorded.workloads import FAILING, RUNNING, SAMPLE

REAL = os.environ.get("RAYHISTORY_TEST_DASHBOARDS", "")
COPY = "2.55.0"
VERSIONS = [each.version for each in Frontends(REAL).installed()] if REAL else ["2.60.0", COPY]


@pytest.fixture(scope="module")
def dashboards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory of several versions; each page says of which it is, in its language."""
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
def server(recorded: Recorded, dashboards: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    work = tmp_path_factory.mktemp("server")
    (work / "cache").mkdir()
    (work / "cache" / "dashboards").symlink_to(dashboards)
    with serving(recorded.store, work) as address:
        yield address


@pytest.fixture(scope="module")
def browser(server: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def sees(page: Page | FrameLocator, *texts: str) -> None:
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
    watched: Watched, server: str, recorded: Recorded, version: str
) -> None:
    """Overview, jobs, a job with its tasks, actors, nodes, logs: with content, without any error."""
    page = watched.open(f"{server}{recorded.ref.url}?bare=1&dashboard={version}#/overview")
    is_of(page, version)
    sees(page, "Recent jobs", SAMPLE, FAILING, RUNNING)
    keep_picture(page, f"frontend-{version}-overview")
    go_to(page, "jobs")
    row = page.get_by_role("row").filter(has_text=SAMPLE).first
    expect(row).to_contain_text("SUCCEEDED")
    row.get_by_role("link").first.click()
    sees(page, "Finished: 60", "Failed: 3", "Placement Group Table")
    page.get_by_text("Task Table").click()
    sees(page, "load_shard")
    keep_picture(page, f"frontend-{version}-job")
    go_to(page, "actors")
    sees(page, "Trainer", "experiment-tracker")
    go_to(page, "cluster")
    sees(page, "127.0.0.1 (Head)", "ALIVE")
    keep_picture(page, f"frontend-{version}-cluster")
    go_to(page, "serve")
    sees(page, "Serve not started")
    go_to(page, "logs")
    page.get_by_text(re.compile("^[0-9a-f]{56}$|ID: [0-9a-f]{56}")).first.click()
    sees(page, "gcs_server.out")
    page.get_by_text(f"job-driver-{FAILING}.log").click()
    sees(page, "given <script>")
    keep_picture(page, f"frontend-{version}-log")
    again = watched.open(page.url)
    is_of(again, version)
    sees(again, "given <script>")


def test_two_tabs_of_one_session_are_of_two_versions(watched: Watched, server: str, recorded: Recorded) -> None:
    """Each keeps to its own, also when the other has loaded more."""
    newer, older = VERSIONS[0], VERSIONS[-1]
    one = watched.open(f"{server}{recorded.ref.url}?bare=1&dashboard={newer}#/overview")
    other = watched.open(f"{server}{recorded.ref.url}?bare=1&dashboard={older}#/overview")
    for page, version in ((one, newer), (other, older)):
        is_of(page, version)
        sees(page, "Recent jobs", SAMPLE)
        go_to(page, "actors")
        sees(page, "experiment-tracker")


def test_a_version_that_is_not_installed_is_told_in_words(browser: Browser, server: str, recorded: Recorded) -> None:
    watched = Watched(browser)
    page = watched.open(f"{server}{recorded.ref.url}?dashboard=1.0.0")
    sees(page, "This dashboard is not installed", VERSIONS[-1])
    keep_picture(page, "no-such-dashboard")
    watched.close()
    assert [trouble for trouble in watched.troubles if "400" not in trouble] == []


def test_a_file_of_one_name_is_the_same_in_every_version(dashboards: Path) -> None:
    """This is how a page finds its files among those of all versions."""
    known: dict[str, bytes] = {}
    for each in Frontends(str(dashboards)).installed():
        for path in (each.path / "static").rglob("*.*"):
            content = path.read_bytes()
            assert known.setdefault(str(path.relative_to(each.path)), content) == content


@contextmanager
def grafana() -> Iterator[tuple[str, list[str]]]:
    """A double: every page of it is a word, and what is asked of it is remembered."""
    asked: list[str] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<p>charts</p>")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_the_metrics_page_shows_grafana_in_the_time_of_the_session(
    watched: Watched, recorded: Recorded, tmp_path: Path
) -> None:
    """The frontend has its frames at what it takes for Grafana: they end at the real one."""
    with grafana() as (address, asked):
        told = f"import os\nos.environ['RAYHISTORY_GRAFANA_URL'] = {address!r}\n"
        with serving(recorded.store, tmp_path, at_start=told) as server:
            page = watched.open(f"{server}{recorded.ref.url}?bare=1#/metrics")
            sees(page.frame_locator("iframe"), "charts")
            link = page.get_by_role("link", name="View tab in Grafana").get_attribute("href")
            assert link
            assert link.startswith("grafana/d/rayDefaultDashboard/")
            keep_picture(page, "metrics-grafana")
            watched.close()
    seen = next(urlsplit(path) for path in asked if path.startswith("/d/"))
    query = parse_qs(seen.query)
    live = recorded.live("/api/jobs/")
    assert query["var-SessionName"] == [recorded.ref.session]
    assert int(query["from"][0]) <= min(job["start_time"] for job in live)
    assert int(query["to"][0]) >= max(job["end_time"] or 0 for job in live)
    assert "refresh" not in query
