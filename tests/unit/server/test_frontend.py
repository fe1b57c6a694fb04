"""Versions of Ray's frontend: which one a session is shown in, and how its files are served."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rayhistory.errors import UsageError
from rayhistory.server.app import create_app
from rayhistory.server.frontend import CUSTOM, Frontends
from rayhistory.settings import Settings
from support.fake_frontends import frontends_of, make_frontend
from support.recorded_sample import REF, settings_for, store_indexed_sample

OWN = "2.60.0"
"""The version of the recorded session, and of the Ray that is installed here."""
RAY_PROXY = {"Content-Type": "application/json", "User-Agent": "Mozilla/5.0"}


def chosen(frontends: Frontends, ray_version: str | None, requested: str | None = None) -> str:
    frontend = frontends.choose(ray_version, requested)
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
def test_session_gets_the_nearest_dashboard_version(tmp_path: Path, ray_version: str | None, expected: str) -> None:
    """Its own version, else the nearest minor release and patch; the newest if the version is unknown."""
    frontends = frontends_of(tmp_path, "2.52.0", "2.55.1", "2.55.3")
    assert chosen(frontends, ray_version) == expected


@pytest.mark.parametrize("version", ["9" * 5000 + ".1", "1." + "9" * 5000, "2.9.0" + "a" * 5000])
def test_malformed_ray_version_is_treated_as_unknown(tmp_path: Path, version: str) -> None:
    chosen = frontends_of(tmp_path, "2.9.0", OWN).choose(version)
    assert chosen and chosen.version == OWN


def test_newer_of_two_equally_near_versions_is_used(tmp_path: Path) -> None:
    frontends = frontends_of(tmp_path, "2.50.0", "2.54.0")
    assert chosen(frontends, "2.52.0") == "2.54.0"


def test_custom_dashboard_is_used_for_all_sessions(tmp_path: Path) -> None:
    """A requested version takes precedence."""
    make_frontend(tmp_path, "own build")
    frontends = frontends_of(tmp_path, "2.55.0")
    assert [each.version for each in frontends.installed()] == [CUSTOM, OWN, "2.55.0"]
    assert chosen(frontends, "2.55.0") == CUSTOM
    assert chosen(frontends, "2.60.0", "2.55.0") == "2.55.0"


def test_incomplete_dashboard_is_ignored(tmp_path: Path) -> None:
    """Partial copies, files and other directories are skipped."""
    (tmp_path / "2.55.0" / "static").mkdir(parents=True)
    make_frontend(tmp_path / ".half.1234", "2.54.0")
    make_frontend(tmp_path / "notes", "2.53.0")
    (tmp_path / "2.52.0").write_text("a file")
    assert [each.version for each in Frontends(str(tmp_path)).installed()] == [OWN]
    with pytest.raises(UsageError, match=r"no frontend of Ray '2\.55\.0' is installed; installed: 2\.60\.0"):
        Frontends(str(tmp_path)).choose(None, "2.55.0")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = settings_for(tmp_path_factory.mktemp("frontends"))
    store_indexed_sample(settings)
    frontends_of(Path(settings.dashboard_dir), "2.55.0", "2.52.0")
    return settings


@pytest.fixture(scope="module")
def client(sample: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(sample)) as client:
        client.get(f"{REF.url}api/jobs/").raise_for_status()  # index the session before pages are opened
        yield client


def title(response: str) -> str:
    return response.partition("<title>")[2].partition("</title>")[0]


def test_session_is_shown_in_its_own_version(client: TestClient) -> None:
    assert title(client.get(f"{REF.url}?bare=1").text) == "Ray Dashboard"


@pytest.mark.parametrize("version", ["2.55.0", "2.52.0"])
def test_visitor_can_select_another_version(client: TestClient, sample: Settings, version: str) -> None:
    """The document has that version, and its files are found without naming the version."""
    assert title(client.get(f"{REF.url}?bare=1&dashboard={version}").text) == version
    (script,) = (Path(sample.dashboard_dir) / version / "static/js").iterdir()
    response = client.get(f"{REF.url}static/js/{script.name}")
    assert response.text == script.read_text()
    assert "max-age" in response.headers["cache-control"]


def test_selected_version_survives_a_redirect(client: TestClient) -> None:
    """`latest` redirects to the session's own URL with the whole query."""
    for end in ("/", ""):
        response = client.get(f"/s/{REF.namespace}/{REF.cluster}/latest{end}?bare=1&dashboard=2.55.0")
        assert (response.url.path, title(response.text)) == (REF.url, "2.55.0")


def test_missing_version_gets_an_error_page(client: TestClient) -> None:
    """The page lists the installed versions and how to add one. The requested version is escaped."""
    response = client.get(f"{REF.url}?dashboard=<script>alert(1)</script>", headers={"Accept": "text/html"})
    assert response.status_code == 400
    assert "2.60.0, 2.55.0, 2.52.0" in response.text
    assert "rayhistory dashboards add VERSION" in response.text
    assert "<script>alert" not in response.text


def test_installed_versions_are_listed(client: TestClient) -> None:
    url = f"{REF.url}api/history/dashboards"
    expected = {"versions": [OWN, "2.55.0", "2.52.0"], "ray_version": OWN}
    assert client.get(url).json() == {"chosen": OWN, **expected}
    assert client.get(f"{url}?dashboard=2.52.0").json() == {"chosen": "2.52.0", **expected}
    assert client.get(f"{url}?dashboard=1.0").status_code == 400


@pytest.mark.parametrize(
    "path", ["static/%2e%2e/%2e%2e/secret", "static/%2e%2e/%2e%2e/%2e%2e/secret", "static/none.js"]
)
def test_only_frontend_files_are_served(client: TestClient, sample: Settings, path: str) -> None:
    (Path(sample.dashboard_dir) / "secret").write_text("secret")
    assert client.get(f"{REF.url}{path}").status_code == 404


def test_added_dashboard_needs_no_restart(client: TestClient, sample: Settings) -> None:
    directory = make_frontend(Path(sample.dashboard_dir) / "2.51.0", "2.51.0")
    assert title(client.get(f"{REF.url}?bare=1&dashboard=2.51.0").text) == "2.51.0"
    shutil.rmtree(directory)
    assert client.get(f"{REF.url}?bare=1&dashboard=2.51.0").status_code == 400


def test_ray_proxy_never_falls_back_to_its_own_cluster(client: TestClient) -> None:
    """On a 404, Ray's proxy responds with data of its own cluster, so it gets 410. Frontend files stay 404."""
    unknown = f"{REF.url}api/jobs/unknown"
    assert client.get(unknown).status_code == 404
    assert client.get(unknown, headers={"User-Agent": "Mozilla/5.0"}).status_code == 404
    assert client.get(unknown, headers=RAY_PROXY).status_code == 410
    assert client.get(f"{REF.url}static/js/of-ray.js", headers=RAY_PROXY).status_code == 404
    assert client.head(f"{REF.url}api/v0/platform_events", headers=RAY_PROXY).status_code == 404
