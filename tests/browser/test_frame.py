"""The bar above the dashboard in a real browser: one address for what is looked at, and a slider through time."""

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

from browser.watched import Watched, keep_picture
from rayhistory.layout import Layout
from recorded.recorder import Recorded
from recorded.served import serving
from recorded.workloads import FAILING, HOSTILE_ARGUMENT, RUNNING, SAMPLE

MOMENT = re.compile(r"@(\d+)/")


@pytest.fixture
def ended(recorded: Recorded, history: str) -> str:
    return history + recorded.ref.url


@pytest.fixture
def vanished(recorded: Recorded, history: str) -> str:
    return history + recorded.vanished.url


def inside(page: Page) -> FrameLocator:
    return page.frame_locator("#dashboard")


def job(page: Page, *texts: str) -> Locator:
    rows = inside(page).get_by_role("row")
    for text in texts:
        rows = rows.filter(has_text=text)
    return rows.first


def while_sample_ran(recorded: Recorded) -> int:
    (found,) = (each for each in recorded.live("/api/jobs/") if each["submission_id"] == SAMPLE)
    return int((found["start_time"] + found["end_time"]) / 2)


def click_on_slider(page: Page, ms: int) -> None:
    slider = page.get_by_label("Moment shown")
    expect(slider).to_be_visible()
    box: Any = slider.bounding_box()
    low, high = (int(slider.get_attribute(name) or 0) for name in ("min", "max"))
    place = (ms - low) / (high - low)
    page.mouse.click(box["x"] + 7 + place * (box["width"] - 14), box["y"] + box["height"] / 2)


def moment_of(page: Page) -> int:
    found = MOMENT.search(page.url)
    assert found, page.url
    return int(found[1])


def test_the_bar_says_which_session_this_is_and_what_became_of_it(
    watched: Watched, ended: str, history: str, recorded: Recorded
) -> None:
    """Above the frontend, which is as it always was; nothing is asked of anybody else."""
    asked: list[str] = []
    page = watched.page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{ended}#/jobs")
    bar = page.locator("#bar")
    for text in (recorded.ref.cluster, recorded.ref.namespace, "Ended", "ago", "Dashboard"):
        expect(bar).to_contain_text(text)
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    expect(page.locator("#marks i").first).to_be_visible()
    keep_picture(page, "frame")
    page.get_by_label("Moment shown").hover()
    expect(page.locator("#moment-text")).to_be_visible()
    assert {url for url in asked if not url.startswith((history, "data:"))} == set()
    bar.get_by_role("link", name="All sessions").click()
    expect(page).to_have_url(f"{history}/home")


