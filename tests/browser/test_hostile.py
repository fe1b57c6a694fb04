"""A session in which every text of the cluster is a script: none of them runs in a real browser."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Error, Frame, Page, expect

from browser.monitored_browser import TIMEOUT_MS, chromium
from rayhistory import ids
from rayhistory.sessions import EndRecord, Layout, SessionRef, StartRecord
from support.recorded_sample import DATA, NODE, live
from support.server_process import running_server

MARK = "hostile-mark"
SCRIPTS = (
    "<script data-hostile>hostileRan('script {0}')</script>",
    "<img data-hostile src=x onerror=\"hostileRan('img {0}')\">",
    "\"'><svg data-hostile onload=hostileRan('svg-{0}')>",
    "</script></style></title><iframe data-hostile srcdoc=\"<script>parent.hostileRan('frame {0}')</script>\">",
    "javascript:hostileRan('link {0}')",
    "{{{{constructor.constructor('hostileRan(1)')()}}}}${{hostileRan('template {0}')}}",
    "\x1b]8;;javascript:hostileRan('terminal {0}')\x07<a data-hostile href=javascript:hostileRan(1)>x</a>\x1b]8;;\x07",
)
FREE_TEXT = {
    "taskName", "actorTaskName", "functionName", "className", "moduleName", "name", "reprName", "errorMessage",
    "entrypoint", "hostname", "nodeName", "exitDetail", "rayNamespace", "callSite", "eventName", "message",
    "instanceTypeName", "error_type", "job_name", "k", "cmdline", "nodeManagerHostname", "nodeTypeName",
    "stateMessage", "severity", "ip", "componentType", "nodeManagerAddress",
}  # fmt: skip
"""Fields of events and dashboard responses that hold arbitrary text."""
SUBMITTED = "sub-ok"
WAITS = """
import pathlib, sys, time
while "rayhistory.index.fold.fold_process" in sys.orig_argv and not pathlib.Path({gate!r}).exists():
    time.sleep(0.05)
"""


class Hostile:
    """Scripts with consecutive numbers."""

    def __init__(self) -> None:
        self._numbers = count()

    def text(self) -> str:
        number = next(self._numbers)
        return f"{MARK}{number} {SCRIPTS[number % len(SCRIPTS)].format(number)}"

    def everywhere(self, value: Any, field: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self.everywhere(item, name) for name, item in value.items()} | self._labels(field)
        if isinstance(value, list):
            return [self.everywhere(item, field) for item in value]
        return self.text() if isinstance(value, str) and field in FREE_TEXT else value

    def _labels(self, field: str) -> dict[str, str]:
        return {self.text(): self.text()} if field in ("labels", "labelSelector", "metadata") else {}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Serve the session. Its fold waits until the gate file exists."""
    directory = tmp_path_factory.mktemp("hostile")
    _keep(directory / "store", Hostile())
    gate = directory / "gate"
    with running_server(directory / "store", directory / "work", at_start=WAITS.format(gate=str(gate))) as address:
        yield address, gate
        gate.touch()


REF = SessionRef.checked("default", "hostile", "session_2026-11-15_19-18-08_055078_15551")


def _keep(store: Path, hostile: Hostile) -> None:
    layout = Layout()
    events = [hostile.everywhere(json.loads(line)) for line in (DATA / "events.jsonl").read_text().splitlines()]
    responses = {
        "/api/jobs/": "jobs_after_snap", "/api/v0/placement_groups?detail=1&limit=10000": "v0_placement_groups_detail",
        "/nodes?view=summary": "nodes_summary", "/api/v0/workers?detail=1&limit=10000": "v0_workers_detail",
    }  # fmt: skip
    events += [
        {"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:19:50.5Z",
         "dashboardSnapshot": {"uri": uri, "body": hostile.everywhere(live(name))}}
        for uri, name in responses.items()
    ]  # fmt: skip
    events.append({"eventType": hostile.text(), "timestamp": hostile.text(), hostile.text(): hostile.text()})
    owner, version, address = (hostile.text() for _ in range(3))
    start = StartRecord("default", "hostile", REF.session, 1_794_770_288_055, NODE, "rayjob", owner, version, address)
    log = "\n".join(f"{hostile.text()} \x1b[31m{hostile.text()}\x1b[0m" for _ in range(50)).encode()
    objects = {
        layout.metadata_key(REF): b"",
        layout.events_key(REF, NODE, "node_events", 1786526102000000001, compressed=False): b"\n".join(
            map(msgspec.json.encode, events)
        ),
        layout.start_key(REF): msgspec.json.encode(start),
        layout.end_key(REF): msgspec.json.encode(EndRecord(1_794_770_420_000, hostile.text())),
        f"{layout.logs_prefix(REF, NODE)}/job-driver-{SUBMITTED}.log": log,
        f"{layout.logs_prefix(REF, NODE)}/raylet.out": log,
        f"{layout.logs_prefix(REF, NODE)}/{MARK} <img data-hostile src=x onerror=hostileRan('file')>.log": log,
    }
    for key, data in objects.items():
        path = store / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture(scope="module")
def browser(place: tuple[str, Path]) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


