"""The real dashboard frontend in a real browser, on sessions whose cluster is gone."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect

from browser.watched import Watched, keep_picture
from recorded.questions import everything
from recorded.recorder import Recorded
from recorded.served import serving
from recorded.workloads import FAILING, HOSTILE_ARGUMENT, HOSTILE_EVENT, RUNNING, SAMPLE, SECRET

WITHOUT_RAY = "import sys\nsys.modules['ray'] = None\n"
WAITS_AT_THE_GATE = """
import pathlib, sys, time
while "rayhistory.index.fold" in sys.orig_argv and not pathlib.Path({gate!r}).exists():
    time.sleep(0.05)
"""


@pytest.fixture
def ended(recorded: Recorded, history: str) -> str:
    """The address of the session that ended in order, without our bar."""
    return f"{history}{recorded.ref.url}?bare=1"


@pytest.fixture
def vanished(recorded: Recorded, history: str) -> str:
    """The address of the session of which nobody knows how it ended."""
    return f"{history}{recorded.vanished.url}?bare=1"


def sees(page: Page | FrameLocator, *texts: str) -> None:
    for text in texts:
        expect(page.get_by_text(text).filter(visible=True).first).to_be_visible()


def table_row(page: Page, *texts: str) -> Any:
    rows = page.get_by_role("row")
    for text in texts:
        rows = rows.filter(has_text=text)
    return rows.first


def finds_in_log(page: Page, text: str) -> None:
    """The viewer renders only what fits; its own search brings a line into sight."""
    page.get_by_label("Keyword").filter(visible=True).fill(text)
    sees(page, text)


def tasks(recorded: Recorded, name: str, state: str) -> list[str]:
    rows = recorded.live(everything("tasks"))["data"]["result"]["result"]
    return [row["task_id"] for row in rows if (row["name"], row["state"]) == (name, state)]


def actor(recorded: Recorded, class_name: str) -> str:
    actors = recorded.live("/logical/actors")["data"]["actors"].values()
    return next(str(each["actorId"]) for each in actors if each["className"] == class_name)


def node(recorded: Recorded) -> str:
    return str(recorded.live("/nodes?view=summary")["data"]["summary"][0]["raylet"]["nodeId"])


def test_home_leads_into_the_dashboard_of_a_session(watched: Watched, history: str, recorded: Recorded) -> None:
    """Both sessions are listed with their state, and Enter opens the frontend at the session's address."""
    page = watched.open(f"{history}/home")
    row = table_row(page, recorded.ref.cluster, "Ended")
    expect(row).to_be_visible()
    expect(table_row(page, recorded.vanished.cluster, "Vanished")).to_be_visible()
    keep_picture(page, "home")
    row.get_by_role("link", name="Enter").click()
    expect(page).to_have_url(re.compile(re.escape(f"{history}{recorded.ref.url}") + "#/overview"))
    sees(page.frame_locator("#dashboard"), "Recent jobs", SAMPLE)


def test_the_overview_shows_jobs_cluster_status_and_events(watched: Watched, ended: str) -> None:
    """Recent jobs, the autoscaler's last word and the events of the log files."""
    page = watched.open(f"{ended}#/overview")
    sees(page, SAMPLE, FAILING, RUNNING, "0.5/4.0 CPU", "'unobtainable': 1.0")
    sees(page, f"Completed a ray job {SAMPLE} with a status SUCCEEDED.", "A worker died or was killed")
    keep_picture(page, "overview")


