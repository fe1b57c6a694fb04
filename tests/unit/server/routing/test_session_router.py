"""Paths without a session: clusters, Ray's clients at the server's own address, unknown pages and the icon."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from support.recorded_sample import REF, serving

PAGE = {"Accept": "text/html,*/*;q=0.8"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("router")) as client:
        yield client


@pytest.mark.parametrize("end", ["", "/"])
def test_cluster_without_session_lists_its_sessions(client: TestClient, end: str) -> None:
    response = client.get(f"http://testserver/s/{REF.namespace}/{REF.cluster}{end}", headers=PAGE)
    assert (response.status_code, response.url.path) == (200, "/home")
    assert f'href="{REF.url}"' in response.text
    other = client.get(f"http://testserver/s/{REF.namespace}/other{end}", headers=PAGE)
    assert f'href="{REF.url}"' not in other.text


@pytest.mark.parametrize("path", ["/api/v0/tasks", "/api/v0/actors?detail=1", "/api/v0/tasks/summarize"])
def test_ray_list_at_the_servers_address_gets_rays_error_with_the_sessions(client: TestClient, path: str) -> None:
    """`ray list tasks --address http://server:port` prints `msg`."""
    response = client.get(f"http://testserver{path}")
    body = response.json()
    assert (response.status_code, body["result"]) == (400, False)
    assert response.headers["x-rayhistory-error"] == "no_session_selected"
    assert f"http://testserver{REF.url.rstrip('/')}" in body["msg"]


@pytest.mark.parametrize("path", ["/api/jobs/", "/api/jobs/sub-ok", "/api/serve/applications/"])
def test_ray_job_at_the_servers_address_gets_the_sessions(client: TestClient, path: str) -> None:
    """Ray's clients check the version first, and print the text of the response after it."""
    for version in ("/api/version", "/api/ray/version"):
        checked = client.get(f"http://testserver{version}").json()
        assert (checked["version"], checked["session_name"]) == ("4", "")
    response = client.get(f"http://testserver{path}")
    assert (response.status_code, response.headers["x-rayhistory-error"]) == (400, "no_session_selected")
    address = f"http://testserver{REF.url.rstrip('/')}"
    assert response.json() == (
        f"http://testserver is a history server: use the address of a session: {address} (Cluster Cookie not found)"
    )


def test_unknown_path_gets_a_page_for_people_only(client: TestClient) -> None:
    page = client.get("http://testserver/nothing", headers=PAGE)
    assert page.headers["content-type"].startswith("text/html")
    assert (page.status_code, "Page not found" in page.text) == (404, True)
    assert client.get("http://testserver/nothing").json().endswith("(Cluster Cookie not found)")


def test_browser_gets_an_icon(client: TestClient) -> None:
    response = client.get("http://testserver/favicon.ico")
    assert (response.status_code, response.headers["content-type"]) == (200, "image/svg+xml")
