"""Ray's dashboard in several versions: how they are got, which one a session is shown in, and the Grafana beside it."""

import dataclasses
import shutil
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from called import Command
from rayhistory.errors import UsageError
from rayhistory.server.app import create_app
from rayhistory.server.frontend import GIVEN, Frontends
from rayhistory.settings import Settings, resolve
from recorded_sample import REF, keep_sample, settings_for

OWN = "2.60.0"
"""The version of the recorded session, and of the Ray that is installed here."""
IN_WHEEL = "ray/dashboard/client/build"
GRAFANA = "https://grafana.example.com/sub"
PROXIED = {"Content-Type": "application/json", "User-Agent": "Mozilla/5.0"}


def make_frontend(directory: Path, version: str, **files: str) -> Path:
    """A small one; as with Ray's, the names of what its page loads are of that content alone."""
    text = f"{version} {files}"
    names = {"index.html": f"<title>{version}</title>", f"static/js/main.{abs(hash(text)):x}.js": text, **files}
    for name, content in names.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return directory


def make_wheel(directory: Path, version: str, **more: str) -> Path:
    wheel = directory / f"ray-{version}-py3-none-any.whl"
    built = make_frontend(directory / "build", version)
    with zipfile.ZipFile(wheel, "w") as package:
        for path in sorted(built.rglob("*.*")):
            package.write(path, f"{IN_WHEEL}/{path.relative_to(built)}")
        about = f"ray-{version}.dist-info"
        package.writestr("ray/__init__.py", "")
        package.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
        package.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        package.writestr(f"{about}/RECORD", "")
        for name, content in more.items():
            package.writestr(name, content)
    shutil.rmtree(built)
    return wheel


def mark_entries(package: Path, place: int, mark: int) -> None:
    """Writes a byte into the head of every file in a package, and into its place in the directory of it."""
    content = bytearray(package.read_bytes())
    for signature, more in ((b"PK\x01\x02", 0), (b"PK\x03\x04", -2)):
        at = content.find(signature)
        while at >= 0:
            content[at + place + more] = mark
            at = content.find(signature, at + 4)
    package.write_bytes(content)


def frontends_of(directory: Path, *versions: str) -> Frontends:
    for version in versions:
        make_frontend(directory / version, version)
    return Frontends(str(directory))


def chosen(frontends: Frontends, ray_version: str | None, wanted: str | None = None) -> str:
    frontend = frontends.choose(ray_version, wanted)
    assert frontend
    return frontend.version


@pytest.mark.parametrize(
    ("ray_version", "expected"),
    [
        ("2.55.1", "2.55.1"),
        ("2.55.0", "2.55.1"),
        ("2.55.9", "2.55.3"),
        ("2.54.0", "2.55.1"),
        ("2.53.2", "2.52.0"),
        ("2.57.0", "2.55.1"),
        ("2.58.0", OWN),
        ("1.13.0", "2.52.0"),
        ("3.0.0.dev0", "2.52.0"),
        ("nonsense", OWN),
        ("", OWN),
        (None, OWN),
    ],
)
def test_a_session_gets_the_nearest_dashboard(tmp_path: Path, ray_version: str | None, expected: str) -> None:
    """Its own version; else the nearest minor release, in it the nearest patch; not knowing, the newest."""
    frontends = frontends_of(tmp_path, "2.52.0", "2.55.1", "2.55.3")
    assert chosen(frontends, ray_version) == expected


@pytest.mark.parametrize("version", ["9" * 5000 + ".1", "1." + "9" * 5000, "2.9.0" + "a" * 5000])
def test_what_is_no_version_of_any_ray_is_as_good_as_none(tmp_path: Path, version: str) -> None:
    chosen = frontends_of(tmp_path, "2.9.0", OWN).choose(version)
    assert chosen and chosen.version == OWN


def test_of_two_that_are_as_near_the_newer_is_used(tmp_path: Path) -> None:
    frontends = frontends_of(tmp_path, "2.50.0", "2.54.0")
    assert chosen(frontends, "2.52.0") == "2.54.0"


