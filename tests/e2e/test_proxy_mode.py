"""Real Ray's own dashboard before the history server: `ray start --head --proxy-server-url=…`, to the last screen."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from browser.watched import Watched, chromium, keep_picture
from plainray import plain_ray
from rayhistory.server.frontend import Frontends
from recorded.rays import HERE, PYTHONS, name, ray_command
from recorded.recorder import Recorded
from recorded.served import serving
from recorded.workloads import RUNNING, SAMPLE

WITHOUT_RAY = "import sys\nsys.modules['ray'] = None\n"
TASKS = "/api/v0/tasks?detail=1&limit=10000"
COOKIES = ("cluster_name", "cluster_namespace", "session_name", "owner_kind", "owner_name")


def can_stand_before(python: str) -> bool:
    """Ray can from 2.55 on."""
    asked = subprocess.run([ray_command(python), "start", "--help"], capture_output=True, text=True, check=True)
    return "--proxy-server-url" in asked.stdout


RAYS = [python for python in PYTHONS if python == HERE or can_stand_before(python)]


@contextmanager
def ray_before(address: str, python: str = HERE) -> Iterator[str]:
    """The address of the dashboard of a Ray that has nothing of its own to show."""
    temp_dir = Path(tempfile.mkdtemp(prefix="rp"))
    with asyncio.Runner() as runner:
        ray = plain_ray(temp_dir, f"--proxy-server-url={address}", ray=ray_command(python))
        try:
            started = runner.run(ray.__aenter__())
            try:
                yield started.dashboard
            finally:
                runner.run(ray.__aexit__(None, None, None))
        finally:
            shutil.rmtree(temp_dir, ignore_errors=True)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxied")


@pytest.fixture(scope="module")
def server(recorded: Recorded, work: Path) -> Iterator[str]:
    """As KubeRay's: it has no frontend of its own."""
    with serving(recorded.store, work, at_start=WITHOUT_RAY) as address:
        yield address


