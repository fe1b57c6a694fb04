"""The bar over plain HTTP to another host, where browsers send no Sec-Fetch-Dest. In a browser of its own."""

from pathlib import Path

from playwright.sync_api import expect

from browser.monitored_browser import chromium
from recorded.recorder import Recording
from recorded.workloads import SAMPLE
from support.server_process import running_server


def test_tab_over_plain_http_has_the_bar(recorded: Recording, tmp_path: Path) -> None:
    """Such a browser does not say whether a document is in a frame: a script decides."""
    allow = "import os; os.environ['RAYHISTORY_ALLOWED_HOSTS'] = 'history.test'"
    with (
        running_server(recorded.store, tmp_path, at_start=allow) as server,
        chromium("--host-resolver-rules=MAP history.test 127.0.0.1") as browser,
    ):
        session = server.replace("127.0.0.1", "history.test") + recorded.ref.url
        page = browser.new_page()
        page.goto(f"{session}?bare=1#/jobs")
        expect(page.locator("#bar")).to_be_visible()
        expect(page).to_have_url(f"{session}#/jobs")
        expect(page.frame_locator("#dashboard").get_by_role("row").filter(has_text=SAMPLE).first).to_be_visible()
        page.goto(f"{session}?bare=always#/jobs")
        expect(page.get_by_role("row").filter(has_text=SAMPLE).first).to_be_visible()
        expect(page.locator("#bar")).to_have_count(0)
