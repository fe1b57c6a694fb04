"""The diagnosis where people look: its page, the bar, the slider, pages of tasks, actors and nodes, the list."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from browser.monitored_browser import MonitoredBrowser, save_screenshot
from failures.fixtures import unpack
from rayhistory.sessions import SessionRef
from support.server_process import running_server

NODE_DIED = re.compile("Node .* died at .*3 tasks, 1 job failed because of it")
RAISED = re.compile("ValueError: cannot parse record 3")
_DIAGNOSED_S = 60.0


_CASES = ("crashes-lost_node-kill_node", "exceptions-task_raises", "exceptions-actor_init_raises")


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, SessionRef, SessionRef, SessionRef]:
    """Recorded failures of real Ray in one store: a lost node, a task that raised, an actor whose __init__ raised."""
    directory = tmp_path_factory.mktemp("failures")
    lost_node, raised, actor = (unpack(case, directory) for case in _CASES)
    return str(directory), lost_node, raised, actor


@pytest.fixture(scope="module")
def history(
    sessions: tuple[str, SessionRef, SessionRef, SessionRef], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    directory, *refs = sessions
    work = tmp_path_factory.mktemp("server")
    with running_server(work.parent / directory / "store", work) as address:
        for ref in refs:
            for _ in range(3):  # each waits for the build
                if httpx.get(f"{address}{ref.url}api/history/diagnosis", timeout=_DIAGNOSED_S).status_code == 200:
                    break
        yield address


@pytest.fixture
def lost_node(history: str, sessions: tuple[str, SessionRef, SessionRef, SessionRef]) -> str:
    return history + sessions[1].url


@pytest.fixture
def raised(history: str, sessions: tuple[str, SessionRef, SessionRef, SessionRef]) -> str:
    return history + sessions[2].url


def rows(session: str, table: str, **params: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = httpx.get(f"{session}api/history/rows/{table}", params=params).json()["rows"]
    return found


def has_no_sideways_scroll(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_page_shows_verdict_timeline_evidence_and_where_time_went(
    monitored: MonitoredBrowser, raised: str, scheme: str, width: int
) -> None:
    page = monitored.page()
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{raised}diagnosis")
    expect(page.get_by_label("Verdict")).to_contain_text(RAISED)
    timeline = page.get_by_label("Timeline of findings")
    times = timeline.locator(".finding-times time").evaluate_all("all => all.map(each => each.dateTime)")
    assert times
    assert times == sorted(times)
    timeline.get_by_role("link", name=RAISED).last.click()
    assert page.url.endswith("#finding-0")
    expect(page.locator("#finding-0 pre").first).to_contain_text("raise ValueError")
    expect(page.get_by_role("img", name="Tasks by state over time")).to_be_visible()
    assert has_no_sideways_scroll(page)
    save_screenshot(page, f"diagnosis-{scheme}-{width}")


def test_bar_leads_to_the_diagnosis_and_the_slider_names_the_finding(
    monitored: MonitoredBrowser, lost_node: str
) -> None:
    page = monitored.page()
    page.goto(f"{lost_node}#/overview")
    verdict = page.locator("#verdict")
    expect(verdict).to_have_text(NODE_DIED)
    page.get_by_label("Previous failure").click()
    expect(page.get_by_label("Show session as of")).to_have_attribute("aria-valuetext", NODE_DIED)
    verdict.click()
    expect(page.get_by_role("heading", name="Diagnosis")).to_be_visible()


def test_pages_of_tasks_and_nodes_name_their_finding(monitored: MonitoredBrowser, lost_node: str) -> None:
    """Each of the tasks of the lost node, not only the one in the evidence."""
    page = monitored.page()
    failed = rows(lost_node, "tasks", where="state=FAILED", columns="task_id,node_id,name")
    for task in [row for row in failed if row["name"] == "on_other_node"][-2:]:
        page.goto(f"{lost_node}#/tasks/{task['task_id']}")
        expect(page.locator("#verdict")).to_have_attribute("href", re.compile("#finding-0$"))
        expect(page.locator("#verdict")).to_have_text(NODE_DIED)
    (node,) = rows(lost_node, "nodes", where="state=DEAD", columns="node_id,is_head")[:1]
    page.goto(f"{lost_node}#/cluster/nodes/{node['node_id']}")
    expect(page.locator("#verdict")).to_have_attribute("href", re.compile("#finding-0$"))


def test_page_of_an_actor_names_its_finding(
    monitored: MonitoredBrowser, history: str, sessions: tuple[str, SessionRef, SessionRef, SessionRef]
) -> None:
    session = history + sessions[3].url
    (actor,) = rows(session, "actors", where="state=DEAD and class_name=Model", columns="actor_id")
    page = monitored.page()
    page.goto(f"{session}#/actors/{actor['actor_id']}")
    expect(page.locator("#verdict")).to_have_text(re.compile("Actor Model could not be created"))
    expect(page.locator("#verdict")).to_have_attribute("href", re.compile("#finding-0$"))


def test_list_of_sessions_shows_the_headline(monitored: MonitoredBrowser, history: str) -> None:
    page = monitored.page()
    page.goto(f"{history}/home")
    page.set_viewport_size({"width": 1280, "height": 800})
    for headline in (RAISED, NODE_DIED):
        box = page.get_by_role("link", name=headline).bounding_box()
        assert box
        assert box["height"] < 60  # at most three lines
        assert box["width"] > 150
    assert has_no_sideways_scroll(page)
    page.get_by_role("link", name=NODE_DIED).click()
    expect(page.get_by_label("Verdict")).to_have_text(NODE_DIED)


def test_headline_stays_in_its_cell_of_a_narrow_list(monitored: MonitoredBrowser, history: str) -> None:
    page = monitored.page()
    page.set_viewport_size({"width": 800, "height": 900})
    page.goto(f"{history}/home")
    for headline in (RAISED, NODE_DIED):
        link = page.get_by_role("link", name=headline)
        box, cell = link.bounding_box(), page.locator("td.name").filter(has=link).bounding_box()
        assert box
        assert cell
        assert box["x"] + box["width"] <= cell["x"] + cell["width"]
    save_screenshot(page, "home-headline-800")


@pytest.mark.parametrize("width", [700, 800, 880])
def test_bar_of_a_narrow_window_has_most_of_the_headline(monitored: MonitoredBrowser, raised: str, width: int) -> None:
    page = monitored.page()
    page.set_viewport_size({"width": width, "height": 700})
    page.goto(f"{raised}#/overview")
    verdict, search = page.locator("#verdict").bounding_box(), page.locator(".bar-search").bounding_box()
    assert verdict
    assert search
    assert verdict["width"] >= width / 2
    assert (
        abs(verdict["y"] + verdict["height"] / 2 - search["y"] - search["height"] / 2) < 4
    )  # on the row of the search
    assert has_no_sideways_scroll(page)