@pytest.fixture(scope="module", params=RAYS, ids=name)
def dashboard(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    with ray_before(server, request.param) as address:
        yield address


@pytest.fixture
def http(dashboard: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=dashboard, timeout=60, trust_env=False, follow_redirects=True) as http:
        yield http


@pytest.fixture
def entered(http: httpx.Client, recorded: Recorded) -> httpx.Client:
    ref = recorded.ref
    http.get(f"/enter_cluster/{ref.namespace}/raycluster/{ref.cluster}/{ref.session}").raise_for_status()
    return http


def jobs_of(answer: httpx.Response) -> set[Any]:
    return {job["submission_id"] for job in answer.raise_for_status().json()}


def test_the_sessions_are_listed(http: httpx.Client, recorded: Recorded) -> None:
    """The first step of the guide."""
    listed = http.get("/clusters").raise_for_status().json()
    mine = next(one for one in listed if one["name"] == recorded.ref.cluster)
    assert mine.keys() >= {"name", "namespace", "sessionName", "createTime", "createTimeStamp"}
    assert (mine["namespace"], mine["sessionName"]) == (recorded.ref.namespace, recorded.ref.session)


@pytest.mark.parametrize(
    "choice",
    [
        "{0.namespace}/{0.cluster}/{0.session}",
        "{0.namespace}/{0.cluster}",
        "{0.namespace}/raycluster/{0.cluster}",
        "{0.namespace}/RayCluster/{0.cluster}/{0.session}",
        "{0.namespace}/raycluster/{0.cluster}/latest",
        "{0.namespace}/raycluster/{0.cluster}/live",
    ],
)
def test_entering_a_cluster_chooses_its_session(http: httpx.Client, recorded: Recorded, choice: str) -> None:
    """In KubeRay's words and cookies, of today and before; from then on Ray's dashboard is that session's."""
    ref = recorded.ref
    answer = http.get(f"/enter_cluster/{choice.format(ref)}").raise_for_status()
    chosen = {"name": ref.cluster, "namespace": ref.namespace, "result": "success", "session": ref.session}
    assert answer.json() == chosen
    told = answer.headers.get_list("set-cookie")
    assert [line.partition("=")[0] for line in told] == list(COOKIES)
    assert all(line.endswith("; Path=/; Max-Age=600") for line in told)
    assert SAMPLE in jobs_of(http.get("/api/jobs/"))


def test_every_answer_renews_the_choice(entered: httpx.Client) -> None:
    told = entered.get("/api/jobs/").headers.get_list("set-cookie")
    assert [line.partition("=")[0] for line in told] == list(COOKIES)


@pytest.mark.parametrize(
    "choice",
    ["default/raycluster/nobody", "default/rayjob/recorded", "default/recorded/session_2020-01-01_00-00-00_0_1"],
)
def test_a_cluster_that_is_not_there_cannot_be_entered(http: httpx.Client, choice: str) -> None:
    answer = http.get(f"/enter_cluster/{choice}")
    assert answer.status_code == 404
    assert not answer.headers.get_list("set-cookie")


def test_before_anything_is_chosen_nothing_of_the_local_cluster_is_shown(http: httpx.Client) -> None:
    """Home leads on; the API says that nothing is chosen."""
    assert "<title>" in http.get("/").text
    assert "recorded" in http.get("/").text
    assert http.get("/").text.partition("<main")[2] == http.get("/select_cluster").text.partition("<main")[2]
    assert http.get("/api/jobs/").status_code == 400
    assert http.get("/nodes?view=summary").status_code == 400


def test_the_answers_are_those_of_the_server(entered: httpx.Client, server: str, recorded: Recorded) -> None:
    """To the byte, whatever the client reads."""
    direct = httpx.get(server + recorded.ref.url[:-1] + TASKS, trust_env=False, timeout=60)
    assert entered.get(TASKS).content == direct.content
    assert entered.get(TASKS, headers={"Accept-Encoding": "identity"}).content == direct.content
    assert entered.get(TASKS, headers={"Accept-Encoding": "gzip, deflate, br, zstd"}).content == direct.content
    assert direct.headers["content-encoding"] == "gzip"


def test_what_has_not_changed_is_not_sent_again(entered: httpx.Client) -> None:
    tag = entered.get(TASKS).headers["etag"]
    again = entered.get(TASKS, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_what_is_not_there_is_never_the_local_clusters(entered: httpx.Client) -> None:
    """Ray would answer a 404 from its own cluster."""
    for path in ("/api/jobs/nobodys", "/api/nothing", "/api/v0/logs/file?node_id=none&filename=x"):
        assert entered.get(path).status_code in (400, 410, 500), path
    own = entered.get("/nodes?view=summary").json()["data"]["summary"]
    (node,) = {one["raylet"]["nodeId"] for one in own}
    assert entered.get(f"/nodes/{node}").json()["data"]["detail"]["raylet"]["nodeId"] == node


def sees(page: Page, *texts: str) -> None:
    for text in texts:
        expect(page.get_by_text(text).filter(visible=True).first).to_be_visible()


def walk(page: Page, picture: str) -> None:
    """The pages of the dashboard, by its own links."""
    sees(page, "Recent jobs", SAMPLE, RUNNING)
    keep_picture(page, f"{picture}-overview")
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("row").filter(has_text=SAMPLE).filter(has_text="SUCCEEDED").first).to_be_visible()
    keep_picture(page, f"{picture}-jobs")
    page.get_by_role("link", name="Cluster", exact=True).click()
    sees(page, "127.0.0.1 (Head)", "ALIVE")
    page.get_by_role("link", name="Actors", exact=True).click()
    sees(page, "Trainer", "experiment-tracker")
    page.get_by_role("link", name="Logs", exact=True).click()
    sees(page, "Select a node to view logs")
    keep_picture(page, f"{picture}-logs")


def test_the_guide_ends_in_rays_own_dashboard_with_the_dead_session(
    dashboard: str, recorded: Recorded, work: Path, tmp_path: Path
) -> None:
    """List, enter, look: without a frontend on the server it is the local Ray's; with one, that takes its place."""
    ref = recorded.ref
    with chromium() as browser:
        watched = Watched(browser)
        page = watched.open(f"{dashboard}/clusters")
        sees(page, ref.session)
        page.goto(f"{dashboard}/enter_cluster/{ref.namespace}/{ref.cluster}/{ref.session}")
        sees(page, "success")
        page.goto(dashboard)
        walk(page, "proxied")
        expect(page.locator("html")).to_have_attribute("lang", "en")

        (installed,) = Frontends(str(tmp_path)).installed()
        added = work / "cache" / "dashboards" / "2.60.0"
        shutil.copytree(installed.path, added)
        index = (added / "index.html").read_text()
        (added / "index.html").write_text(index.replace('lang="en"', 'lang="en-GB"'))
        page.goto(f"{dashboard}/#/overview")
        page.reload()
        walk(page, "proxied-own-frontend")
        expect(page.locator("html")).to_have_attribute("lang", "en-GB")
        shutil.rmtree(added)
        watched.close()
    assert watched.troubles == []


def test_a_dashboard_that_was_started_for_one_session_needs_no_choice(history: str, recorded: Recorded) -> None:
    """`--proxy-server-url=http://…/s/namespace/cluster/session`: no cookies, and no bar around Ray's pages."""
    with ray_before(f"{history}{recorded.ref.url[:-1]}") as dashboard:
        with httpx.Client(base_url=dashboard, timeout=60, trust_env=False) as http:
            assert SAMPLE in jobs_of(http.get("/api/jobs/"))
            tag = http.get(TASKS).headers["etag"]
            assert http.get(TASKS, headers={"If-None-Match": tag}).status_code == 304
            browsing = {"User-Agent": "Mozilla/5.0"}
            assert http.get("/api/jobs/nobodys", headers=browsing).status_code == 410
            assert not http.cookies
        with chromium() as browser:
            watched = Watched(browser)
            page = watched.open(dashboard)
            walk(page, "proxied-by-path")
            expect(page.locator("iframe")).to_have_count(0)
            watched.close()
    assert watched.troubles == []