def test_the_dashboard_of_a_directory_itself_is_for_all_sessions(tmp_path: Path) -> None:
    """Unless another is asked for."""
    make_frontend(tmp_path, "own build")
    frontends = frontends_of(tmp_path, "2.55.0")
    assert [each.version for each in frontends.installed()] == [GIVEN, OWN, "2.55.0"]
    assert chosen(frontends, "2.55.0") == GIVEN
    assert chosen(frontends, "2.60.0", "2.55.0") == "2.55.0"


def test_what_is_no_whole_dashboard_is_not_one(tmp_path: Path) -> None:
    """Half copies, other files and directories are passed over."""
    (tmp_path / "2.55.0" / "static").mkdir(parents=True)
    make_frontend(tmp_path / ".half.1234", "2.54.0")
    make_frontend(tmp_path / "notes", "2.53.0")
    (tmp_path / "2.52.0").write_text("a file")
    assert [each.version for each in Frontends(str(tmp_path)).installed()] == [OWN]
    with pytest.raises(UsageError, match=r"no dashboard '2\.55\.0' is installed here; there is 2\.60\.0"):
        Frontends(str(tmp_path)).choose(None, "2.55.0")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = settings_for(tmp_path_factory.mktemp("frontends"))
    keep_sample(settings)
    frontends_of(Path(settings.dashboard_dir), "2.55.0", "2.52.0")
    return settings


@pytest.fixture(scope="module")
def client(sample: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(sample)) as client:
        client.get(f"{REF.url}api/jobs/").raise_for_status()  # folded now: pages do not wait for long
        yield client


def title(answer: str) -> str:
    return answer.partition("<title>")[2].partition("</title>")[0]


def test_the_page_of_a_session_is_that_of_its_version(client: TestClient) -> None:
    assert title(client.get(f"{REF.url}?bare=1").text) == "Ray Dashboard"


@pytest.mark.parametrize("version", ["2.55.0", "2.52.0"])
def test_a_visitor_can_choose_another_version(client: TestClient, sample: Settings, version: str) -> None:
    """The document is of that version, and what it loads is there without saying the version again."""
    assert title(client.get(f"{REF.url}?bare=1&dashboard={version}").text) == version
    (script,) = (Path(sample.dashboard_dir) / version / "static/js").iterdir()
    answer = client.get(f"{REF.url}static/js/{script.name}")
    assert answer.text == script.read_text()
    assert "max-age" in answer.headers["cache-control"]


def test_the_choice_outlives_a_redirect(client: TestClient) -> None:
    """`latest` leads to the session's own address, with all that was asked."""
    for end in ("/", ""):
        answer = client.get(f"/s/{REF.namespace}/{REF.cluster}/latest{end}?bare=1&dashboard=2.55.0")
        assert (answer.url.path, title(answer.text)) == (REF.url, "2.55.0")


def test_a_moment_before_all_others_has_an_address_too(client: TestClient) -> None:
    answer = client.get(f"{REF.url[:-1]}@1960-01-01T00:00:00Z/?bare=1")
    assert (answer.status_code, answer.url.path) == (200, f"{REF.url[:-1]}@0/")


def test_a_version_that_is_not_there_gives_a_clear_page(client: TestClient) -> None:
    """It names what there is, and how to get more; what was asked for stays text."""
    answer = client.get(f"{REF.url}?dashboard=<script>alert(1)</script>", headers={"Accept": "text/html"})
    assert answer.status_code == 400
    assert "2.60.0, 2.55.0, 2.52.0" in answer.text
    assert "rayhistory dashboards add VERSION" in answer.text
    assert "<script>alert" not in answer.text


def test_a_page_can_say_which_versions_there_are(client: TestClient) -> None:
    address = f"{REF.url}api/history/dashboards"
    known = {"versions": [OWN, "2.55.0", "2.52.0"], "ray_version": OWN}
    assert client.get(address).json() == {"chosen": OWN, **known}
    assert client.get(f"{address}?dashboard=2.52.0").json() == {"chosen": "2.52.0", **known}
    assert client.get(f"{address}?dashboard=1.0").status_code == 400


