"""Every page and tab of the dashboard, on sessions that ended, vanished, or have no dashboard responses."""

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from browser.monitored_browser import MonitoredBrowser, save_screenshot
from recorded.dashboard_requests import full_list
from recorded.recorder import Recording
from recorded.workloads import FAILING, RUNNING, SAMPLE
from support.server_process import running_server

PLACES: dict[str, tuple[str, ...]] = {
    "overview": ("Recent jobs", SAMPLE),
    "jobs": (SAMPLE, FAILING, RUNNING),
    f"jobs/{SAMPLE}": ("Finished: 60", "Failed: 3", "Task Table"),
    f"jobs/{RUNNING}": ("Task Table",),
    f"jobs/{SAMPLE}/info": ("Entrypoint", "sample_job.py"),
    "jobs/{job}/actors": ("Trainer",),
    f"jobs/{SAMPLE}/tasks/{{failed}}": ("validate_shard", "FAILED"),
    f"jobs/{RUNNING}/tasks/{{running}}": ("wait_for_ever", "FAILED"),
    "actors": ("Trainer", "Watcher", "unplaced"),
    "actors/{trainer}": ("Restarted", "Trainer"),
    "actors/{watcher}": ("Watcher", "DEAD"),
    "cluster": ("{node}", "(Head)"),
    "cluster/info": ("Cluster",),
    "cluster/nodes/{node}": ("Node Detail", "{node}"),
    "serve": ("Serve not started",),
    "serve/system": ("Serve",),
    "metrics": ("View tab in Grafana",),
    "logs/": ("{node}",),
    "logs/?nodeId={node}": ("raylet.out", "gcs_server.out"),
    "logs/viewer?nodeId={node}&fileName=job-driver-sample-job.log": ("loading 8 shards",),
}
"""The path of each page, and a text on it."""
OWN_PAGES = {
    "/home": "Sessions",
    "/runs": "Runs",
    "/fleet": "Runs per day",
    "/search?q=shards": "Search",
    "{session}": "Recent jobs",
    "{session}diagnosis": "Where time went",
    "{session}gaps": "Back to the session",
    "{session}search?q=shards": "loading 8 shards",
    "{session}logs/{node}/job-driver-sample-job.log": "loading 8 shards",
}
"""The pages around the dashboard, and a text on each."""
UNKNOWN_ID = {
    f"cluster/nodes/{'f' * 56}": "Load per CPU",
    f"actors/{'ab' * 16}": "Actor details fetched",
    "jobs/unknown": "Job Query Error",
}
"""Pages of jobs, tasks, actors and nodes that do not exist."""


@pytest.fixture(scope="module")
def names(recorded: Recording) -> dict[str, str]:
    tasks = recorded.live(full_list("tasks"))["data"]["result"]["result"]
    actors = recorded.live("/logical/actors")["data"]["actors"].values()
    jobs = recorded.live("/api/jobs/")
    return {
        "job": next(job["job_id"] for job in jobs if job["submission_id"] == SAMPLE),
        "node": recorded.live("/nodes?view=summary")["data"]["summary"][0]["raylet"]["nodeId"],
        "failed": next(t["task_id"] for t in tasks if (t["name"], t["state"]) == ("validate_shard", "FAILED")),
        "running": next(t["task_id"] for t in tasks if (t["name"], t["state"]) == ("wait_for_ever", "RUNNING")),
        "trainer": next(actor["actorId"] for actor in actors if actor["className"] == "Trainer"),
        "watcher": next(actor["actorId"] for actor in actors if actor["name"] == "watcher"),
    }


@pytest.fixture(scope="module")
def sessions(recorded: Recording, history: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A session that ended cleanly, a vanished one, and one with events and logs only, as older collectors stored."""
    directory = tmp_path_factory.mktemp("events")
    without = shutil.ignore_patterns("ray-history", "fetched_endpoints", "export_events")
    shutil.copytree(recorded.store, directory / "store", ignore=without)
    with running_server(directory / "store", directory / "work") as address:
        yield {
            "ended": f"{history}{recorded.ref.url}",
            "vanished": f"{history}{recorded.vanished.url}",
            "events-only": f"{address}{recorded.ref.url}",
        }


@pytest.mark.parametrize("session", ["ended", "vanished", "events-only"])
def test_every_page_and_tab_shows_the_session(
    monitored: MonitoredBrowser, sessions: dict[str, str], names: dict[str, str], session: str
) -> None:
    """No page logs an error or has a failed request."""
    page = monitored.page()
    for number, (path, texts) in enumerate(PLACES.items()):
        page.goto(f"{sessions[session]}?bare=always#/{path.format(**names)}")
        for text in texts:
            expect(page.get_by_text(text.format(**names)).filter(visible=True).first).to_be_visible()
        expect(page.get_by_text("Platform Events")).to_have_count(0)
        open_all(page)
        open_tabs(monitored, page)
        save_screenshot(page, f"{session}-{number:02}-{re.sub('[^a-z]+', '-', path.partition('?')[0]).strip('-')}")
        assert (path, monitored.errors) == (path, [])


def test_every_page_around_the_dashboard_loads_without_errors(
    monitored: MonitoredBrowser, history: str, recorded: Recording, names: dict[str, str]
) -> None:
    page = monitored.page()
    while page.request.get(f"{history}{recorded.ref.url}api/history/diagnosis").status == 503:
        page.wait_for_timeout(200)  # until it is built
    for path, text in OWN_PAGES.items():
        page.goto(history + path.format(session=recorded.ref.url, **names))
        places = [page.get_by_text(text), page.frame_locator("#dashboard").get_by_text(text)]
        expect(places[path == "{session}"].filter(visible=True).first).to_be_visible()
        monitored.settle(page)
        assert (path, monitored.errors) == (path, [])


def test_pages_of_missing_entities_are_not_blank(monitored: MonitoredBrowser, sessions: dict[str, str]) -> None:
    """An actor that was never placed links to the node `ffff…`, and early in a session much does not exist yet."""
    for path, text in UNKNOWN_ID.items():
        page = monitored.open(f"{sessions['vanished']}?bare=always#/{path}")
        expect(page.get_by_text(text).first).to_be_visible()
        open_tabs(monitored, page)
        page.close()
    # An unknown job gets 404, as in Ray.
    monitored.errors = [error for error in monitored.errors if not error.endswith("/api/jobs/unknown")]
    assert monitored.errors == []


def open_tabs(monitored: MonitoredBrowser, page: Page) -> None:
    for tab in page.locator("button[role=tab]").all():  # those that are links are places of their own
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")
        monitored.settle(page)
    monitored.settle(page)


def open_all(page: Page) -> None:
    """Expand all sections of a page."""
    for title in ("Placement Group Table", "Actor Table", "Task Table"):
        for section in page.get_by_text(title, exact=True).all():
            section.click()
