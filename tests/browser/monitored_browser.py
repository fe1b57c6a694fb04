"""A browser that notices what a visitor would not: errors in the console, in scripts and in requests."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, Response, expect, sync_playwright

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
PATIENCE_MS = 30_000

# Ray hides its page of platform events when this is not there.
_MEANT_TO_BE_ABSENT = "/api/v0/platform_events"


@contextmanager
def chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "the browser tests need Chromium: install the package 'chromium'"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """Pages of one browser; whatever goes wrong in any of them is in `troubles`."""

    def __init__(self, browser: Browser) -> None:
        self._context = browser.new_context(viewport={"width": 1500, "height": 1100}, accept_downloads=True)
        self._context.set_default_timeout(PATIENCE_MS)
        self.troubles: list[str] = []
        self._under_way: dict[Page, set[Request]] = {}

    def page(self) -> Page:
        page = self._context.new_page()
        under_way = self._under_way[page] = set()
        # Playwright takes no functions that are built in.
        page.on("request", lambda request: under_way.add(request))  # noqa: PLW0108
        for end in ("requestfinished", "requestfailed"):
            page.on(end, lambda request: under_way.discard(request))  # noqa: PLW0108
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
        """Waits until all that the page has asked for is answered."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while waiting := self._under_way[page]:
            assert time.monotonic() < deadline, f"not answered: {[request.url for request in waiting]}"
            page.wait_for_timeout(50)

    def close(self) -> None:
        """What is given up because of this is no trouble."""
        troubles = list(self.troubles)
        self._context.close()
        self.troubles = troubles

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.location.get("url", "").endswith(_MEANT_TO_BE_ABSENT):
            self.troubles.append(f"console: {message.text} at {message.location.get('url')}")

    def _page_error(self, error: Error) -> None:
        self.troubles.append(f"script: {error}")

    def _request_failed(self, request: Request) -> None:
        # Chromium aborts requests itself: those that become a file, and those of a page that is left.
        if request.failure != "net::ERR_ABORTED":
            self.troubles.append(f"request: {request.failure} for {request.method} {request.url}")

    def _response(self, response: Response) -> None:
        meant = response.status == 404 and response.url.endswith(_MEANT_TO_BE_ABSENT)
        if response.status >= 400 and not meant:
            self.troubles.append(f"answer: {response.status} for {response.request.method} {response.url}")


def keep_picture(page: Page, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)
