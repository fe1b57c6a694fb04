"""Every page of the dashboard, with all its tabs, on a session that ended well, and on those of which less is known."""

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from browser.watched import Watched, keep_picture
from recorded.questions import everything
from recorded.recorder import Recorded
from recorded.served import serving
from recorded.workloads import FAILING, RUNNING, SAMPLE

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
    "metrics": ("Time-series charts are hidden",),
    "logs/": ("{node}",),
    "logs/?nodeId={node}": ("raylet.out", "gcs_server.out"),
    "logs/viewer?nodeId={node}&fileName=job-driver-sample-job.log": ("loading 8 shards",),
}
"""Where each is, and what is to be seen there."""
NOBODY = {
    f"cluster/nodes/{'f' * 56}": "Load per CPU",
    f"actors/{'ab' * 16}": "Actor details fetched",
    "jobs/nobody": "Job Query Error",
}
"""Pages of what is not there."""


@pytest.fixture(scope="module")
def names(recorded: Recorded) -> dict[str, str]:
    tasks = recorded.live(everything("tasks"))["data"]["result"]["result"]
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
def sessions(recorded: Recorded, history: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One that ended well, with jobs that did not; one of which nobody knows how it ended; and one of which there are
    events and logs, as older collectors kept."""
    directory = tmp_path_factory.mktemp("events")
    without = shutil.ignore_patterns("ray-history", "fetched_endpoints", "export_events")
    shutil.copytree(recorded.store, directory / "store", ignore=without)
    with serving(directory / "store", directory / "work") as address:
        yield {
            "ended": f"{history}{recorded.ref.url}",
            "vanished": f"{history}{recorded.vanished.url}",
            "events-only": f"{address}{recorded.ref.url}",
        }


@pytest.mark.parametrize("session", ["ended", "vanished", "events-only"])
def test_every_page_and_its_tabs_show_what_is_known(
    watched: Watched, sessions: dict[str, str], names: dict[str, str], session: str
) -> None:
    """Without an error in the console, and without a request that fails; one after the other, as a visitor goes on."""
    page = watched.page()
    for number, (place, texts) in enumerate(PLACES.items()):
        page.goto(f"{sessions[session]}?bare=1#/{place.format(**names)}")
        for text in texts:
            expect(page.get_by_text(text.format(**names)).filter(visible=True).first).to_be_visible()
        open_all(page)
        look_at_tabs(watched, page)
        keep_picture(page, f"{session}-{number:02}-{re.sub('[^a-z]+', '-', place.partition('?')[0]).strip('-')}")
        assert (place, watched.troubles) == (place, [])


def test_a_page_of_what_is_not_there_is_not_white(watched: Watched, sessions: dict[str, str]) -> None:
    """An actor that was never placed leads to the node `ffff…`, and at an earlier moment much has not been yet."""
    for place, text in NOBODY.items():
        page = watched.open(f"{sessions['vanished']}?bare=1#/{place}")
        expect(page.get_by_text(text).first).to_be_visible()
        look_at_tabs(watched, page)
        page.close()
    # That there is no such job is told by 404, as Ray does.
    watched.troubles = [trouble for trouble in watched.troubles if not trouble.endswith("/api/jobs/nobody")]
    assert watched.troubles == []


def look_at_tabs(watched: Watched, page: Page) -> None:
    for tab in page.locator("button[role=tab]").all():  # those that are links are places of their own
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")
        watched.settle(page)
    watched.settle(page)


def open_all(page: Page) -> None:
    """The sections that a page has folded."""
    for title in ("Placement Group Table", "Actor Table", "Task Table"):
        for section in page.get_by_text(title, exact=True).all():
            section.click()
