"""Sign-in in a real browser: with the login page, and with Ray's own dialog."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from browser.monitored_browser import TIMEOUT_MS, MonitoredBrowser, chromium, save_screenshot
from support.recorded_sample import REF, settings_for
from support.two_namespaces import (
    ALLOWED_TOKEN,
    HIDDEN,
    UNKNOWN_TOKEN,
    run_historyserver,
    store_sessions,
    write_access_file,
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("signing-in")
    store_sessions(settings_for(directory))
    with run_historyserver(directory, "--auth=token", f"--access-file={write_access_file(directory)}") as address:
        yield address


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_login_page_signs_in_and_redirects(context: BrowserContext, address: str) -> None:
    page = context.new_page()
    page.goto(f"{address}{REF.url}?bare=always")
    expect(page).to_have_url(re.compile(r"/login\?next="))
    sign_in(page, UNKNOWN_TOKEN)
    expect(page.get_by_role("alert")).to_have_text("Forbidden: Invalid authentication token")
    save_screenshot(page, "login")
    sign_in(page, ALLOWED_TOKEN)
    expect(page).to_have_url(re.compile(rf"{REF.url}\?bare=always"))
    expect(page.get_by_text("Overview").first).to_be_visible()
    (cookie,) = (each for each in context.cookies() if each["name"] == "rayhistory-token")
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert ALLOWED_TOKEN not in page.evaluate("document.cookie")
    page.goto(f"{address}/home")
    expect(page.get_by_text(REF.cluster).first).to_be_visible()
    expect(page.get_by_text(HIDDEN.cluster)).to_have_count(0)
    page.goto(address + HIDDEN.url)
    expect(page.get_by_text(f"ada may not see the namespace {HIDDEN.namespace}")).to_be_visible()
    page.goto(f"{address}/login")
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{address}/home")
    expect(page).to_have_url(re.compile(r"/login\?next="))


def test_ray_dialog_reappears_after_sign_out(context: BrowserContext, address: str) -> None:
    page = context.new_page()
    page.goto(f"{address}/login?next={REF.url}?bare=always")
    sign_in(page, ALLOWED_TOKEN)
    expect(page.get_by_text("Overview").first).to_be_visible()
    context.clear_cookies()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Authentication Token Required")
    save_screenshot(page, "ray-login-dialog")
    dialog.locator("input").fill(ALLOWED_TOKEN)
    dialog.get_by_role("button", name="Submit").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("link", name="Jobs").first.click()
    expect(page.get_by_text("SUCCEEDED").first).to_be_visible()


def test_content_security_policy_allows_every_page_of_ray(browser: Browser, address: str) -> None:
    monitored = MonitoredBrowser(browser)
    try:
        page = monitored.open(f"{address}/login?next={REF.url}?bare=always")
        sign_in(page, ALLOWED_TOKEN)
        for name in ("Overview", "Jobs", "Serve", "Cluster", "Actors", "Logs"):
            page.get_by_role("link", name=name, exact=True).first.click()
            expect(page.locator("#root")).to_contain_text(name)
            page.wait_for_load_state("networkidle")
        assert monitored.errors == []
    finally:
        monitored.close()
