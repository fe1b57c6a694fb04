"""One browser for the tests of a file; other files have servers of their own, and say so."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser.watched import Watched, chromium


@pytest.fixture(scope="module")
def browser(history: str) -> Iterator[Browser]:
    """Its event loop runs in this thread: the recording, which has one of its own, comes before, other tests after."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    watched = Watched(browser)
    try:
        yield watched
        assert watched.troubles == []
    finally:
        watched.close()
