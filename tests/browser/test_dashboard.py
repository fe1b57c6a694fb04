"""Ray's frontend in a real browser, on sessions of clusters that have ended."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect

from browser.monitored_browser import MonitoredBrowser, save_screenshot
from recorded.dashboard_requests import full_list
from recorded.recorder import Recording
from recorded.workloads import FAILING, HOSTILE_ARGUMENT, HOSTILE_EVENT, RUNNING, SAMPLE, SECRET
from support.server_process import running_server

WITHOUT_RAY = "import sys\nsys.modules['ray'] = None\n"
WAIT_FOR_GATE = """
import pathlib, sys, time
while "rayhistory.index.fold.fold_process" in sys.orig_argv and not pathlib.Path({gate!r}).exists():
    time.sleep(0.05)
"""


@pytest.fixture
def ended(recorded: Recording, history: str) -> str:
    """The URL of a session that ended cleanly, without the bar."""
    return f"{history}{recorded.ref.url}?bare=always"


@pytest.fixture
def vanished(recorded: Recording, history: str) -> str:
    """The URL of a vanished session."""
    return f"{history}{recorded.vanished.url}?bare=always"


def expect_texts(page: Page | FrameLocator, *texts: str) -> None:
    for text in texts:
        expect(page.get_by_text(text).filter(visible=True).first).to_be_visible()


def table_row(page: Page, *texts: str) -> Any:
    rows = page.get_by_role("row")
    for text in texts:
        rows = rows.filter(has_text=text)
    return rows.first


def finds_in_log(page: Page, text: str) -> None:
    """Search in the log viewer, which renders only the visible lines."""
    page.get_by_label("Keyword").filter(visible=True).fill(text)
    expect_texts(page, text)


def tasks(recorded: Recording, name: str, state: str) -> list[str]:
    rows = recorded.live(full_list("tasks"))["data"]["result"]["result"]
    return [row["task_id"] for row in rows if (row["name"], row["state"]) == (name, state)]


def actor(recorded: Recording, class_name: str) -> str:
    actors = recorded.live("/logical/actors")["data"]["actors"].values()
    return next(str(each["actorId"]) for each in actors if each["className"] == class_name)


def node(recorded: Recording) -> str:
    return str(recorded.live("/nodes?view=summary")["data"]["summary"][0]["raylet"]["nodeId"])


def test_home_page_opens_a_session(monitored: MonitoredBrowser, history: str, recorded: Recording) -> None:
    """Both sessions are listed with their state, and Open shows the frontend at the session's URL."""
    page = monitored.open(f"{history}/home")
    row = table_row(page, recorded.ref.cluster, "Ended")
    expect(row).to_be_visible()
    expect(table_row(page, recorded.vanished.cluster, "Vanished")).to_be_visible()
    save_screenshot(page, "home")
    row.get_by_role("link", name="Open").click()
    expect(page).to_have_url(re.compile(re.escape(f"{history}{recorded.ref.url}") + "#/overview"))
    expect_texts(page.frame_locator("#dashboard"), "Recent jobs", SAMPLE)


def test_overview_page_shows_jobs_status_and_events(monitored: MonitoredBrowser, ended: str) -> None:
    """Recent jobs, the last autoscaler status, and events of the log files."""
    page = monitored.open(f"{ended}#/overview")
    expect_texts(page, SAMPLE, FAILING, RUNNING, "0.5/4.0 CPU", "'unobtainable': 1.0")
    expect_texts(page, f"Completed a ray job {SAMPLE} with a status SUCCEEDED.", "A worker died or was killed")
    save_screenshot(page, "overview")