def test_the_slider_moves_the_whole_dashboard_to_a_moment(watched: Watched, ended: str, recorded: Recorded) -> None:
    """The jobs page shows the state then, the address says when, and the way back is one click."""
    page = watched.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    click_on_slider(page, while_sample_ran(recorded))
    expect(job(page, SAMPLE, "RUNNING")).to_be_visible()
    expect(page).to_have_url(re.compile(re.escape(ended.rstrip("/")) + r"@\d+/#/jobs"))
    assert abs(moment_of(page) - while_sample_ran(recorded)) < 2_000
    expect(page.locator("#shown")).to_contain_text("As of")
    keep_picture(page, "frame-moment")
    page.get_by_role("button", name="End").click()
    expect(page).to_have_url(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    expect(page.locator("#shown")).to_contain_text("Ended")


def test_a_moment_has_an_address_that_can_be_passed_on(watched: Watched, ended: str, recorded: Recorded) -> None:
    page = watched.open(f"{ended.rstrip('/')}@{while_sample_ran(recorded)}/#/jobs")
    expect(job(page, SAMPLE, "RUNNING")).to_be_visible()
    expect(page.locator("#shown")).to_contain_text("As of")
    slider = page.get_by_label("Moment shown")
    expect(slider).to_have_value(str(while_sample_ran(recorded)))


def test_the_slider_can_be_moved_by_keys(watched: Watched, ended: str) -> None:
    """To the beginning, when there was no job yet; in steps; and to the end."""
    page = watched.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    slider = page.get_by_label("Moment shown")
    slider.focus()
    page.keyboard.press("Home")
    expect(page).to_have_url(MOMENT)
    expect(inside(page).get_by_text("Fetched jobs")).to_be_visible()
    expect(inside(page).get_by_text(SAMPLE)).to_have_count(0)
    first = moment_of(page)
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowRight")
    expect(page).not_to_have_url(re.compile(f"@{first}/"))
    span = int(slider.get_attribute("max") or 0) - int(slider.get_attribute("min") or 0)
    assert 0.10 < (moment_of(page) - first) / span < 0.12
    expect(slider).to_be_focused()
    page.keyboard.press("End")
    expect(page).to_have_url(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()


def test_failures_are_marked_and_can_be_visited(watched: Watched, ended: str) -> None:
    """From the end back to the last one, and to the one before."""
    page = watched.open(f"{ended}#/jobs")
    expect(page.locator("#marks i").first).to_be_visible()
    marked = page.request.get(f"{ended}api/history/course").json()["failures"]
    expect(page.locator("#marks i")).to_have_count(len(marked))
    expect(job(page, FAILING, "FAILED")).to_be_visible()
    before, after = page.get_by_role("button", name="Previous failure"), page.get_by_role("button", name="Next failure")
    expect(after).to_be_disabled()
    for mark in reversed(marked[-2:]):
        before.click()
        expect(page).to_have_url(re.compile(f"@{mark['at_ms']}/"))
    after.click()
    expect(page).to_have_url(re.compile(f"@{marked[-1]['at_ms']}/"))
    expect(page.get_by_label("Moment shown")).to_have_attribute("aria-valuetext", re.compile("failed|died"))
    expect(job(page, FAILING)).to_be_visible()


def test_the_address_is_always_the_deep_link(watched: Watched, ended: str) -> None:
    """What is clicked inside shows in the address, and an address that is typed shows inside."""
    page = watched.open(ended)
    expect(page).to_have_url(f"{ended}#/overview")
    inside(page).get_by_role("link", name="Actors").first.click()
    expect(page).to_have_url(f"{ended}#/actors")
    # Frontends touch their own address at any time: that must not undo what was typed.
    touch = "const inside = document.getElementById('dashboard').contentWindow; inside.history.replaceState(null, '')"
    page.evaluate(f"location.hash = '#/cluster'; {touch}")
    expect(inside(page).get_by_text("127.0.0.1 (Head)").first).to_be_visible()
    page.reload()
    expect(inside(page).get_by_text("127.0.0.1 (Head)").first).to_be_visible()
    expect(page).to_have_url(f"{ended}#/cluster")


def test_back_and_forward_lead_through_pages_and_moments(watched: Watched, ended: str, recorded: Recorded) -> None:
    page = watched.open(f"{ended}#/actors")
    expect(inside(page).get_by_text("experiment-tracker").first).to_be_visible()
    inside(page).get_by_role("link", name="Jobs", exact=True).click()
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    click_on_slider(page, while_sample_ran(recorded))
    expect(job(page, SAMPLE, "RUNNING")).to_be_visible()
    then = page.url
    page.go_back()
    expect(page).to_have_url(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(f"{ended}#/actors")
    expect(inside(page).get_by_text("experiment-tracker").first).to_be_visible()
    page.go_forward()
    expect(page).to_have_url(f"{ended}#/jobs")
    page.go_forward()
    expect(page).to_have_url(then)
    expect(job(page, SAMPLE, "RUNNING")).to_be_visible()


def test_bare_leaves_the_bar_out(watched: Watched, ended: str) -> None:
    page = watched.open(f"{ended}?bare=1#/jobs")
    expect(page.get_by_role("row").filter(has_text=SAMPLE).first).to_be_visible()
    expect(page.locator("#bar")).to_have_count(0)


def test_the_bar_can_be_folded_away_and_stays_so(watched: Watched, ended: str) -> None:
    page = watched.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE)).to_be_visible()
    page.get_by_role("button", name="Fold this bar away").click()
    expect(page.locator("#bar")).to_be_hidden()
    keep_picture(page, "frame-folded")
    page.reload()
    expect(job(page, SAMPLE)).to_be_visible()
    expect(page.locator("#bar")).to_be_hidden()
    page.get_by_role("button", name="Show the bar").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#bar")).to_be_visible()
    expect(page.get_by_role("button", name="Fold this bar away")).to_be_focused()


def test_two_tabs_are_at_two_moments(watched: Watched, ended: str, vanished: str, recorded: Recorded) -> None:
    then = watched.open(f"{ended.rstrip('/')}@{while_sample_ran(recorded)}/#/jobs")
    now = watched.open(f"{vanished}#/jobs")
    expect(job(then, SAMPLE, "RUNNING")).to_be_visible()
    expect(job(now, RUNNING, "FAILED")).to_be_visible()
    then.get_by_label("Moment shown").press("ArrowRight")
    expect(then).not_to_have_url(re.compile(f"@{while_sample_ran(recorded)}/"))
    expect(job(then, SAMPLE, "RUNNING")).to_be_visible()
    expect(now).to_have_url(f"{vanished}#/jobs")
    expect(job(now, SAMPLE, "SUCCEEDED")).to_be_visible()


def test_a_screen_reader_is_told_of_another_moment_and_not_of_every_age(
    watched: Watched, ended: str, recorded: Recorded
) -> None:
    page = watched.page()
    page.clock.install()
    page.goto(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    shown, told = page.locator("#shown"), page.locator("#changed[role=status]")
    before = shown.inner_text()
    page.clock.fast_forward("50:00:00")
    expect(shown).not_to_have_text(before)
    expect(told).to_have_text("Ended")
    click_on_slider(page, while_sample_ran(recorded))
    expect(told).to_contain_text("As of")


def test_a_vanished_session_says_so_and_has_its_moments(watched: Watched, vanished: str, recorded: Recorded) -> None:
    page = watched.open(f"{vanished}#/jobs")
    expect(page.locator("#state")).to_contain_text("Vanished")
    expect(page.locator("#shown")).to_contain_text("Last seen")
    expect(job(page, RUNNING, "FAILED", "The session vanished at")).to_be_visible()
    keep_picture(page, "frame-vanished")
    click_on_slider(page, while_sample_ran(recorded))
    expect(job(page, RUNNING, "RUNNING")).to_be_visible()


def test_what_fails_in_a_session_stays_text_inside_and_in_the_address(watched: Watched, ended: str) -> None:
    """An entrypoint with a script in it, and an address with one."""
    page = watched.open(f"{ended}#/jobs")
    expect(job(page, FAILING, "<script>document.title=")).to_be_visible()
    page.goto(f"{ended}?x={HOSTILE_ARGUMENT}#/jobs?x={HOSTILE_ARGUMENT}")
    expect(job(page, FAILING, "FAILED")).to_be_visible()
    expect(page.locator("#marks i").first).to_be_visible()
    assert "owned" not in page.title()


def test_the_bar_is_as_light_or_dark_as_what_is_below_it(watched: Watched, ended: str) -> None:
    """Ray's own switch, inside, is for both."""

    def background() -> str:
        return str(page.locator("#bar").evaluate("bar => getComputedStyle(bar).backgroundColor"))

    page = watched.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE)).to_be_visible()
    light = background()
    inside(page).get_by_role("button", name=re.compile("dark mode", re.IGNORECASE)).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert background() != light
    keep_picture(page, "frame-dark")


