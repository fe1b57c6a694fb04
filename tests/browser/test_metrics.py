"""Ray's charts of a dead session in a real browser: all panels of a dashboard, and the frontend's pages."""

import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

from browser.monitored_browser import MonitoredBrowser, save_screenshot
from recorded.recorder import Recording

UID = "rayDefaultDashboard"
DRAWN = re.compile("drawn|empty")


@pytest.fixture(scope="module")
def session(recorded: Recording, history: str) -> str:
    return f"{history}{recorded.ref.url}"


def charts(session: str, path: str = "", **params: str) -> Any:
    response = httpx.get(f"{session}api/history/charts/{UID}{path}", params=params, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def open_panel(page: Page | FrameLocator, panel_id: int) -> Locator:
    """Scroll to a panel, which loads it, and wait until it is drawn."""
    card = page.locator(f'[data-panel="{panel_id}"]')
    card.scroll_into_view_if_needed()
    expect(card.locator(".chart-body")).to_have_attribute("data-state", DRAWN)
    return card


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_panel_of_the_default_dashboard_is_drawn(monitored: MonitoredBrowser, session: str, theme: str) -> None:
    """Each panel shows the series that the API returns; the others say that there is no data."""
    page = monitored.open(f"{session}grafana/d/{UID}/?theme={theme}&kiosk=1&from=now-5m&to=now&timezone=UTC")
    drawn = 0
    for row in charts(session)["rows"]:
        if row["collapsed"]:
            page.get_by_text(row["title"], exact=True).click()
        for panel in row["panels"]:
            card = open_panel(page, panel["id"])
            data = charts(session, f"/panels/{panel['id']}", **{"from": "now-5m", "to": "now"})
            expect(card.locator(".chart-body")).to_have_attribute("data-series", str(len(data["series"])))
            names = {each["name"] for each in data["series"]}
            if names:
                drawn += 1
                expect(card.locator("canvas")).to_be_visible()
                assert set(card.locator(".chart-legend button").all_text_contents()) == names
            else:
                expect(card.get_by_text("No data")).to_be_visible()
    assert drawn > 15
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.evaluate("scrollTo(0, 0)")
    save_screenshot(page, f"metrics-{theme}")


def test_values_in_the_legend_are_those_of_the_api(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}grafana/d-solo/{UID}/default-dashboard?theme=light&panelId=24&from=now-5m&to=now")
    card = open_panel(page, 24)
    for each in charts(session, "/panels/24", **{"from": "now-5m"})["series"]:
        (last,) = [value for value in each["values"] if value is not None][-1:]
        row = card.get_by_role("row").filter(has_text=each["name"])
        expect(row.locator("td").last).to_have_text(f"{last:g} nodes")


def test_dragging_zooms_all_charts_and_double_click_resets(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}grafana/d/{UID}/?theme=light&from=now-5m&to=now&timezone=UTC")
    plot = open_panel(page, 41).locator(".u-over")
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20, steps=5)
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    assert re.search(r"from=\d{13}&to=\d{13}", page.url)
    page.get_by_role("button", name="Reset zoom").click()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()


def test_unmodified_metrics_page_and_overview_show_charts(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}#/metrics")
    frame = page.frame_locator("#dashboard").frame_locator("iframe")
    open_panel(frame, 41)
    save_screenshot(page, "metrics-page")
    page = monitored.open(f"{session}#/overview")
    cards = page.frame_locator("#dashboard").locator("iframe")
    expect(cards).to_have_count(2)
    open_panel(page.frame_locator("#dashboard").frame_locator("iframe >> nth=0"), 41)


def test_click_on_a_marker_moves_the_slider(monitored: MonitoredBrowser, session: str) -> None:
    """Failures are marked on all charts; the session is shown as of the time of the marker."""
    page = monitored.open(f"{session}#/metrics")
    frame = page.frame_locator("#dashboard").frame_locator("iframe")
    markers = httpx.get(f"{session}api/history/chart_markers", timeout=60).json()["markers"]
    data = charts(session, "/panels/41", **{"from": "now-5m", "to": "now"})
    marker = next(
        each for each in markers if each["kind"] == "failure" and data["from_ms"] < each["at_ms"] < data["times"][-2]
    )
    plot = open_panel(frame, 41).locator(".u-over")
    box = plot.bounding_box()
    assert box
    share = (marker["at_ms"] - data["from_ms"]) / (data["to_ms"] - data["from_ms"])
    plot.click(position={"x": box["width"] * share, "y": 20})
    expect(page).to_have_url(re.compile(r"@\d{13}/"))
