"""The pages of Ray's libraries in a real browser; for a Ray that has them (`make test-matrix`)."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.watched import Watched, chromium, keep_picture
from recorded import workloads
from recorded.rays import LIBRARIES
from recorded.recorder import on_one_node, recorded_once
from recorded.served import serving
from recorded.workloads import Workload

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="RAYHISTORY_TEST_LIBRARIES names no Ray with its libraries")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Workload, str]]:
    """Of sessions that used a library, each with what is asked below."""
    with ExitStack() as servers:
        found = {}
        for workload in (workloads.data, workloads.serving):
            directory = tmp_path_factory.mktemp(workload.__name__)
            recorded = recorded_once(directory / "recorded", LIBRARIES[0], on_one_node(workload))
            server = servers.enter_context(serving(recorded.store, directory / "work"))
            found[workload] = f"{server}{recorded.ref.url}?bare=1"
        yield found


@pytest.fixture(scope="module")
def browser(addresses: dict[Workload, str]) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def sees(page: Page, *texts: str) -> None:
    for text in texts:
        expect(page.get_by_text(text).filter(visible=True).first).to_be_visible()


def test_the_page_of_a_job_shows_its_datasets(watched: Watched, addresses: dict[Workload, str]) -> None:
    page = watched.open(f"{addresses[workloads.data]}#/jobs/data-job")
    page.get_by_text("Ray Data Overview").click()
    datasets = page.get_by_role("row").filter(has_text="dataset_").filter(has_text="FINISHED")
    expect(datasets).to_have_count(2)
    for _ in range(2):
        page.get_by_role("img", name="Expand Dataset").first.click()
    for operator in ("MapBatches", "Filter"):
        expect(page.get_by_role("row").filter(has_text=operator).filter(has_text="FINISHED")).to_be_visible()
    watched.settle(page)
    keep_picture(page, "library-data")


def test_the_serve_pages_show_an_application(watched: Watched, addresses: dict[Workload, str]) -> None:
    page = watched.open(f"{addresses[workloads.serving]}#/serve")
    sees(page, "doubling", "/double", "RUNNING")
    keep_picture(page, "library-serve")
    page.get_by_role("link", name="doubling").first.click()
    for name in ("Front", "Doubler"):
        expect(page.get_by_role("row").filter(has_text=name).filter(has_text="HEALTHY")).to_be_visible()
    watched.settle(page)
    keep_picture(page, "library-serve-application")
    page.get_by_role("link", name="Doubler").first.click()
    expect(page.get_by_role("row").filter(has_text="RUNNING")).to_have_count(2)
    watched.settle(page)
    keep_picture(page, "library-serve-deployment")