def test_the_jobs_page_shows_how_each_job_ended(watched: Watched, ended: str) -> None:
    """One succeeded, one failed with its exit code, one was stopped by the cluster's end; entrypoints stay text."""
    page = watched.open(f"{ended}#/jobs")
    expect(table_row(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    expect(table_row(page, FAILING, "FAILED", "exit code 5")).to_be_visible()
    expect(table_row(page, RUNNING, "STOPPED", "before Ray reported an end")).to_be_visible()
    expect(table_row(page, FAILING, "<script>document.title=")).to_be_visible()
    assert HOSTILE_ARGUMENT not in page.content()
    assert "owned" not in page.title()
    keep_picture(page, "jobs")


def test_the_page_of_a_job_shows_its_work(watched: Watched, ended: str) -> None:
    """Progress, driver output, tasks by name and state, actors, and the placement group."""
    page = watched.open(f"{ended}#/jobs/{SAMPLE}")
    sees(page, "SUCCEEDED", "Finished: 60", "Failed: 3", '"team": "training"')
    finds_in_log(page, "model published")
    keep_picture(page, "job")
    page.get_by_text("Placement Group Table").click()
    expect(table_row(page, "training", "REMOVED")).to_be_visible()
    page.get_by_text("Actor Table").click()
    expect(table_row(page, "Trainer", "DEAD")).to_be_visible()
    page.get_by_text("Task Table").click()
    page.get_by_role("combobox", name="Name", exact=True).first.fill("validate_shard")
    expect(table_row(page, "validate_shard", "FAILED", "Error")).to_be_visible()
    expect(table_row(page, "validate_shard", "FINISHED")).to_be_visible()
    keep_picture(page, "job-tables")


def test_the_secrets_of_a_job_are_hidden_from_browsers(watched: Watched, ended: str) -> None:
    """Names of environment variables are shown, their values are not."""
    page = watched.open(f"{ended}#/jobs/{SAMPLE}")
    page.get_by_text("View", exact=True).first.click()
    sees(page, "API_TOKEN", "<redacted>")
    assert SECRET not in page.content()


def test_the_timeline_of_a_job_can_be_downloaded(watched: Watched, ended: str) -> None:
    """It is a chrome trace with the spans of the job's tasks."""
    page = watched.open(f"{ended}#/jobs/{SAMPLE}")
    with page.expect_download() as download:
        page.get_by_text("Download trace file").click()
    spans = json.loads(download.value.path().read_text())
    assert {"load_shard", "Trainer.train_epoch"} <= {span["args"].get("func_or_class_name") for span in spans}


def test_the_actors_page_shows_what_became_of_each(watched: Watched, ended: str) -> None:
    """Classes, names and states; those that lived until the end say so."""
    page = watched.open(f"{ended}#/actors")
    expect(table_row(page, "Trainer", "trainer", "DEAD", "all references to the actor were removed")).to_be_visible()
    expect(table_row(page, "ExperimentTracker", "experiment-tracker", "DEAD")).to_be_visible()
    expect(table_row(page, "Watcher", "unplaced", "before Ray reported an end")).to_be_visible()
    keep_picture(page, "actors")


def test_the_page_of_an_actor_shows_its_restart_and_output(watched: Watched, ended: str, recorded: Recorded) -> None:
    """The trainer was restarted once, and its last process wrote what it wrote."""
    page = watched.open(f"{ended}#/actors/{actor(recorded, 'Trainer')}")
    sees(page, "Restarted", "trainer")
    page.get_by_role("tab", name="stdout").click()
    sees(page, "trainer started, time 2", "epoch 3: loss")
    keep_picture(page, "actor")
    page.get_by_text("Tasks History").click()
    expect(table_row(page, "Trainer.train_epoch", "FINISHED")).to_be_visible()
    keep_picture(page, "actor-tasks")


def test_the_cluster_page_leads_to_the_node(watched: Watched, ended: str, recorded: Recorded) -> None:
    """The node that lived until the end is listed as alive, with what was last measured on it."""
    page = watched.open(f"{ended}#/cluster")
    expect(table_row(page, "ALIVE", "127.0.0.1 (Head)")).to_be_visible()
    sees(page, "ray::DashboardAgent")
    keep_picture(page, "cluster")
    table_row(page, "127.0.0.1 (Head)").get_by_role("link", name=node(recorded)).first.click()
    sees(page, "Node Detail", "Load per CPU")
    page.get_by_role("tab", name="Actor").click()
    expect(table_row(page, "Trainer", "DEAD")).to_be_visible()
    keep_picture(page, "node")


def test_the_logs_page_leads_to_a_file(watched: Watched, ended: str, recorded: Recorded) -> None:
    """From the list of nodes to that of files, to the lines of one; HTML in them stays text."""
    page = watched.open(f"{ended}#/logs/")
    page.get_by_text(node(recorded)).first.click()
    sees(page, "raylet.out", "events/", "gcs_server.out")
    keep_picture(page, "logs")
    page.get_by_text(f"job-driver-{FAILING}.log").click()
    sees(page, f"given {HOSTILE_ARGUMENT}")
    assert "owned" not in page.title()
    keep_picture(page, "log-file")


def test_the_page_of_a_task_shows_why_it_failed(watched: Watched, ended: str, recorded: Recorded) -> None:
    """State, function and the stack trace of the exception."""
    (failed,) = tasks(recorded, "validate_shard", "FAILED")
    page = watched.open(f"{ended}#/jobs/{SAMPLE}/tasks/{failed}")
    sees(page, "validate_shard", "FAILED", "NORMAL_TASK")
    page.get_by_role("tab", name="Error stack trace").click()
    sees(page, "shard 5: checksum mismatch")
    keep_picture(page, "task-failed")


def test_the_page_of_a_task_shows_only_its_own_output(watched: Watched, ended: str, recorded: Recorded) -> None:
    """Workers write into one file for many tasks; the page shows the lines of this one."""
    task = tasks(recorded, "load_shard", "FINISHED")[0]
    page = watched.open(f"{ended}#/jobs/{SAMPLE}/tasks/{task}")
    page.get_by_role("tab", name="stdout").click()
    expect(page.get_by_text(re.compile("loaded shard .* of run sample"))).to_have_count(1)
    keep_picture(page, "task-output")


def test_a_vanished_session_shows_what_was_known_of_it(watched: Watched, vanished: str) -> None:
    """What was running when it was last seen has failed; text of an event stays text."""
    page = watched.open(f"{vanished}#/jobs")
    expect(table_row(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    expect(table_row(page, RUNNING, "FAILED", "The session vanished at")).to_be_visible()
    keep_picture(page, "vanished-jobs")
    page.get_by_role("link", name="Overview").click()
    sees(page, "0.5/4.0 CPU", "Started a ray job")
    hostile, older = page.get_by_text(HOSTILE_EVENT).first, page.get_by_role("button", name="Go to page 2").first
    if older.is_visible() and not hostile.is_visible():  # on a slow machine Ray has more to tell
        older.click()
    expect(hostile).to_be_visible()
    assert "owned" not in page.title()
    keep_picture(page, "vanished-overview")


def test_two_sessions_are_open_in_two_tabs(watched: Watched, ended: str, vanished: str) -> None:
    """Each tab keeps to its own session."""
    one, other = watched.open(f"{ended}#/jobs"), watched.open(f"{vanished}#/jobs")
    for page, status in ((one, "STOPPED"), (other, "FAILED"), (one, "STOPPED")):
        page.get_by_role("link", name="Overview").click()
        sees(page, "Recent jobs")
        page.get_by_role("link", name="Jobs", exact=True).click()
        expect(table_row(page, RUNNING, status)).to_be_visible()


def test_a_session_that_does_not_exist_is_told_in_words(browser: Browser, history: str, recorded: Recorded) -> None:
    """The page says so, and leads home."""
    watched = Watched(browser)
    page = watched.open(f"{history}/s/default/nobody/{recorded.ref.session}/")
    sees(page, "No such session", "no session")
    keep_picture(page, "no-such-session")
    page.get_by_role("link", name="All sessions").click()
    expect(table_row(page, recorded.ref.cluster)).to_be_visible()
    watched.close()
    assert [trouble for trouble in watched.troubles if "404" not in trouble] == []


def test_an_empty_store_says_how_to_record_a_session(watched: Watched, tmp_path: Path) -> None:
    """The home page of the first minute."""
    (tmp_path / "store").mkdir()
    with serving(tmp_path / "store", tmp_path / "work") as address:
        page = watched.open(address)
        sees(page, "No sessions yet", "rayhistory run -- python my_job.py", "rayhistory doctor")
        keep_picture(page, "empty-store")
        watched.close()


def test_without_a_frontend_the_page_says_how_to_get_one(browser: Browser, recorded: Recorded, tmp_path: Path) -> None:
    """No Ray is installed beside the server: the data is there, the pages are not."""
    watched = Watched(browser)
    with serving(recorded.store, tmp_path, at_start=WITHOUT_RAY) as address:
        page = watched.open(address + recorded.ref.url)
        sees(page, "frontend is installed", "pip install 'ray[default]'")
        keep_picture(page, "no-frontend")
        watched.close()
    assert [trouble for trouble in watched.troubles if "404" not in trouble] == []


def test_the_progress_page_continues_by_itself(watched: Watched, recorded: Recorded, tmp_path: Path) -> None:
    """While a session is being indexed there is a page that says so, and then the dashboard is there."""
    shutil.copytree(recorded.store, tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    gate = tmp_path / "gate"
    waiting = WAITS_AT_THE_GATE.format(gate=str(gate))
    with serving(tmp_path / "store", tmp_path / "work", at_start=waiting) as address:
        page = watched.open(address + recorded.ref.url)
        sees(page, "This session is being indexed", "This page continues by itself")
        keep_picture(page, "progress")
        gate.touch()
        sees(page.frame_locator("#dashboard"), "Recent jobs", SAMPLE)
        watched.close()
