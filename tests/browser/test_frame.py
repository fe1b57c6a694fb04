"""The frame page in a real browser: the bar, its slider, and the URL that follows the frontend."""

import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

from browser.monitored_browser import MonitoredBrowser, save_screenshot
from rayhistory.sessions import Layout
from recorded.recorder import Recording
from recorded.workloads import FAILING, HOSTILE_ARGUMENT, RUNNING, SAMPLE
from support.server_process import running_server

AS_OF_URL = re.compile(r"@(\d+)/")


@pytest.fixture
def ended(recorded: Recording, history: str) -> str:
    return history + recorded.ref.url


@pytest.fixture
def vanished(recorded: Recording, history: str) -> str:
    return history + recorded.vanished.url


def frame(page: Page) -> FrameLocator:
    return page.frame_locator("#dashboard")


def job(page: Page, *texts: str) -> Locator:
    rows = frame(page).get_by_role("row")
    for text in texts:
        rows = rows.filter(has_text=text)
    return rows.first


def while_sample_ran(recorded: Recording) -> int:
    (found,) = (each for each in recorded.live("/api/jobs/") if each["submission_id"] == SAMPLE)
    return int((found["start_time"] + found["end_time"]) / 2)


def click_on_slider(page: Page, ms: int) -> None:
    slider = page.get_by_label("Show session as of")
    expect(slider).to_be_visible()
    box: Any = slider.bounding_box()
    low, high = (int(slider.get_attribute(name) or 0) for name in ("min", "max"))
    place = (ms - low) / (high - low)
    page.mouse.click(box["x"] + 7 + place * (box["width"] - 14), box["y"] + box["height"] / 2)


def as_of_ms(page: Page) -> int:
    found = AS_OF_URL.search(page.url)
    assert found, page.url
    return int(found[1])


def test_bar_shows_the_session_and_its_state(
    monitored: MonitoredBrowser, ended: str, history: str, recorded: Recording
) -> None:
    """The frontend below it is unmodified, and no other host gets a request."""
    requested: list[str] = []
    page = monitored.page()
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{ended}#/jobs")
    bar = page.locator("#bar")
    for text in (recorded.ref.cluster, recorded.ref.namespace, "Ended", "ago", "Dashboard"):
        expect(bar).to_contain_text(text)
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    expect(page.locator("#markers i").first).to_be_visible()
    save_screenshot(page, "frame")
    page.get_by_label("Show session as of").hover()
    expect(page.locator("#as-of-label")).to_be_visible()
    assert {url for url in requested if not url.startswith((history, "data:"))} == set()
    bar.get_by_role("link", name="All sessions").click()
    expect(page).to_have_url(f"{history}/home")


