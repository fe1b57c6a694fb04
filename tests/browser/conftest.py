"""One browser per test module, with the server of the fixture `history`."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser.monitored_browser import MonitoredBrowser, chromium


@pytest.fixture(scope="module")
def browser(history: str) -> Iterator[Browser]:
    """Start a browser after the recording: both run an event loop in this thread."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def monitored(browser: Browser) -> Iterator[MonitoredBrowser]:
    monitored = MonitoredBrowser(browser)
    try:
        yield monitored
        assert monitored.errors == []
    finally:
        monitored.close()