def test_gaps_are_told_on_a_page_of_their_own(watched: Watched, vanished: str) -> None:
    page = watched.open(f"{vanished}gaps")
    expect(page.get_by_text("Job closed at the session's end")).to_be_visible()
    keep_picture(page, "gaps")
    page.get_by_role("link", name="Back to the session").click()
    expect(inside(page).get_by_text("Recent jobs")).to_be_visible()


def test_a_running_session_is_followed_until_it_is_lost(watched: Watched, recorded: Recorded, tmp_path: Path) -> None:
    """The store's clock says that it lives; when it says no more, the bar does not either, by itself."""
    shutil.copytree(recorded.store, tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    alive = tmp_path / "store" / Layout().alive_key(recorded.vanished)
    os.utime(alive, (time.time() + 3600, time.time() + 3600))
    with serving(tmp_path / "store", tmp_path / "work") as address:
        page = watched.open(f"{address}{recorded.vanished.url}#/jobs")
        expect(page.locator("#state")).to_contain_text("Running")
        expect(page.locator("#shown")).to_contain_text("Up to")
        expect(page.get_by_role("button", name="Now")).to_be_visible()
        expect(job(page, RUNNING, "RUNNING")).to_be_visible()
        keep_picture(page, "frame-running")
        os.utime(alive, (time.time() - 3600, time.time() - 3600))
        expect(page.locator("#state")).to_contain_text("Vanished")
        expect(page.get_by_role("button", name="End")).to_be_visible()
        watched.close()