def test_slider_shows_the_dashboard_as_of_a_time(monitored: MonitoredBrowser, ended: str, recorded: Recording) -> None:
    """The jobs page shows the state at that time, and one click leads back."""
    page = monitored.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    click_on_slider(page, while_sample_ran(recorded))
    expect(job(page, SAMPLE, "RUNNING")).to_be_visible()
    expect(page).to_have_url(re.compile(re.escape(ended.rstrip("/")) + r"@\d+/#/jobs"))
    assert abs(as_of_ms(page) - while_sample_ran(recorded)) < 2_000
    expect(page.locator("#data-age")).to_contain_text("As of")
    save_screenshot(page, "frame-as-of")
    page.get_by_role("button", name="Jump to end").click()
    expect(page).to_have_url(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    expect(page.locator("#data-age")).to_contain_text("Ended")


def test_as_of_url_can_be_shared(monitored: MonitoredBrowser, ended: str, recorded: Recording) -> None:
    page = monitored.open(f"{ended.rstrip('/')}@{while_sample_ran(recorded)}/#/jobs")
    expect(job(page, SAMPLE, "RUNNING")).to_be_visible()
    expect(page.locator("#data-age")).to_contain_text("As of")
    slider = page.get_by_label("Show session as of")
    expect(slider).to_have_value(str(while_sample_ran(recorded)))


def test_slider_works_with_the_keyboard(monitored: MonitoredBrowser, ended: str) -> None:
    """Home goes to the start, before any job; keys move in steps; End goes to the end."""
    page = monitored.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    slider = page.get_by_label("Show session as of")
    slider.focus()
    page.keyboard.press("Home")
    expect(page).to_have_url(AS_OF_URL)
    expect(frame(page).get_by_text("Fetched jobs")).to_be_visible()
    expect(frame(page).get_by_text(SAMPLE)).to_have_count(0)
    first = as_of_ms(page)
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowRight")
    expect(page).not_to_have_url(re.compile(f"@{first}/"))
    duration = int(slider.get_attribute("max") or 0) - int(slider.get_attribute("min") or 0)
    assert 0.10 < (as_of_ms(page) - first) / duration < 0.12
    expect(slider).to_be_focused()
    page.keyboard.press("End")
    expect(page).to_have_url(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()


def test_failure_markers_can_be_visited(monitored: MonitoredBrowser, ended: str) -> None:
    """From the end to the last failure, and to the one before."""
    page = monitored.open(f"{ended}#/jobs")
    expect(page.locator("#markers i").first).to_be_visible()
    markers = page.request.get(f"{ended}api/history/overview").json()["failures"]
    expect(page.locator("#markers i")).to_have_count(len(markers))
    expect(job(page, FAILING, "FAILED")).to_be_visible()
    previous, following = (
        page.get_by_role("button", name="Previous failure"),
        page.get_by_role("button", name="Next failure"),
    )
    expect(following).to_be_disabled()
    for marker in reversed(markers[-2:]):
        previous.click()
        expect(page).to_have_url(re.compile(f"@{marker['at_ms']}/"))
    following.click()
    expect(page).to_have_url(re.compile(f"@{markers[-1]['at_ms']}/"))
    expect(page.get_by_label("Show session as of")).to_have_attribute("aria-valuetext", re.compile("failed|died"))
    expect(job(page, FAILING)).to_be_visible()


def throttle_cpu(page: Page, rate: float) -> None:
    """Run the scripts of a page slower by this factor."""
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": rate})


def test_page_url_follows_the_frame(monitored: MonitoredBrowser, ended: str) -> None:
    """A click inside changes the URL, and an entered URL changes the page inside."""
    page = monitored.open(ended)
    expect(page).to_have_url(f"{ended}#/overview")
    throttle_cpu(page, 4)  # Ray's frontend misses what is typed before it has rendered the page of the click
    frame(page).get_by_role("link", name="Actors").first.click()
    expect(page).to_have_url(f"{ended}#/actors")
    # Frontends touch their own address at any time: that must not undo what was typed.
    touch = "const inside = document.getElementById('dashboard').contentWindow; inside.history.replaceState(null, '')"
    page.evaluate(f"location.hash = '#/cluster'; {touch}")
    expect(frame(page).get_by_text("127.0.0.1 (Head)").first).to_be_visible()
    throttle_cpu(page, 1)
    page.reload()
    expect(frame(page).get_by_text("127.0.0.1 (Head)").first).to_be_visible()
    expect(page).to_have_url(f"{ended}#/cluster")


def test_back_and_forward_go_through_pages_and_times(
    monitored: MonitoredBrowser, ended: str, recorded: Recording
) -> None:
    page = monitored.open(f"{ended}#/actors")
    expect(frame(page).get_by_text("experiment-tracker").first).to_be_visible()
    frame(page).get_by_role("link", name="Jobs", exact=True).click()
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    click_on_slider(page, while_sample_ran(recorded))
    expect(job(page, SAMPLE, "RUNNING")).to_be_visible()
    then = page.url
    page.go_back()
    expect(page).to_have_url(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(f"{ended}#/actors")
    expect(frame(page).get_by_text("experiment-tracker").first).to_be_visible()
    page.go_forward()
    expect(page).to_have_url(f"{ended}#/jobs")
    page.go_forward()
    expect(page).to_have_url(then)
    expect(job(page, SAMPLE, "RUNNING")).to_be_visible()


def test_bare_always_has_no_bar(monitored: MonitoredBrowser, ended: str) -> None:
    page = monitored.open(f"{ended}?bare=always#/jobs")
    expect(page.get_by_role("row").filter(has_text=SAMPLE).first).to_be_visible()
    expect(page.locator("#bar")).to_have_count(0)


def test_link_opened_in_a_new_tab_has_the_bar(monitored: MonitoredBrowser, ended: str) -> None:
    """Ctrl-click inside the frame opens the frame's own URL, with `?bare=1`."""
    page = monitored.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE)).to_be_visible()
    with page.context.expect_page() as opened:
        job(page, SAMPLE).get_by_role("link").first.click(modifiers=["ControlOrMeta"])
    tab = opened.value
    expect(tab.locator("#bar")).to_be_visible()
    expect(tab).to_have_url(re.compile(rf"{re.escape(ended)}#/jobs/"))


def test_title_follows_the_page_of_the_dashboard(monitored: MonitoredBrowser, ended: str, recorded: Recording) -> None:
    page = monitored.open(f"{ended}#/jobs")
    expect(page).to_have_title(re.compile(rf"^Jobs · {recorded.ref.cluster} · "))
    expect(job(page, SAMPLE)).to_be_visible()
    job(page, SAMPLE).get_by_role("link").first.click()
    expect(page).to_have_title(re.compile(rf"^Job \S+ · {recorded.ref.cluster} · "))


def test_slider_tells_the_time_under_the_pointer(monitored: MonitoredBrowser, ended: str) -> None:
    """Its ends are labelled with the zone, it stays where it is, and a marker says what failed."""
    page = monitored.open(f"{ended}#/jobs")
    slider = page.get_by_label("Show session as of")
    expect(slider).to_be_visible()
    expect(page.locator("#range-start")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    expect(page.locator("#range-end")).to_have_text(re.compile(r"\d\d:\d\d:\d\d \S+"))
    box: Any = slider.bounding_box()
    texts = []
    for share in (0.3, 0.7):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        expect(page.locator("#as-of-label")).to_be_visible()
        texts.append(page.locator("#as-of-label").inner_text())
    assert texts[0] < texts[1]
    marker: Any = page.locator("#markers i").first.bounding_box()
    page.mouse.move(marker["x"] + 1, marker["y"] + 5)
    expect(page.locator("#as-of-label")).to_have_text(re.compile(r"^\d{4}.*(failed: \S+|died)"))
    label: Any = page.locator("#as-of-label").bounding_box()
    assert box["x"] <= label["x"] <= marker["x"] <= label["x"] + label["width"] <= box["x"] + box["width"]
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2)
    expect(page).to_have_url(AS_OF_URL)
    assert slider.bounding_box() == box


def test_slider_zooms_with_wheel_and_keys(monitored: MonitoredBrowser, ended: str) -> None:
    page = monitored.open(f"{ended}#/jobs")
    slider = page.get_by_label("Show session as of")
    expect(slider).to_be_visible()
    whole = [slider.get_attribute(name) for name in ("min", "max")]
    slider.hover()
    page.mouse.wheel(0, -100)
    expect(page.locator("#timeline")).to_have_class(re.compile("zoomed"))
    assert int(slider.get_attribute("max") or 0) - int(slider.get_attribute("min") or 0) < int(whole[1] or 0) - int(
        whole[0] or 0
    )
    slider.focus()
    page.keyboard.press("0")
    assert [slider.get_attribute(name) for name in ("min", "max")] == whole
    page.keyboard.press("+")
    expect(page.locator("#timeline")).to_have_class(re.compile("zoomed"))


def test_job_that_had_not_started_leads_to_its_start(
    monitored: MonitoredBrowser, ended: str, recorded: Recording
) -> None:
    (sample,) = (each for each in recorded.live("/api/jobs/") if each["submission_id"] == SAMPLE)
    monitored.expected_404s.add(f"/api/jobs/{SAMPLE}")
    page = monitored.open(f"{ended.rstrip('/')}@{int(sample['start_time']) - 1_000}/#/jobs/{SAMPLE}")
    expect(page.locator("#page-note")).to_contain_text("This job had not started at this time.")
    page.get_by_role("button", name="Go to its start").click()
    expect(page.locator("#page-note")).to_be_hidden()
    assert as_of_ms(page) >= int(sample["start_time"])


def test_nodes_of_an_ended_session_are_explained(monitored: MonitoredBrowser, ended: str) -> None:
    page = monitored.open(f"{ended}#/cluster")
    expect(page.locator("#page-note")).to_contain_text("This cluster is gone.")


def test_hidden_bar_stays_hidden_after_reload(monitored: MonitoredBrowser, ended: str) -> None:
    page = monitored.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE)).to_be_visible()
    page.get_by_role("button", name="Hide this bar").click()
    expect(page.locator("#bar")).to_be_hidden()
    save_screenshot(page, "frame-hidden-bar")
    page.reload()
    expect(job(page, SAMPLE)).to_be_visible()
    expect(page.locator("#bar")).to_be_hidden()
    page.get_by_role("button", name="Show the session bar").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#bar")).to_be_visible()
    expect(page.get_by_role("button", name="Hide this bar")).to_be_focused()


