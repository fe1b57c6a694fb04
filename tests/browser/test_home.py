"""The list of sessions in a real browser: keyboard and mouse, with and without JavaScript, light and dark."""

import re
import shutil
import time
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browser.monitored_browser import MonitoredBrowser, chromium, save_screenshot
from rayhistory.sessions import Layout, SessionRef
from recorded.recorder import Recording
from recorded.workloads import SAMPLE
from support.server_process import running_server

HOSTILE = "<script>document.title='owned'</script>"
MANY = 120
RECORDED = re.compile("recorded|vanished")
"""The clusters of the recorded session."""
NOT_AHEAD = "import os\nos.environ['RAYHISTORY_INDEX_AHEAD'] = 'false'\n"


@pytest.fixture(scope="module")
def home(recorded: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with the recorded sessions, and many older ones that have only a name."""
    directory = tmp_path_factory.mktemp("home")
    shutil.copytree(recorded.store, directory / "store")
    for number in range(MANY):
        began = time.gmtime(time.time() - (number + 2) * 86_400)
        session = time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_1", began)
        kind, owner = [("rayjob", f"nightly-{number}"), ("rayservice", "shop"), (None, None)][number % 3]
        ref = SessionRef(("prod", "research")[number % 2], f"raycluster-{number:03}", session, kind, owner)
        path = directory / "store" / Layout().metadata_key(ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with running_server(directory / "store", directory / "work", at_start=NOT_AHEAD) as address:
        httpx.get(f"{address}{recorded.ref.url}api/jobs/", timeout=60).raise_for_status()  # index this one
        yield f"{address}/home"


@pytest.fixture(scope="module")
def browser(home: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def rows(page: Page) -> Locator:
    return page.locator("tr.session")


def test_sessions_are_filtered_by_owner_time_and_words(monitored: MonitoredBrowser, home: str) -> None:
    """Every filter is in the URL, and can be cleared."""
    page = monitored.open(home)
    expect(page.locator("#result-count")).to_contain_text(f"{MANY + 2} sessions, 50 on this page")
    save_screenshot(page, "home-many")
    page.get_by_label("Owner").select_option(label="RayService")
    expect(page).to_have_url(re.compile("owner=rayservice"))
    expect(page.locator("#result-count")).to_contain_text(f"{MANY // 3} sessions found")
    page.get_by_label("Started", exact=True).select_option(label="Last 7 days")
    expect(page).to_have_url(re.compile("owner=rayservice.*since=7d"))
    expect(rows(page)).to_have_count(2)
    page.get_by_role("link", name="Clear filters").click()
    page.get_by_label("Search sessions").fill("cluster-007 prod research")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No matching sessions")).to_be_visible()
    page.get_by_label("Search sessions").fill("cluster-007")
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(1)
    page.go_back()
    expect(page.get_by_text("No matching sessions")).to_be_visible()


@pytest.mark.parametrize(
    ("words", "cluster"),
    [
        (SAMPLE, RECORDED),
        ("jobs/failing.py", RECORDED),
        ("training", RECORDED),
        (f"{SAMPLE} training default", RECORDED),
        ("nightly-117", "raycluster-117"),
    ],
    ids=["submission id", "entrypoint", "metadata", "several words", "owner"],
)
def test_search_finds_jobs_and_owners(
    monitored: MonitoredBrowser, home: str, words: str, cluster: str | re.Pattern[str]
) -> None:
    page = monitored.open(home)
    page.get_by_label("Search sessions").fill(words)
    page.keyboard.press("Enter")
    expect(page.locator("#result-count")).to_contain_text("found")
    expect(rows(page).first).to_contain_text(cluster)
    expect(rows(page).filter(has_not_text=cluster)).to_have_count(0)


def test_failures_filter_and_sort_the_list(monitored: MonitoredBrowser, home: str) -> None:
    """Both are links, so they work without JavaScript and can be shared."""
    page = monitored.open(f"{home}?sort=started")
    expect(rows(page).first).not_to_contain_text(RECORDED)
    heading = page.get_by_role("columnheader", name="Failed tasks")
    heading.get_by_role("link").click()
    expect(heading).to_have_attribute("aria-sort", "descending")
    expect(rows(page).first).to_contain_text(RECORDED)
    failed = page.get_by_role("button", name="Failed", exact=True)
    failed.click()
    expect(page).to_have_url(re.compile("failed=1.*sort=failed"))
    expect(rows(page).filter(has_text="raycluster")).to_have_count(0)
    expect(failed).to_have_attribute("aria-pressed", "true")
    failed.click()
    expect(page.locator("#result-count")).to_contain_text(f"{MANY + 2} sessions")


def test_counts_are_links_to_what_they_count(monitored: MonitoredBrowser, home: str, recorded: Recording) -> None:
    page = monitored.open(f"{home}?cluster={recorded.ref.cluster}")
    targets = {
        "Jobs": "#/jobs",
        "Tasks": "#/jobs",
        "Failed tasks": "#/jobs",
        "Actors": "#/actors",
        "Nodes": "#/cluster",
    }
    for column, target in targets.items():
        link = rows(page).locator(f"td[data-label='{column}'] a").first
        expect(link).to_have_text(re.compile("[1-9]"))
        expect(link).to_have_attribute("href", f"{recorded.ref.url}{target}")
    rows(page).locator("td[data-label=Actors] a").click()
    expect(page.frame_locator("#dashboard").get_by_text("experiment-tracker").first).to_be_visible()


def test_stored_size_and_size_of_the_index_are_both_named(
    monitored: MonitoredBrowser, home: str, recorded: Recording
) -> None:
    page = monitored.open(f"{home}?cluster={recorded.ref.cluster}")
    size = rows(page).locator("td[data-label=Size]")
    expect(size).to_have_text(re.compile(r"^\d\S* [KM]iB\s*index \d\S* KiB$"))
    expect(size.get_by_title("Stored events, logs, metrics and records")).to_be_visible()
    expect(size.get_by_title("Size of the index, which can be rebuilt")).to_be_visible()


def test_cluster_without_a_session_lists_its_sessions(
    monitored: MonitoredBrowser, home: str, recorded: Recording
) -> None:
    page = monitored.open(home.replace("/home", f"/s/{recorded.ref.namespace}/{recorded.ref.cluster}"))
    expect(page).to_have_url(re.compile(f"/home.*cluster={recorded.ref.cluster}"))
    expect(page.get_by_text(f"Cluster {recorded.ref.cluster}")).to_be_visible()
    expect(rows(page)).to_have_count(1)


def test_pages_that_do_not_exist_lead_on(browser: Browser, home: str, recorded: Recording) -> None:
    """An unknown path, and a time before the session's start. Their status is 404, and nothing else is wrong."""
    monitored = MonitoredBrowser(browser)
    session = home.replace("/home", recorded.ref.url)
    for unknown in (home.replace("/home", "/nothing"), f"{session}nothing"):
        page = monitored.open(unknown)
        expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
        page.get_by_role("link", name="All sessions").click()
        expect(rows(page).first).to_be_visible()
    page = monitored.open(f"{session.rstrip('/')}@2020-01-01T00:00:00Z/#/jobs")
    expect(page.get_by_role("heading", name="This time is before the session's start")).to_be_visible()
    page.get_by_role("link", name="Show its start").click()
    expect(page.locator("#data-age")).to_contain_text("As of")
    monitored.close()
    assert [error for error in monitored.errors if "404" not in error] == []


def test_every_page_has_an_icon(monitored: MonitoredBrowser, home: str, recorded: Recording) -> None:
    for url in (home, home.replace("/home", recorded.ref.url)):
        page = monitored.open(url)
        icon = page.locator("link[rel=icon]").evaluate("link => link.href")
        for address in (icon, home.replace("/home", "/favicon.ico")):
            response = page.request.get(address)
            assert (response.status, response.headers["content-type"]) == (200, "image/svg+xml")


def test_owner_link_filters_the_list(monitored: MonitoredBrowser, home: str) -> None:
    page = monitored.open(f"{home}?q=shop")
    page.get_by_role("link", name="RayService shop").first.click()
    expect(page).to_have_url(re.compile(r"owner=rayservice%2Fshop"))
    expect(page.get_by_label("Owner")).to_have_value("rayservice/shop")
    expect(page.locator("#result-count")).to_contain_text(f"{MANY // 3} sessions found")


def test_dates_are_selected_in_a_menu(monitored: MonitoredBrowser, home: str) -> None:
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 5 * 86_400))
    page = monitored.open(home)
    page.locator("summary", has_text="Dates").click()
    page.get_by_label("Started from").fill(day)
    page.get_by_label("until").fill(day)
    page.get_by_role("button", name="Apply").filter(visible=True).click()
    expect(page).to_have_url(re.compile(f"from={day}&to={day}"))
    expect(rows(page)).to_have_count(1)
    expect(page.locator("summary", has_text=day)).to_be_visible()


