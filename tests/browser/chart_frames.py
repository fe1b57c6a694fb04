"""Charts in the frames of Ray's frontend."""

import re
from urllib.parse import parse_qs, urlsplit

import httpx
from playwright.sync_api import Page, expect


def expect_charts_of_the_api(page: Page, session: str) -> int:
    """Wait until each panel of each chart frame is drawn, with the series of the API; return the number with series."""
    frames, drawn = page.locator("iframe"), 0
    expect(frames.first).to_be_attached()
    for number in range(frames.count()):
        address = urlsplit(frames.nth(number).get_attribute("src") or "")
        query = {key: found for key, found in parse_qs(address.query).items() if key.startswith(("from", "to", "var-"))}
        uid = address.path.removeprefix("grafana/").split("/")[1]
        frame = page.frame_locator("iframe").nth(number)
        frames.nth(number).scroll_into_view_if_needed()
        expect(frame.locator("[data-panel]").first).to_be_attached()
        panels = frame.locator("[data-panel]")
        for place in range(panels.count()):
            card = panels.nth(place)
            card.scroll_into_view_if_needed()
            body = card.locator(".chart-body")
            expect(body).to_have_attribute("data-state", re.compile("drawn|empty"))
            panel = f"{session}api/history/charts/{uid}/panels/{card.get_attribute('data-panel')}"
            series = httpx.get(panel, params=query, timeout=60).raise_for_status().json()["series"]
            expect(body).to_have_attribute("data-series", str(len(series)))
            drawn += bool(series)
    return drawn
