"""KubeRay's log API, as its end-to-end tests use it: sessions selected with its cookies."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from support.recorded_sample import NODE, REF, settings_for, store_indexed_sample
from support.two_namespaces import kuberay_cookies

TASK = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
UNKNOWN = "0" * 48
THROUGH_RAY = {"Content-Type": "application/json"}
FILES = {
    "raylet.out": b"one\ntwo\n",
    "raylet.err": b"",
    "gcs_server.out": b"g\n",
    "events/event_RAYLET.log": b"{}\n",
    "events/event_GCS.log": b"{}\n",
}
FILE, LIST = "/api/v0/logs/file", "/api/v0/logs"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = settings_for(tmp_path_factory.mktemp("kuberay"))
    store_indexed_sample(settings, FILES)
    with TestClient(create_app(settings)) as client:
        client.cookies.update(kuberay_cookies())
        yield client


@pytest.mark.parametrize(
    "query",
    ["", "&lines=100", "&lines=-1", "&timeout=5", "&timeout=30", "&attempt_number=0", "&download_filename=x",
     "&filter_ansi_code=true", "&filter_ansi_code=false", "&suffix=out", "&suffix=err",
     "&lines=10&timeout=5&suffix=out&filter_ansi_code=true"],
)  # fmt: skip
def test_file_is_returned(client: TestClient, query: str) -> None:
    response = client.get(f"{FILE}?node_id={NODE}&filename=raylet.out{query}")
    assert (response.status_code, response.text) == (200, "one\ntwo\n")


@pytest.mark.parametrize(
    "query",
    ["filename=raylet.out", f"node_id={NODE}", "", f"node_id={NODE}&filename=raylet.out&lines=x",
     f"node_id={NODE}&filename=raylet.out&timeout=x", f"node_id={NODE}&filename=raylet.out&attempt_number=x",
     f"node_id={NODE}&filename=raylet.out&suffix=log", f"task_id={UNKNOWN}", f"actor_id={UNKNOWN[:32]}",
     *(f"node_id={NODE}&filename={name}" for name in ("../etc/passwd", "..", "/etc/passwd", "../../secret", "a/../b")),
     *(f"node_id={node}&filename=raylet.out" for node in ("../x", "..", "/etc", "a/../b"))],
)  # fmt: skip
def test_invalid_request_for_a_file_is_400(client: TestClient, query: str) -> None:
    assert client.get(f"{FILE}?{query}").status_code == 400
    assert client.get(f"{REF.url[:-1]}{FILE}?{query}").status_code != 400  # as from Ray


@pytest.mark.parametrize(
    "query",
    [f"node_id={NODE}&filename=none.log", f"node_id={NODE}&pid=999999", "node_ip=192.0.2.1&filename=raylet.out",
     f"node_id={NODE}&filename=raylet.out&attempt_number=1", f"node_id={'0' * 56}&filename=raylet.out"],
)  # fmt: skip
def test_missing_file_is_404_and_through_rays_dashboard_never(client: TestClient, query: str) -> None:
    """Ray's dashboard replaces a 404 by a file of its own cluster."""
    response = client.get(f"{FILE}?{query}")
    assert (response.status_code, response.headers["x-rayhistory-error"]) == (404, "log_not_found")
    assert client.get(f"{FILE}?{query}", headers=THROUGH_RAY).status_code != 404


def test_stream_of_a_dead_cluster_sends_the_file_and_ends(client: TestClient) -> None:
    """KubeRay responds with 501: this is better."""
    response = client.get(f"/api/v0/logs/stream?node_id={NODE}&filename=raylet.out")
    assert (response.status_code, response.text) == (200, "one\ntwo\n")


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("events/*RAYLET*", {"internal": ["event_RAYLET.log"]}),
        ("events/*", {"internal": ["event_GCS.log", "event_RAYLET.log"]}),
        ("raylet*", {"raylet": ["raylet.err", "raylet.out"]}),
        ("none*", {}),
    ],
)
def test_names_in_a_listing_are_relative_to_the_folder_of_the_glob(
    client: TestClient, glob: str, names: dict[str, list[str]]
) -> None:
    response = client.get(LIST, params={"node_id": NODE, "glob": glob})
    assert (response.status_code, response.json()["data"]["result"]) == (200, names)


def test_rays_own_clients_get_whole_names(client: TestClient) -> None:
    """Its frontend makes links from them, on cookie routes too."""
    params, whole = {"node_id": NODE, "glob": "events/*RAYLET*"}, {"internal": ["events/event_RAYLET.log"]}
    for path, headers in (
        (LIST, THROUGH_RAY),
        (LIST, {"User-Agent": "Mozilla/5.0"}),
        (REF.url[:-1] + LIST, {}),
    ):
        assert client.get(path, params=params, headers=headers).json()["data"]["result"] == whole


def test_unknown_node_has_an_empty_listing(client: TestClient) -> None:
    response = client.get(LIST, params={"node_id": "0" * 56})
    assert (response.status_code, response.json()["data"]["result"]) == (200, {})
    assert client.get(LIST, params={"node_id": NODE, "glob": "../*"}).status_code == 400


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("my-log.txt", "attachment; filename=my-log.txt"),
        ("my log.txt", 'attachment; filename="my log.txt"'),
        ('a";x', "attachment; filename=\"a_;x\"; filename*=UTF-8''a%22%3Bx"),
    ],
)
def test_plain_download_name_is_not_quoted(client: TestClient, name: str, header: str) -> None:
    params = {"node_id": NODE, "filename": "raylet.out", "download_filename": name}
    assert client.get(FILE, params=params).headers["content-disposition"] == header
    quoted = client.get(REF.url[:-1] + FILE, params={**params, "download_filename": "x.txt"})
    assert quoted.headers["content-disposition"] == 'attachment; filename="x.txt"'  # as from Ray
