"""A browser that records errors of the console, of scripts and of requests."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, Response, expect, sync_playwright

CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Names of the program, first the one that needs least CPU."""

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
TIMEOUT_MS = 30_000


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert found, "the browser tests need Chromium: install the package 'chromium'"
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu", *flags])
        try:
            yield browser
        finally:
            browser.close()


class MonitoredBrowser:
    """Pages of one browser; all errors of them are in `errors`."""

    def __init__(self, browser: Browser) -> None:
        self._context = browser.new_context(viewport={"width": 1500, "height": 1100}, accept_downloads=True)
        self._context.set_default_timeout(TIMEOUT_MS)
        self.errors: list[str] = []
        self.expected_404s: set[str] = set()
        """Ends of addresses that may be missing."""
        self._pending: dict[Page, set[Request]] = {}

    def page(self) -> Page:
        page = self._context.new_page()
        pending = self._pending[page] = set()
        # Playwright does not accept built-in functions.
        page.on("request", lambda request: pending.add(request))  # noqa: PLW0108
        for end in ("requestfinished", "requestfailed"):
            page.on(end, lambda request: pending.discard(request))  # noqa: PLW0108
        page.on("console", self._console)
        page.on("pageerror", self._page_error)
        page.on("requestfailed", self._request_failed)
        page.on("response", self._response)
        return page

    def open(self, address: str) -> Page:
        page = self.page()
        page.goto(address)
        return page

    def settle(self, page: Page) -> None:
        """Wait until all requests of the page have a response."""
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while pending := self._pending[page]:
            assert time.monotonic() < deadline, f"no response: {[request.url for request in pending]}"
            page.wait_for_timeout(50)

    def close(self) -> None:
        """Close all pages. Requests that this aborts are not errors."""
        errors = list(self.errors)
        self._context.close()
        self.errors = errors

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not self._may_be_missing(message.location.get("url", "")):
            self.errors.append(f"console: {message.text} at {message.location.get('url')}")

    def _page_error(self, error: Error) -> None:
        self.errors.append(f"script: {error}")

    def _request_failed(self, request: Request) -> None:
        # Chromium aborts requests that become downloads, and requests of a page that is closed.
        if request.failure != "net::ERR_ABORTED":
            self.errors.append(f"request: {request.failure} for {request.method} {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and not (response.status == 404 and self._may_be_missing(response.url)):
            self.errors.append(f"response: {response.status} for {response.request.method} {response.url}")

    def _may_be_missing(self, url: str) -> bool:
        return url.endswith(tuple(self.expected_404s))


def save_screenshot(page: Page, name: str) -> None:
    """Keep a picture of the page for a person to look at, if RAYHISTORY_TEST_SCREENSHOTS is set: it needs CPU."""
    if not os.environ.get("RAYHISTORY_TEST_SCREENSHOTS"):
        return
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)