@pytest.mark.parametrize(
    "path", ["static/%2e%2e/%2e%2e/secret", "static/%2e%2e/%2e%2e/%2e%2e/secret", "static/none.js"]
)
def test_only_files_of_a_dashboard_are_served(client: TestClient, sample: Settings, path: str) -> None:
    (Path(sample.dashboard_dir) / "secret").write_text("secret")
    assert client.get(f"{REF.url}{path}").status_code == 404


def test_a_dashboard_that_is_added_is_there_at_once(client: TestClient, sample: Settings) -> None:
    """The server need not be started again."""
    directory = make_frontend(Path(sample.dashboard_dir) / "2.51.0", "2.51.0")
    assert title(client.get(f"{REF.url}?bare=1&dashboard=2.51.0").text) == "2.51.0"
    shutil.rmtree(directory)
    assert client.get(f"{REF.url}?bare=1&dashboard=2.51.0").status_code == 400


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capfd)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "dashboards"


def test_a_version_is_got_with_pip(
    command: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where the user's own settings of pip say; only the dashboard of the wheel is kept. Twice is once."""
    (tmp_path / "wheels").mkdir()
    wheel = make_wheel(tmp_path / "wheels", "2.55.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert f"added 2.55.0: {place / '2.55.0'}" in command.good("dashboards", "add", "2.55.0")
    assert sorted(path.name for path in (place / "2.55.0").iterdir()) == ["index.html", "static"]
    assert "already" in command.good("dashboards", "add", "2.55.0")
    assert "No matching distribution found for ray==2.54.0" in command.bad("dashboards", "add", "2.54.0")
    assert [path.name for path in place.iterdir()] == ["2.55.0"]


def test_a_wheel_for_another_machine_will_do(
    command: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version of Ray that was never made for this Python has a dashboard all the same."""
    (tmp_path / "wheels").mkdir()
    wheel = make_wheel(tmp_path / "wheels", "2.55.0")
    wheel.rename(wheel.with_name("ray-2.55.0-cp311-cp311-manylinux2014_x86_64.whl"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_PYTHON_VERSION", "3.9")
    monkeypatch.setenv("PIP_ABI", "cp311")
    command.good("dashboards", "add", "2.55.0")
    assert (place / "2.55.0" / "index.html").is_file()


def test_wheels_and_directories_are_added_listed_and_removed(command: Command, place: Path, tmp_path: Path) -> None:
    """A directory tells its version by the Ray around it or by its name, or else is told."""
    around = tmp_path / "site-packages" / "ray"
    make_frontend(around / "dashboard/client/build", "2.53.0")
    (around / "_version.py").write_text('version = "2.53.0"\ncommit = "abc"\n')
    named, other = make_frontend(tmp_path / "2.52.0", "2.52.0"), make_frontend(tmp_path / "mine", "mine")
    wheel = make_wheel(tmp_path, "2.54.0")
    command.good("dashboards", "add", str(wheel), str(around.parent), str(named))
    assert "does not tell its version: say it with --as" in command.bad("dashboards", "add", str(other))
    command.good("dashboards", "add", str(other), "--as", "2.51.0")
    listed = [line.split()[0] for line in command.good("dashboards", "list").splitlines()]
    assert listed == ["VERSION", OWN, "2.54.0", "2.53.0", "2.52.0", "2.51.0"]

    make_frontend(other, "mine", **{"static/new.js": "new"})
    command.good("dashboards", "add", str(other), "--as", "2.51.0")
    assert (place / "2.51.0/static/new.js").read_text() == "new"

    assert "removed 2.54.0" in command.good("dashboards", "remove", "2.54.0", "2.51.0")
    assert sorted(path.name for path in place.iterdir()) == ["2.52.0", "2.53.0"]


def test_one_name_never_stands_for_two_files(command: Command, place: Path, tmp_path: Path) -> None:
    """A page would get the other's: builds whose names do not change with the content cannot stand beside others."""
    one = make_frontend(tmp_path / "2.52.0", "2.52.0", **{"static/app.js": "one"})
    two = make_frontend(tmp_path / "2.53.0", "2.53.0", **{"static/app.js": "two"})
    command.good("dashboards", "add", str(one))
    assert "static/app.js of 2.53.0 is another file than that of 2.52.0" in command.bad("dashboards", "add", str(two))
    assert [path.name for path in place.iterdir()] == ["2.52.0"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("add", "newest"), "neither a version"),
        (("add", "../2.55.0"), "neither a version"),
        (("add", "nothing.whl"), "cannot be read as a wheel"),
        (("add", "broken.whl"), "cannot be read as a wheel"),
        (("add", "encrypted.whl"), "cannot be read as a wheel"),
        (("add", "packed.whl"), "cannot be read as a wheel"),
        (("add", "other.whl"), "is no wheel of Ray with a dashboard in it"),
        (("add", "outside.whl"), "lies outside of it"),
        (("add", "empty"), "holds no Ray Dashboard frontend"),
        (("add", "2.52.0", "--as", "../../2.52.0"), "is no version"),
        (("add", "2.52.0", "--dashboard-dir", "broken.whl"), "cannot be written"),
        (("remove", OWN), "it comes with the Ray of this environment"),
        (("remove", "2.55.0"), "it is not in"),
        (("remove", ".."), "it is not in"),
        (("remove",), "required: VERSION"),
        ((), "required: ACTION"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.whl").write_text("not a zip")
    with zipfile.ZipFile("other.whl", "w") as package:
        package.writestr("numpy/__init__.py", "")
    make_wheel(tmp_path, "2.55.0", **{f"{IN_WHEEL}/../../../../outside.txt": "x"}).rename("outside.whl")
    for name, place, mark in (("encrypted.whl", 8, 1), ("packed.whl", 10, 99)):
        make_wheel(tmp_path, "2.55.0").rename(name)
        mark_entries(tmp_path / name, place, mark)
    (tmp_path / "empty").mkdir()
    make_frontend(tmp_path / "2.52.0", "2.52.0")
    assert said in command.bad("dashboards", *argv)
    assert not (tmp_path / "cache" / "dashboards").exists()


@pytest.fixture(scope="module")
def beside_grafana(sample: Settings) -> Iterator[TestClient]:
    settings = dataclasses.replace(sample, grafana_url=GRAFANA)
    with TestClient(create_app(settings), follow_redirects=False) as client:
        yield client


def test_without_a_grafana_its_pages_are_hidden(client: TestClient) -> None:
    assert client.get(f"{REF.url}api/grafana_health").json()["data"] == {"grafanaHost": "DISABLED"}
    assert client.get(f"{REF.url}api/prometheus_health").json()["result"] is False
    assert client.get(f"{REF.url}grafana/d/rayDefaultDashboard/").status_code == 404


def test_the_grafana_of_the_server_is_found_below_the_session(beside_grafana: TestClient) -> None:
    """Where pages look for it, relative to their own address; with the names that Ray gives its dashboards."""
    data = beside_grafana.get(f"{REF.url}api/grafana_health").json()["data"]
    assert (data["grafanaHost"], data["sessionName"]) == ("grafana", REF.session)
    assert data["dashboardUids"]["default"] == "rayDefaultDashboard"
    assert beside_grafana.get(f"{REF.url}api/prometheus_health").json()["result"] is True


def leads_to(answer: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(answer)
    return f"{parts.scheme}://{parts.netloc}{parts.path}", {
        name: value for name, (value,) in parse_qs(parts.query).items()
    }


ASKED = "orgId=1&theme=dark&refresh=5s&from=now-5m&to=now&var-SessionName=session_x&var-datasource=Prometheus"


def test_links_to_grafana_carry_the_time_of_the_session(beside_grafana: TestClient) -> None:
    """The frontends ask for the last five minutes, in which there is nothing any more, and again every five seconds."""
    answer = beside_grafana.get(f"{REF.url}grafana/d/rayDefaultDashboard/?{ASKED}")
    assert answer.status_code == 302
    address, query = leads_to(answer.headers["location"])
    assert address == f"{GRAFANA}/d/rayDefaultDashboard"
    first, last = int(query.pop("from")), int(query.pop("to"))
    assert query == {"orgId": "1", "theme": "dark", "var-SessionName": "session_x", "var-datasource": "Prometheus"}
    began, ended = (
        datetime.fromisoformat(text).timestamp() * 1000 for text in ("2026-11-15T19:18:00Z", "2026-11-15T19:22:30Z")
    )
    assert began < first < last < ended


def test_what_is_asked_of_grafana_for_a_time_of_its_own_stays(beside_grafana: TestClient) -> None:
    """The page of a job has the job's."""
    answer = beside_grafana.get(f"{REF.url}grafana/d-solo/uid/default-dashboard?from=1000&to=2000&panelId=24")
    address, query = leads_to(answer.headers["location"])
    assert (address, query) == (
        f"{GRAFANA}/d-solo/uid/default-dashboard",
        {"from": "1000", "to": "2000", "panelId": "24"},
    )


def test_as_of_a_moment_grafana_shows_no_more(beside_grafana: TestClient) -> None:
    moment = int(datetime.fromisoformat("2026-11-15T19:19:00Z").timestamp() * 1000)
    answer = beside_grafana.get(f"{REF.url[:-1]}@{moment}/grafana/d/uid/?{ASKED}")
    assert leads_to(answer.headers["location"])[1]["to"] == str(moment)


@pytest.mark.parametrize("page", ["admin/users", "d/", "d/uid/%2e%2e/admin", "d/uid%3Fx", "%2F%2Fevil.example/d/uid"])
def test_nothing_but_dashboards_is_asked_of_grafana(beside_grafana: TestClient, page: str) -> None:
    assert beside_grafana.get(f"{REF.url}grafana/{page}").status_code == 404


def test_a_redirect_that_rays_proxy_would_follow_is_a_page(beside_grafana: TestClient) -> None:
    """Through Ray's own dashboard the browser itself is sent on."""
    answer = beside_grafana.get(f'{REF.url}grafana/d/uid/?from=1&to=2&x="><script>', headers=PROXIED)
    assert answer.status_code == 200
    assert f'<meta http-equiv="refresh" content="0; url={GRAFANA}/d/uid?from=1&amp;to=2' in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    "url", ["grafana.example.com", "javascript:alert(1)", "https://", "https://g/?x=1", "https://g#x"]
)
def test_what_is_no_address_of_a_grafana_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--grafana-url"):
        resolve("historyserver", {"setting_grafana_url": url}, {})


@pytest.mark.parametrize("path", ["worker/traceback", "worker/cpu_profile", "memory_profile", "task/traceback"])
def test_processes_of_what_is_gone_are_not_profiled(client: TestClient, path: str) -> None:
    """Older frontends link to these pages all the same: they say why there is nothing."""
    answer = client.get(f"{REF.url}{path}?pid=1&ip=127.0.0.1&node_id=x")
    assert (answer.status_code, "no processes" in answer.text) == (410, True)


def test_through_rays_own_dashboard_nothing_is_answered_by_another_cluster(client: TestClient) -> None:
    """Ray answers a 404 from its own cluster: so what is not there is gone. Its own frontend may take ours place."""
    unknown = f"{REF.url}api/jobs/nobodys"
    assert client.get(unknown).status_code == 404
    assert client.get(unknown, headers={"User-Agent": "Mozilla/5.0"}).status_code == 404
    assert client.get(unknown, headers=PROXIED).status_code == 410
    assert client.get(f"{REF.url}static/js/of-ray.js", headers=PROXIED).status_code == 404
    assert client.head(f"{REF.url}api/v0/platform_events", headers=PROXIED).status_code == 404