class Victim:
    """A browser that records every script that runs."""

    def __init__(self, context: BrowserContext) -> None:
        self.ran: list[str] = []
        self._context = context
        context.set_default_timeout(TIMEOUT_MS)
        context.expose_binding("hostileRan", lambda _, what: self.ran.append(str(what)))
        context.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Dialog) -> None:
        self.ran.append(dialog.message)
        dialog.dismiss()

    def open_all(self, addresses: list[str]) -> list[Page]:
        """Open each address in a tab."""
        pages = [self._context.new_page() for _ in addresses]
        for page, address in zip(pages, addresses, strict=True):
            page.goto(address)
        return pages

    def looks_at(self, address: str, *, marked: bool = True, frame: str = "") -> Page:
        """Open a page, wait until a hostile text is visible, and check that nothing ran."""
        page = self._context.new_page()
        page.goto(address)
        if marked:
            shown = page.frame_locator(frame) if frame else page
            expect(shown.get_by_text(MARK).filter(visible=True).first).to_be_visible()
        self.is_unharmed(page)
        return page

    def is_unharmed(self, page: Page) -> None:
        page.wait_for_load_state("networkidle")
        for frame in page.frames:
            assert frame.locator("[data-hostile]").count() == 0, f"a tag of the cluster's is in {frame.url}"
            assert not [link for link in _links(frame) if link.lower().startswith(("javascript:", "data:"))], frame.url
        assert self.ran == []


def _links(frame: Frame) -> list[str]:
    """Return the targets of all links and forms. The progress page reloads itself, at any time."""
    while True:
        try:
            found = frame.eval_on_selector_all("a[href],form[action]", "all => all.map(a => a.href || a.action)")
        except Error as error:
            if "Execution context was destroyed" not in error.message:
                raise
        else:
            return [str(link) for link in found]


@pytest.fixture
def victim(browser: Browser) -> Iterator[Victim]:
    context = browser.new_context(viewport={"width": 1500, "height": 1100})
    yield Victim(context)
    context.close()


def test_progress_page_shows_no_session_data(victim: Victim, place: tuple[str, Path]) -> None:
    """Runs first, while the session is not indexed, then opens the gate."""
    address, gate = place
    page = victim.looks_at(f"{address}{REF.url}", marked=False)
    expect(page.get_by_text("Indexing this session").first).to_be_visible()
    victim.is_unharmed(page)
    gate.touch()


def test_running_script_is_detected(victim: Victim) -> None:
    """The check of the other tests must be able to fail."""
    page = victim._context.new_page()
    page.set_content(SCRIPTS[1].format(1))
    page.wait_for_timeout(10)
    expect(page.locator("[data-hostile]")).to_have_count(1)
    page.wait_for_function("() => document.images[0].complete")
    with pytest.raises(AssertionError):
        victim.is_unharmed(page)
    assert victim.ran == ["img 1"]


OWN = ("/home", "/home?q={script}", "/home?namespace={script}", "/home?state={script}", "/home?from={script}",
       "/s/default/{script}/latest/", "/s/default/hostile/{script}/", "/s/default/hostile/latest@{script}/",
       "/s/default/~rayjob/{script}/", "/login?next={script}", "/{script}", "/enter_cluster/{script}/x",
       "/s/default/hostile/latest/?dashboard={script}", "/s/default/hostile/latest/gaps", "/gaps",
       "/s/default/hostile/latest/{script}", "/s/default/hostile/latest/api/history/rows/{script}",
       "/s/default/hostile/latest/api/v0/logs/file?node_id={script}&filename={script}")  # fmt: skip


@pytest.mark.parametrize("path", OWN)
def test_own_pages_escape_scripts(victim: Victim, place: tuple[str, Path], path: str) -> None:
    """Texts of the cluster and of the URL."""
    place[1].touch()
    scripts = [script.format(1).replace("/", "%2f").replace("?", "%3f").replace("#", "%23") for script in SCRIPTS[:5]]
    for page in victim.open_all(sorted({place[0] + path.format(script=script) for script in scripts})):
        victim.is_unharmed(page)


def test_session_list_escapes_the_owner(victim: Victim, place: tuple[str, Path]) -> None:
    place[1].touch()
    victim.looks_at(f"{place[0]}/home")


def _pages() -> list[str]:
    definitions = [json.loads(line) for line in (DATA / "events.jsonl").read_text().splitlines()]
    tasks = [e["taskDefinitionEvent"] for e in definitions if "taskDefinitionEvent" in e]
    task = next(task for task in tasks if task["taskType"] == "NORMAL_TASK")
    actor = next(e["actorDefinitionEvent"] for e in definitions if "actorDefinitionEvent" in e)
    task_id, actor_id = ids.to_hex(task["taskId"], ids.TASK), ids.to_hex(actor["actorId"], ids.ACTOR)
    return [
        "overview", "jobs", f"jobs/{SUBMITTED}", "jobs/01000000", "actors", f"actors/{actor_id}", "cluster",
        f"cluster/nodes/{NODE}", f"jobs/01000000/tasks/{task_id}", f"logs/?nodeId={NODE}",
        f"logs/viewer?nodeId={NODE}&fileName=raylet.out", "serve",
    ]  # fmt: skip


_WITHOUT_NAMES = {"serve"}


@pytest.mark.parametrize("page", _pages())
def test_dashboard_escapes_scripts(victim: Victim, place: tuple[str, Path], page: str) -> None:
    place[1].touch()
    victim.looks_at(f"{place[0]}{REF.url}?bare=always#/{page}", marked=page not in _WITHOUT_NAMES)


def test_bar_escapes_scripts(victim: Victim, place: tuple[str, Path]) -> None:
    place[1].touch()
    victim.looks_at(f"{place[0]}{REF.url}#/jobs", frame="#dashboard")
    victim.looks_at(f"{place[0]}{REF.url[:-1]}@1794770330000/#/jobs", marked=False)


@pytest.mark.parametrize("path", ["raylet.out", "job-driver-sub-ok.log"])
def test_log_opened_in_a_tab_is_plain_text(victim: Victim, place: tuple[str, Path], path: str) -> None:
    """It is a download of plain text, and browsers must not guess another type."""
    place[1].touch()
    response = victim._context.request.get(f"{place[0]}{REF.url}api/v0/logs/file?node_id={NODE}&filename={path}")
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-disposition"].startswith("attachment")
    assert MARK in response.text()