def test_time_filter_survives_other_filters(monitored: MonitoredBrowser, home: str) -> None:
    page = monitored.open(f"{home}?from=2020-11-15T19:20Z&to=2020-11-16T00:00Z")
    expect(page.locator("#result-count")).to_contain_text("0 sessions found")
    page.get_by_label("Owner").select_option(label="RayJob")
    expect(page).to_have_url(re.compile("owner=rayjob.*from=2020-11-15T19%3A20Z&to=2020-11-16T00%3A00Z"))
    expect(page.locator("#result-count")).to_contain_text("0 sessions found")


def test_pages_and_sort_orders_are_links(monitored: MonitoredBrowser, home: str) -> None:
    page = monitored.open(home)
    page.get_by_role("link", name="Next").click()
    page.get_by_role("link", name="Next").click()
    expect(rows(page)).to_have_count(MANY + 2 - 100)
    page.get_by_role("columnheader", name="Cluster").get_by_role("link").click()
    expect(rows(page).first).to_contain_text("raycluster-000")
    expect(page.get_by_role("columnheader", name="Cluster")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("columnheader", name="Cluster").get_by_role("link").click()
    expect(rows(page).first).to_contain_text("vanished")


def test_list_works_with_the_keyboard(monitored: MonitoredBrowser, home: str, recorded: Recording) -> None:
    """Slash searches, arrows select, Enter opens."""
    page = monitored.open(home)
    page.keyboard.press("/")
    page.keyboard.type(f"{recorded.vanished.cluster}\n")
    expect(rows(page)).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(rows(page).first.get_by_role("link", name="Open")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.frame_locator("#dashboard").get_by_text("Recent jobs")).to_be_visible()


def test_row_shows_known_and_unknown_values(monitored: MonitoredBrowser, home: str, recorded: Recording) -> None:
    """An indexed session has counts; another one is not indexed yet."""
    page = monitored.open(f"{home}?q={recorded.ref.cluster}")
    row = rows(page).first
    for text in ("1 succeeded", "1 failed", "1 stopped", recorded.ref.namespace, "2.60"):
        expect(row).to_contain_text(text)
    page.goto(f"{home}?sort=started")
    expect(rows(page).first).to_contain_text("not indexed yet")


def test_list_works_without_javascript(browser: Browser, home: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1400, "height": 900})
    try:
        page = context.new_page()
        page.goto(home)
        page.get_by_label("Owner").select_option(label="RayJob")
        page.get_by_role("button", name="Apply").filter(visible=True).first.click()
        expect(page).to_have_url(re.compile("owner=rayjob"))
        expect(page.locator("#result-count")).to_contain_text(f"{MANY // 3} sessions found")
        save_screenshot(page, "home-without-scripts")
        page.get_by_role("link", name="View as JSON").click()
        expect(page.locator("body")).to_contain_text('"owner_kind":"rayjob"')
    finally:
        context.close()


def test_search_text_is_escaped(monitored: MonitoredBrowser, home: str) -> None:
    page = monitored.open(f"{home}?q={HOSTILE}")
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    expect(page.get_by_label("Search sessions")).to_have_value(HOSTILE)
    assert "owned" not in page.title()


@pytest.mark.parametrize(("width", "scheme"), [(1500, "dark"), (800, "light"), (420, "dark")])
def test_list_fits_the_window(browser: Browser, home: str, width: int, scheme: str) -> None:
    """There is no horizontal scrolling, on a desktop or a phone."""
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.goto(home)
        expect(rows(page).first).to_be_visible()
        save_screenshot(page, f"home-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        context.close()


def test_invalid_url_gets_an_error_page(browser: Browser, home: str) -> None:
    monitored = MonitoredBrowser(browser)
    page = monitored.open(f"{home}?since=yesterday")
    expect(page.get_by_text("use a number of hours or days")).to_be_visible()
    page.get_by_role("link", name="All sessions").click()
    expect(rows(page).first).to_be_visible()
    monitored.close()
    assert [error for error in monitored.errors if "400" not in error] == []
