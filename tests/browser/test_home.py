"""The list of sessions in a real browser: found by keys and by clicks, with and without scripts, light and dark."""

import re
import shutil
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browser.watched import Watched, chromium, keep_picture
from rayhistory.layout import Layout, SessionRef
from recorded.recorder import Recorded
from recorded.served import serving

HOSTILE = "<script>document.title='owned'</script>"
MANY = 120
NOT_AHEAD = "import os\nos.environ['RAYHISTORY_INDEX_AHEAD'] = 'false'\n"


@pytest.fixture(scope="module")
def home(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a home with the recorded sessions, and many older ones of which only the names are known."""
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
    with serving(directory / "store", directory / "work", at_start=NOT_AHEAD) as address:
        yield f"{address}/home"


@pytest.fixture(scope="module")
def browser(home: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def rows(page: Page) -> Locator:
    return page.locator("tr.session")


def test_sessions_are_found_by_owner_time_and_words(watched: Watched, home: str) -> None:
    """Every choice is in the address, and can be taken back."""
    page = watched.open(home)
    expect(page.locator("#result-count")).to_contain_text(f"{MANY + 2} sessions, 50 on this page")
    keep_picture(page, "home-many")
    page.get_by_label("Owner").select_option(label="RayService")
    expect(page).to_have_url(re.compile("owner=rayservice"))
    expect(page.locator("#result-count")).to_contain_text(f"{MANY // 3} sessions found")
    page.get_by_label("Started", exact=True).select_option(label="Last 7 days")
    expect(page).to_have_url(re.compile("owner=rayservice.*since=7d"))
    expect(rows(page)).to_have_count(2)
    page.get_by_role("link", name="Clear filters").click()
    page.get_by_label("Search sessions").fill("cluster-007 prod research")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No session matches")).to_be_visible()
    page.get_by_label("Search sessions").fill("cluster-007")
    page.keyboard.press("Enter")
    expect(rows(page)).to_have_count(1)
    page.go_back()
    expect(page.get_by_text("No session matches")).to_be_visible()


def test_an_owner_leads_to_its_sessions(watched: Watched, home: str) -> None:
    page = watched.open(f"{home}?q=shop")
    page.get_by_role("link", name="RayService shop").first.click()
    expect(page).to_have_url(re.compile(r"owner=rayservice%2Fshop"))
    expect(page.get_by_label("Owner")).to_have_value("rayservice/shop")
    expect(page.locator("#result-count")).to_contain_text(f"{MANY // 3} sessions found")


def test_days_are_chosen_in_a_menu(watched: Watched, home: str) -> None:
    day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 5 * 86_400))
    page = watched.open(home)
    page.locator("summary", has_text="Dates").click()
    page.get_by_label("Started from").fill(day)
    page.get_by_label("until").fill(day)
    page.get_by_role("button", name="Apply").filter(visible=True).click()
    expect(page).to_have_url(re.compile(f"from={day}&to={day}"))
    expect(rows(page)).to_have_count(1)
    expect(page.locator("summary", has_text=day)).to_be_visible()


def test_a_time_in_the_address_stays_when_something_else_is_chosen(watched: Watched, home: str) -> None:
    page = watched.open(f"{home}?from=2020-11-15T19:20Z&to=2020-11-16T00:00Z")
    expect(page.locator("#result-count")).to_contain_text("0 sessions found")
    page.get_by_label("Owner").select_option(label="RayJob")
    expect(page).to_have_url(re.compile("owner=rayjob.*from=2020-11-15T19%3A20Z&to=2020-11-16T00%3A00Z"))
    expect(page.locator("#result-count")).to_contain_text("0 sessions found")


def test_pages_and_orders_are_links(watched: Watched, home: str) -> None:
    page = watched.open(home)
    page.get_by_role("link", name="Next").click()
    page.get_by_role("link", name="Next").click()
    expect(rows(page)).to_have_count(MANY + 2 - 100)
    page.get_by_role("columnheader", name="Cluster").get_by_role("link").click()
    expect(rows(page).first).to_contain_text("raycluster-000")
    expect(page.get_by_role("columnheader", name="Cluster")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("columnheader", name="Cluster").get_by_role("link").click()
    expect(rows(page).first).to_contain_text("vanished")


def test_the_list_is_used_by_keys_alone(watched: Watched, home: str, recorded: Recorded) -> None:
    """A slash searches, arrows choose, Enter opens."""
    page = watched.open(home)
    page.keyboard.press("/")
    page.keyboard.type(f"{recorded.ref.cluster}\n")
    expect(rows(page)).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(rows(page).first.get_by_role("link", name="Enter")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.frame_locator("#dashboard").get_by_text("Recent jobs")).to_be_visible()


def test_a_row_tells_what_is_known_and_says_what_is_not(watched: Watched, home: str, recorded: Recorded) -> None:
    """Of the session that was entered, its counts; of one that nobody indexed, that."""
    page = watched.open(home.replace("/home", recorded.ref.url))
    expect(page.frame_locator("#dashboard").get_by_text("Recent jobs")).to_be_visible()
    page.goto(f"{home}?q={recorded.ref.cluster}")
    row = rows(page).first
    for text in ("1 succeeded", "1 failed", "1 stopped", recorded.ref.namespace, "2.60"):
        expect(row).to_contain_text(text)
    page.goto(f"{home}?sort=started")
    expect(rows(page).first).to_contain_text("not indexed yet")


def test_the_list_works_without_scripts(browser: Browser, home: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1400, "height": 900})
    try:
        page = context.new_page()
        page.goto(home)
        page.get_by_label("Owner").select_option(label="RayJob")
        page.get_by_role("button", name="Apply").filter(visible=True).first.click()
        expect(page).to_have_url(re.compile("owner=rayjob"))
        expect(page.locator("#result-count")).to_contain_text(f"{MANY // 3} sessions found")
        keep_picture(page, "home-without-scripts")
        page.get_by_role("link", name="This view as JSON").click()
        expect(page.locator("body")).to_contain_text('"owner_kind":"rayjob"')
    finally:
        context.close()


def test_what_is_searched_for_stays_text(watched: Watched, home: str) -> None:
    page = watched.open(f"{home}?q={HOSTILE}")
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    expect(page.get_by_label("Search sessions")).to_have_value(HOSTILE)
    assert "owned" not in page.title()


@pytest.mark.parametrize(("width", "scheme"), [(1500, "dark"), (800, "light"), (420, "dark")])
def test_the_list_fits_its_window(browser: Browser, home: str, width: int, scheme: str) -> None:
    """Nothing has to be scrolled sideways, on a screen or on a telephone."""
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.goto(home)
        expect(rows(page).first).to_be_visible()
        keep_picture(page, f"home-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        context.close()


def test_a_mistake_in_the_address_is_told(browser: Browser, home: str) -> None:
    watched = Watched(browser)
    page = watched.open(f"{home}?since=yesterday")
    expect(page.get_by_text("since is a number of hours or days")).to_be_visible()
    page.get_by_role("link", name="All sessions").click()
    expect(rows(page).first).to_be_visible()
    watched.close()
    assert [trouble for trouble in watched.troubles if "400" not in trouble] == []