def test_jobs_page_shows_final_statuses(monitored: MonitoredBrowser, ended: str) -> None:
    """One job succeeded, one failed with its exit code, one was stopped at session end. Entrypoints are escaped."""
    page = monitored.open(f"{ended}#/jobs")
    expect(table_row(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    expect(table_row(page, FAILING, "FAILED", "exit code 5")).to_be_visible()
    expect(table_row(page, RUNNING, "STOPPED", "before Ray reported an end")).to_be_visible()
    expect(table_row(page, FAILING, "<script>document.title=")).to_be_visible()
    assert HOSTILE_ARGUMENT not in page.content()
    assert "owned" not in page.title()
    save_screenshot(page, "jobs")


def test_job_page_shows_tasks_and_logs(monitored: MonitoredBrowser, ended: str) -> None:
    """Progress, driver output, tasks by name and state, actors, and the placement group."""
    page = monitored.open(f"{ended}#/jobs/{SAMPLE}")
    expect_texts(page, "SUCCEEDED", "Finished: 60", "Failed: 3", '"team": "training"')
    finds_in_log(page, "model published")
    save_screenshot(page, "job")
    page.get_by_text("Placement Group Table").click()
    expect(table_row(page, "training", "REMOVED")).to_be_visible()
    page.get_by_text("Actor Table").click()
    expect(table_row(page, "Trainer", "DEAD")).to_be_visible()
    page.get_by_text("Task Table").click()
    page.get_by_role("combobox", name="Name", exact=True).first.fill("validate_shard")
    expect(table_row(page, "validate_shard", "FAILED", "Error")).to_be_visible()
    expect(table_row(page, "validate_shard", "FINISHED")).to_be_visible()
    save_screenshot(page, "job-tables")


def test_job_secrets_are_masked_in_browsers(monitored: MonitoredBrowser, ended: str) -> None:
    """Names of environment variables are shown, their values are not."""
    page = monitored.open(f"{ended}#/jobs/{SAMPLE}")
    page.get_by_text("View", exact=True).first.click()
    expect_texts(page, "API_TOKEN", "<redacted>")
    assert SECRET not in page.content()


def test_job_timeline_can_be_downloaded(monitored: MonitoredBrowser, ended: str) -> None:
    """The file is a Chrome trace with the spans of the job's tasks."""
    page = monitored.open(f"{ended}#/jobs/{SAMPLE}")
    with page.expect_download() as download:
        page.get_by_text("Download trace file").click()
    spans = json.loads(download.value.path().read_text())
    assert {"load_shard", "Trainer.train_epoch"} <= {span["args"].get("func_or_class_name") for span in spans}


def test_actors_page_shows_final_states(monitored: MonitoredBrowser, ended: str) -> None:
    """Classes, names and states, also of actors that were alive at session end."""
    page = monitored.open(f"{ended}#/actors")
    expect(table_row(page, "Trainer", "trainer", "DEAD", "all references to the actor were removed")).to_be_visible()
    expect(table_row(page, "ExperimentTracker", "experiment-tracker", "DEAD")).to_be_visible()
    expect(table_row(page, "Watcher", "unplaced", "before Ray reported an end")).to_be_visible()
    save_screenshot(page, "actors")


def test_actor_page_shows_restart_and_output(monitored: MonitoredBrowser, ended: str, recorded: Recording) -> None:
    """The trainer restarted once; the output is that of its last process."""
    page = monitored.open(f"{ended}#/actors/{actor(recorded, 'Trainer')}")
    expect_texts(page, "Restarted", "trainer")
    page.get_by_role("tab", name="stdout").click()
    expect_texts(page, "trainer started, time 2", "epoch 3: loss")
    save_screenshot(page, "actor")
    page.get_by_text("Tasks History").click()
    expect(table_row(page, "Trainer.train_epoch", "FINISHED")).to_be_visible()
    save_screenshot(page, "actor-tasks")


def test_cluster_page_links_to_the_node(monitored: MonitoredBrowser, ended: str, recorded: Recording) -> None:
    """A node that was alive at session end is listed as alive, with its last statistics."""
    page = monitored.open(f"{ended}#/cluster")
    expect(table_row(page, "ALIVE", "127.0.0.1 (Head)")).to_be_visible()
    expect_texts(page, "ray::DashboardAgent")
    save_screenshot(page, "cluster")
    table_row(page, "127.0.0.1 (Head)").get_by_role("link", name=node(recorded)).first.click()
    expect_texts(page, "Node Detail", "Load per CPU")
    page.get_by_role("tab", name="Actor").click()
    expect(table_row(page, "Trainer", "DEAD")).to_be_visible()
    save_screenshot(page, "node")


def test_logs_page_links_to_a_file(monitored: MonitoredBrowser, ended: str, recorded: Recording) -> None:
    """From the nodes to the files to the lines of a file. HTML in lines is escaped."""
    page = monitored.open(f"{ended}#/logs/")
    page.get_by_text(node(recorded)).first.click()
    expect_texts(page, "raylet.out", "events/", "gcs_server.out")
    save_screenshot(page, "logs")
    page.get_by_text(f"job-driver-{FAILING}.log").click()
    expect_texts(page, f"given {HOSTILE_ARGUMENT}")
    assert "owned" not in page.title()
    save_screenshot(page, "log-file")


def test_task_page_shows_the_error(monitored: MonitoredBrowser, ended: str, recorded: Recording) -> None:
    """State, function and stack trace of the exception."""
    (failed,) = tasks(recorded, "validate_shard", "FAILED")
    page = monitored.open(f"{ended}#/jobs/{SAMPLE}/tasks/{failed}")
    expect_texts(page, "validate_shard", "FAILED", "NORMAL_TASK")
    page.get_by_role("tab", name="Error stack trace").click()
    expect_texts(page, "shard 5: checksum mismatch")
    save_screenshot(page, "task-failed")


def test_task_page_shows_only_its_own_output(monitored: MonitoredBrowser, ended: str, recorded: Recording) -> None:
    """A worker writes the output of many tasks into one file; the page shows that of one task."""
    task = tasks(recorded, "load_shard", "FINISHED")[0]
    page = monitored.open(f"{ended}#/jobs/{SAMPLE}/tasks/{task}")
    page.get_by_role("tab", name="stdout").click()
    expect(page.get_by_text(re.compile("loaded shard .* of run sample"))).to_have_count(1)
    save_screenshot(page, "task-output")


def test_vanished_session_shows_its_stored_data(monitored: MonitoredBrowser, vanished: str) -> None:
    """Jobs that were running at the last data have failed. The text of events is escaped."""
    page = monitored.open(f"{vanished}#/jobs")
    expect(table_row(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    expect(table_row(page, RUNNING, "FAILED", "The session vanished at")).to_be_visible()
    save_screenshot(page, "vanished-jobs")
    page.get_by_role("link", name="Overview").click()
    expect_texts(page, "0.5/4.0 CPU", "Started a ray job")
    hostile, older = page.get_by_text(HOSTILE_EVENT).first, page.get_by_role("button", name="Go to page 2").first
    if older.is_visible() and not hostile.is_visible():  # on a slow machine, Ray reports more events
        older.click()
    expect(hostile).to_be_visible()
    assert "owned" not in page.title()
    save_screenshot(page, "vanished-overview")


def test_two_sessions_can_be_open_in_two_tabs(monitored: MonitoredBrowser, ended: str, vanished: str) -> None:
    """Each tab stays in its own session."""
    one, other = monitored.open(f"{ended}#/jobs"), monitored.open(f"{vanished}#/jobs")
    for page, status in ((one, "STOPPED"), (other, "FAILED"), (one, "STOPPED")):
        page.get_by_role("link", name="Overview").click()
        expect_texts(page, "Recent jobs")
        page.get_by_role("link", name="Jobs", exact=True).click()
        expect(table_row(page, RUNNING, status)).to_be_visible()


def test_unknown_session_gets_an_error_page_in_the_browser(browser: Browser, history: str, recorded: Recording) -> None:
    """The page links to the list of sessions."""
    monitored = MonitoredBrowser(browser)
    page = monitored.open(f"{history}/s/default/unknown/{recorded.ref.session}/")
    expect_texts(page, "Session not found", "no session")
    save_screenshot(page, "no-such-session")
    page.get_by_role("link", name="All sessions").click()
    expect(table_row(page, recorded.ref.cluster)).to_be_visible()
    monitored.close()
    assert [error for error in monitored.errors if "404" not in error] == []


def test_empty_store_page_shows_how_to_record(monitored: MonitoredBrowser, tmp_path: Path) -> None:
    """The home page of a new server."""
    (tmp_path / "store").mkdir()
    with running_server(tmp_path / "store", tmp_path / "work") as address:
        page = monitored.open(address)
        expect_texts(page, "No sessions yet", "rayhistory run -- python my_job.py", "rayhistory doctor")
        save_screenshot(page, "empty-store")
        monitored.close()


def test_missing_frontend_page_shows_how_to_install_one(browser: Browser, recorded: Recording, tmp_path: Path) -> None:
    """Ray is not installed beside the server: the data is there, the frontend is not."""
    monitored = MonitoredBrowser(browser)
    with running_server(recorded.store, tmp_path, at_start=WITHOUT_RAY) as address:
        page = monitored.open(address + recorded.ref.url)
        expect_texts(page, "frontend is installed", "pip install 'ray[default]'")
        save_screenshot(page, "no-frontend")
        monitored.close()
    assert [error for error in monitored.errors if "404" not in error] == []


def test_progress_page_opens_the_session_when_indexed(
    monitored: MonitoredBrowser, recorded: Recording, tmp_path: Path
) -> None:
    """A page shows the progress while a session is indexed, then the dashboard."""
    shutil.copytree(recorded.store, tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    gate = tmp_path / "gate"
    waiting = WAIT_FOR_GATE.format(gate=str(gate))
    with running_server(tmp_path / "store", tmp_path / "work", at_start=waiting) as address:
        page = monitored.open(address + recorded.ref.url)
        expect_texts(page, "Indexing this session", "This page refreshes automatically")
        save_screenshot(page, "progress")
        gate.touch()
        expect_texts(page.frame_locator("#dashboard"), "Recent jobs", SAMPLE)
        monitored.close()