def test_two_tabs_can_show_two_times(
    monitored: MonitoredBrowser, ended: str, vanished: str, recorded: Recording
) -> None:
    then = monitored.open(f"{ended.rstrip('/')}@{while_sample_ran(recorded)}/#/jobs")
    now = monitored.open(f"{vanished}#/jobs")
    expect(job(then, SAMPLE, "RUNNING")).to_be_visible()
    expect(job(now, RUNNING, "FAILED")).to_be_visible()
    then.get_by_label("Show session as of").press("ArrowRight")
    expect(then).not_to_have_url(re.compile(f"@{while_sample_ran(recorded)}/"))
    expect(job(then, SAMPLE, "RUNNING")).to_be_visible()
    expect(now).to_have_url(f"{vanished}#/jobs")
    expect(job(now, SAMPLE, "SUCCEEDED")).to_be_visible()


def test_screen_reader_announces_times_but_no_ages(
    monitored: MonitoredBrowser, ended: str, recorded: Recording
) -> None:
    page = monitored.page()
    page.clock.install()
    page.goto(f"{ended}#/jobs")
    expect(job(page, SAMPLE, "SUCCEEDED")).to_be_visible()
    data_age, announcement = page.locator("#data-age"), page.locator("#announcement[role=status]")
    before = data_age.inner_text()
    page.clock.fast_forward("50:00:00")
    expect(data_age).not_to_have_text(before)
    expect(announcement).to_have_text("Ended")
    click_on_slider(page, while_sample_ran(recorded))
    expect(announcement).to_contain_text("As of")


def test_vanished_session_can_be_shown_as_of_a_time(
    monitored: MonitoredBrowser, vanished: str, recorded: Recording
) -> None:
    page = monitored.open(f"{vanished}#/jobs")
    expect(page.locator("#state")).to_contain_text("Vanished")
    expect(page.locator("#data-age")).to_contain_text("Last data")
    expect(job(page, RUNNING, "FAILED", "The session vanished at")).to_be_visible()
    save_screenshot(page, "frame-vanished")
    click_on_slider(page, while_sample_ran(recorded))
    expect(job(page, RUNNING, "RUNNING")).to_be_visible()


def test_markup_in_entrypoint_and_url_is_escaped(monitored: MonitoredBrowser, ended: str) -> None:
    """The entrypoint and the URL contain a script."""
    page = monitored.open(f"{ended}#/jobs")
    expect(job(page, FAILING, "<script>document.title=")).to_be_visible()
    page.goto(f"{ended}?x={HOSTILE_ARGUMENT}#/jobs?x={HOSTILE_ARGUMENT}")
    expect(job(page, FAILING, "FAILED")).to_be_visible()
    expect(page.locator("#markers i").first).to_be_visible()
    assert "owned" not in page.title()


def test_bar_follows_the_theme_of_the_dashboard(monitored: MonitoredBrowser, ended: str) -> None:
    """The theme switch of Ray's dashboard changes both."""

    def background() -> str:
        return str(page.locator("#bar").evaluate("bar => getComputedStyle(bar).backgroundColor"))

    page = monitored.open(f"{ended}#/jobs")
    expect(job(page, SAMPLE)).to_be_visible()
    light = background()
    frame(page).get_by_role("button", name=re.compile("dark mode", re.IGNORECASE)).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert background() != light
    save_screenshot(page, "frame-dark")


@pytest.mark.parametrize("width", [1280, 800])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bar_with_gaps_and_a_headline_keeps_its_button_on_the_first_row(
    monitored: MonitoredBrowser, vanished: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    page = monitored.page()
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(vanished)
    page.locator("#gaps").evaluate("link => { link.hidden = false; link.lastElementChild.textContent = '12 gaps' }")
    expect(page.locator("#verdict")).not_to_have_text("Diagnosis")
    expect(page.locator("#timeline")).to_be_visible()
    home: Any = page.locator(".bar .home").bounding_box()
    button: Any = page.get_by_role("button", name="Hide this bar").bounding_box()
    assert home["y"] <= button["y"] + button["height"] / 2 <= home["y"] + home["height"]
    assert button["x"] > width - 60
    for name in ("#gaps", "#verdict", ".bar-search"):
        box: Any = page.locator(name).bounding_box()
        assert box["x"] + box["width"] <= button["x"]
    save_screenshot(page, f"frame-gaps-and-headline-{scheme}-{width}")


def test_gaps_page_links_back_to_the_session(monitored: MonitoredBrowser, vanished: str) -> None:
    page = monitored.open(f"{vanished}gaps")
    expect(page.get_by_text("1 job was still running when the cluster ended")).to_be_visible()
    save_screenshot(page, "gaps")
    page.get_by_role("link", name="Back to the session").click()
    expect(frame(page).get_by_text("Recent jobs")).to_be_visible()


def test_bar_follows_a_running_session_until_it_vanishes(
    monitored: MonitoredBrowser, recorded: Recording, tmp_path: Path
) -> None:
    """The session is running while its heartbeat is recent. The bar follows without a reload."""
    shutil.copytree(recorded.store, tmp_path / "store", ignore=shutil.ignore_patterns("index"))
    alive = tmp_path / "store" / Layout().alive_key(recorded.vanished)
    os.utime(alive, (time.time() + 3600, time.time() + 3600))
    with running_server(tmp_path / "store", tmp_path / "work") as address:
        page = monitored.open(f"{address}{recorded.vanished.url}#/jobs")
        expect(page.locator("#state")).to_contain_text("Running")
        expect(page.locator("#data-age")).to_contain_text("Data as of")
        expect(page.get_by_role("button", name="Back to now")).to_be_visible()
        expect(job(page, RUNNING, "RUNNING")).to_be_visible()
        save_screenshot(page, "frame-running")
        os.utime(alive, (time.time() - 3600, time.time() - 3600))
        expect(page.locator("#state")).to_contain_text("Vanished")
        expect(page.get_by_role("button", name="Jump to end")).to_be_visible()
        monitored.close()
