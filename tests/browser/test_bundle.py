"""A session as one file: the report opens without a server, and the archive with `rayhistory serve`."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Request, expect

from browser.monitored_browser import MonitoredBrowser, chromium
from rayhistory.bundle.report_page import MAX_BYTES
from support.recorded_sample import NODE, REF, settings_for, store_indexed_sample
from support.stored_metrics import samples, store_object

RAYHISTORY = Path(sys.executable).with_name("rayhistory")
SECRET = "hunter2"
LOG = f"loading\n<script>document.title = 'ran'</script> password={SECRET}\nRuntimeError: the last line\n"
SAMPLED_MS = 1_794_770_300_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundle")
    store_indexed_sample(settings_for(directory), {"job-driver-sub-fail.log": LOG.encode()})
    memory = samples({("ray_node_mem_used", (("ip", "10.0.0.1"),)): [1e9 * n for n in range(8)]}, SAMPLED_MS)
    store_object(directory / "store", NODE, memory, SAMPLED_MS, REF)
    return directory


@pytest.fixture(scope="module")
def browser(directory: Path) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def environment(directory: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAYHISTORY_", "STORAGE_"))}
    return inherited | {
        "LOCAL_STORAGE_DIR": str(directory / "store"), "RAYHISTORY_CACHE_DIR": str(directory / "cache")
    }  # fmt: skip


def bundle(directory: Path, name: str) -> Path:
    file = directory / name
    subprocess.run([RAYHISTORY, "bundle", REF.path, "-o", file], env=environment(directory), check=True)
    return file


def test_report_opens_without_a_server(directory: Path, monitored: MonitoredBrowser) -> None:
    report = bundle(directory, "run.html")
    assert report.stat().st_size <= MAX_BYTES
    requested = list[str]()

    def remember(request: Request) -> None:
        requested.append(request.url)

    page = monitored.page()
    page.on("request", remember)
    page.goto(report.as_uri())
    for heading in ("Findings", "Failed tasks", "Last lines of sub-fail", "Metrics", "Nodes", "Environment"):
        expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
    expect(page.get_by_text("RuntimeError: the last line")).to_be_visible()
    expect(page.locator("svg polyline").first).to_be_visible()
    expect(page).not_to_have_title("ran")
    assert SECRET not in page.content()
    assert requested == [report.as_uri()]


def test_archive_is_served_with_all_its_data(directory: Path) -> None:
    archive = bundle(directory, "run.zip")
    command: list[str | Path] = [RAYHISTORY, "serve", archive, "--port", "0", "--cache-dir", directory / "cache-2"]
    with subprocess.Popen(command, env=environment(directory), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            listed = "".join(iter(process.stdout.readline, "Press Ctrl-C to stop.\n"))
            found = re.search(rf"(http://\S+){re.escape(REF.url)}", listed)
            assert found, listed
            address = found[1] + REF.url
            with httpx.Client(base_url=address, timeout=60, trust_env=False) as session:
                assert session.get("api/history/rows/tasks", params={"count": 1}).json()["total"] > 20
                assert session.get("api/history/search", params={"q": "the last line"}).json()["hits"]
                assert session.get("api/v0/nodes").json()["result"]
        finally:
            process.terminate()
