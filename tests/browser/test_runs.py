"""Runs, a group, a comparison and the fleet in a real browser: light, dark, narrow, and without JavaScript."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from browser.monitored_browser import MonitoredBrowser, chromium, save_screenshot
from rayhistory.runs.session_summary import NodeType, StoredSummary, SummaryMetric
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings, resolve
from support.generated_runs import DAY_MS, generated, store_runs
from support.recorded_sample import store_sample
from support.server_process import running_server

NOT_AHEAD = "import os\nos.environ['RAYHISTORY_INDEX_AHEAD'] = 'false'\n"
RECORDED = [
    SessionRef.checked("default", f"recorded-{name}", "session_2026-11-15_19-18-08_055078_15551") for name in "ab"
]
HOSTILE = "<script>document.title='owned'</script>"


def nights() -> Iterator[StoredSummary]:
    today = int(time.time() * 1000) // DAY_MS * DAY_MS
    for night in range(25):
        started = today - (25 - night) * DAY_MS
        duration = 600_000 + night % 5 * 9_000 if night < 24 else 1_000_000
        version = "2.60.0" if night < 15 else "2.61.0"
        stored = generated(night, started_ms=started, duration_ms=duration, ray_version=version)
        cpu = SummaryMetric(name="cpu_percent", step_ms=10_000, values=[float(20 + step % 60) for step in range(60)])
        details = msgspec.structs.replace(
            stored.details, metrics=[cpu], packages=[f"torch==2.{8 + night // 20}"],
            node_types=[NodeType(name="m5.4xlarge", count=2, resources={"CPU": 16.0})],
        )  # fmt: skip
        yield msgspec.structs.replace(stored, details=details)
        failed = night % 4 == 3
        yield generated(
            100 + night, name="etl-of-the-warehouse", namespace="research", started_ms=started + 3_600_000,
            status="FAILED" if failed else "SUCCEEDED", fingerprint="ab12" if failed else None,
        )  # fmt: skip
    evil = generated(300, owner=False, status="FAILED", fingerprint="cd34", started_ms=today)
    job = msgspec.structs.replace(evil.summary.jobs[0], name=HOSTILE)
    yield msgspec.structs.replace(evil, summary=msgspec.structs.replace(evil.summary, jobs=[job]))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("runs")
    store_runs(_settings(directory), list(nights()))
    for ref in RECORDED:
        store_sample(_settings(directory), ref=ref)
    with running_server(directory / "store", directory / "work", at_start=NOT_AHEAD) as address:
        yield address


def _settings(directory: Path) -> Settings:
    return resolve("historyserver", {"setting_local_storage_dir": str(directory / "store")}, {})[0]


def test_a_slower_night_is_found_from_the_list_to_the_comparison(monitored: MonitoredBrowser, history: str) -> None:
    page = monitored.open(f"{history}/runs")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(page).not_to_have_title("owned")
    row = page.locator("tr", has_text="nightly").first
    expect(row.locator(".square")).to_have_count(20)
    expect(row).to_contain_text("slower")
    save_screenshot(page, "runs")
    page.get_by_role("button", name="Slower").click()
    expect(page).to_have_url(re.compile("regressed=1"))
    page.get_by_role("link", name="nightly", exact=True).click()
    expect(page.get_by_role("heading", name="Duration over time")).to_be_visible()
    expect(page.locator("svg.durations circle")).to_have_count(25)
    expect(page.locator("svg.durations text.version")).to_have_text("Ray 2.61.0")
    save_screenshot(page, "run-group")
    page.get_by_role("link", name="Compare the newest run with the last successful one").click()
    expect(page.get_by_role("heading", name="Compare 2 sessions")).to_be_visible()
    expect(page.locator("td.worse").first).to_contain_text("×")
    save_screenshot(page, "compare")
    page.get_by_role("link", name="Show everything").click()
    expect(page.get_by_text("package torch")).to_be_visible()


def test_selected_sessions_are_compared_from_the_list_of_sessions(monitored: MonitoredBrowser, history: str) -> None:
    page = monitored.open(f"{history}/home?q=recorded")
    for ref in RECORDED:
        assert page.request.get(f"{history}{ref.url}api/v0/tasks").ok  # indexes it
    page.goto(f"{history}/home?q=recorded")
    button = page.get_by_role("button", name="Compare selected")
    for ref in RECORDED:
        expect(button).to_be_disabled()
        page.get_by_role("checkbox", name=f"Compare {ref.cluster}").check()
    expect(button).to_be_enabled()
    save_screenshot(page, "sessions-selected")
    button.click()
    expect(page.get_by_role("heading", name="Compare 2 sessions")).to_be_visible()
    for ref in RECORDED:
        expect(page.get_by_role("link", name=ref.cluster).first).to_be_visible()
    expect(page.get_by_text("No differences beyond the spread")).to_be_visible()
    page.get_by_role("link", name="Show everything").click()
    expect(page.get_by_role("rowheader", name="Ray", exact=True)).to_be_visible()
    save_screenshot(page, "compare-recorded")


def test_run_is_compared_with_the_last_good_one(monitored: MonitoredBrowser, history: str) -> None:
    page = monitored.open(f"{history}/runs?q=warehouse")
    page.locator("td.job a").first.click()
    expect(page.get_by_role("heading", name="Failures")).to_be_visible()
    failed = page.locator("tr", has_text="Failed").filter(has=page.get_by_role("link", name="Compare")).first
    failed.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", name="Compare 2 sessions")).to_be_visible()
    expect(page.locator("tr", has_text="Status").first).to_contain_text("Succeeded")
    expect(page.locator("tr", has_text="Status").first).to_contain_text("Failed")
    expect(page.get_by_text("ValueError in load").first).to_be_visible()


def test_figures_of_the_fleet_lead_to_runs(monitored: MonitoredBrowser, history: str) -> None:
    page = monitored.open(f"{history}/fleet")
    expect(page.get_by_role("heading", name="Runs per day")).to_be_visible()
    expect(page.locator(".bars rect")).to_have_count(90)
    save_screenshot(page, "fleet")
    page.get_by_role("link", name="research").click()
    expect(page).to_have_url(re.compile(r"/runs\?namespace=research"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_narrow_window_without_javascript(
    browser: Browser, history: str, scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(
        java_script_enabled=False, color_scheme=scheme, viewport={"width": 800, "height": 900}
    )
    page = context.new_page()
    for path in ("/runs", "/fleet"):
        page.goto(f"{history}{path}")
        save_screenshot(page, f"{path.strip('/')}-narrow-{scheme}")
        _expect_no_overflow(page)
    page.goto(f"{history}/runs?q=nightly")
    page.locator("td.job a").first.click()
    expect(page.get_by_role("heading", name="Functions × runs")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Function")).to_be_visible()
    _expect_no_overflow(page)
    save_screenshot(page, f"run-group-narrow-{scheme}")
    page.get_by_role("link", name="Compare the newest run with the last successful one").click()
    expect(page.get_by_role("heading", name="Environment")).to_be_visible()
    _expect_no_overflow(page)
    save_screenshot(page, f"compare-narrow-{scheme}")
    context.close()


def _expect_no_overflow(page: Page) -> None:
    """Tables scroll inside of their cards; the page does not."""
    assert page.evaluate("document.documentElement.scrollWidth") <= 800


@pytest.fixture(scope="module")
def browser(history: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser
