"""The search page and the log viewer in a real browser: streaming, stopping, keys, and nothing that runs."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, expect

from browser.monitored_browser import MonitoredBrowser, chromium, save_screenshot
from support.recorded_sample import NODE, REF, settings_for, store_indexed_sample
from support.server_process import running_server

SCHEMES: list[tuple[Literal["light", "dark"], int]] = [("light", 1280), ("dark", 1280), ("light", 390)]

LINES = b"".join(b"2026-11-15 19:%02d:%02d INFO request %d\n" % (n // 60 % 60, n % 60, n) for n in range(3000))
FILES = {
    "raylet.out": LINES,
    "gcs_server.out": b"needle <img src=x onerror=\"document.title='owned'\"> \xf0\x9f\x98\x80 needle\n",
    "colors.out": b"\x1b[36m(parse pid=7)\x1b[0m parsed \xf0\x9f\x98\x80 \x1b[1mshard\x1b[0m 3\n",
    "agent.log": b'needle {"env_vars": {"TOKEN": "s3cret"}}\n',
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a recorded session with logs, on a server of its own."""
    directory = tmp_path_factory.mktemp("search")
    store_indexed_sample(settings_for(directory), FILES)
    with running_server(directory / "store", directory / "work") as address:
        yield f"{address}{REF.url}"


@pytest.fixture(scope="module")
def browser(session: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def test_a_search_streams_and_leads_to_the_line(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}search")
    page.get_by_role("searchbox").fill("needle")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("2 matching lines")
    expect(page.locator("#search-stop")).to_be_hidden()
    expect(page.locator(".hit mark")).to_have_text(["needle", "needle", "needle"])
    assert "s3cret" not in page.content()
    assert "onerror" in page.locator(".hit").filter(has_text="gcs_server").inner_text()
    assert "q=needle" in page.url
    page.keyboard.press("Tab")
    page.locator("h1").click()
    page.keyboard.press("n")
    expect(page.locator(".hit.current")).to_have_count(1)
    page.locator(".hit.current a").click()
    expect(page.locator(".log-line.selected")).to_contain_text("needle")
    assert "owned" not in page.title()
    page.get_by_role("link", name="Start", exact=True).click()
    page.get_by_role("link", name="Back to the search").click()
    expect(page.locator(".hit")).to_have_count(2)
    assert page.url.endswith("search?q=needle&order=newest"), page.url
    page.go_back()
    page.go_back()
    page.go_back()
    expect(page.locator(".hit")).to_have_count(2)


def test_terminal_codes_of_a_hit_are_not_shown(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}search")
    page.get_by_role("searchbox").fill("shard")
    page.keyboard.press("Enter")
    expect(page.locator(".hit pre")).to_have_text("(parse pid=7) parsed \U0001f600 shard 3")
    expect(page.locator(".hit mark")).to_have_text(["shard"])


def test_all_hits_are_counted_over_time(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}search")
    page.get_by_role("searchbox").fill("request")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("status")).to_contain_text("3,000 matching lines")
    expect(page.locator(".histogram rect")).to_have_count(50)
    for scheme, width in SCHEMES:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        save_screenshot(page, f"search-{scheme}-{width}")
    page.get_by_text("1 file on 1 node").click()
    expect(page.get_by_role("cell", name="raylet.out")).to_be_visible()
    page.locator(".histogram a").first.click()
    expect(page.get_by_role("status")).to_contain_text("60 matching lines")


def test_a_search_can_be_stopped(monitored: MonitoredBrowser, session: str) -> None:
    """The stream is held back by the browser, as a long search would be."""
    page = monitored.open(f"{session}search")
    page.route("**/api/history/search?*", lambda route: None)
    page.get_by_role("searchbox").fill("request")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_contain_text("Stopped")
    page.unroute_all(behavior="ignoreErrors")


def test_the_viewer_jumps_to_a_time_in_every_theme(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}logs/{NODE}/raylet.out#L1200")
    expect(page.locator("#L1200")).to_contain_text("request 1199")
    page.get_by_label("Time (UTC)").fill("2026-11-15T19:40:00")
    page.get_by_label("Time (UTC)").press("Enter")
    expect(page.locator(".log-line.selected")).to_contain_text("19:40:00")
    for scheme, width in SCHEMES[1:]:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        save_screenshot(page, f"log-{scheme}-{width}")


def test_checkboxes_of_the_viewer_are_beside_their_labels(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}logs/{NODE}/raylet.out")
    for name in ("Match case", "Whole words", "Regular expression"):
        box: Any = page.get_by_label(name).bounding_box()
        label: Any = page.locator("label", has_text=name).bounding_box()
        assert box["height"] < 20  # as high as a text field, a checkbox is drawn above its label
        assert abs(box["y"] + box["height"] / 2 - label["y"] - label["height"] / 2) < 2


def test_the_viewer_goes_from_match_to_match(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}logs/{NODE}/raylet.out")
    box = page.get_by_role("searchbox", name="Search in this file")
    box.fill("request 199")
    box.press("Enter")
    selected = page.locator(".log-line.selected")
    expect(selected).to_contain_text("request 199")
    expect(selected.locator("mark")).to_have_text("request 199")
    page.locator("h1").click()
    page.keyboard.press("n")
    expect(selected).to_contain_text("request 1990")
    expect(selected).to_be_in_viewport()
    page.get_by_role("link", name="Next match").click()
    expect(selected).to_contain_text("request 1991")
    page.keyboard.press("p")
    expect(selected).to_contain_text("request 1990")
    for scheme, width in SCHEMES:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        save_screenshot(page, f"log-find-{scheme}-{width}")
