"""KubeRay's routes: the list of clusters, and the selection of a session by cookies."""

from collections.abc import Iterator
from http.cookies import SimpleCookie

import httpx2
import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.sessions import SessionRef
from support.recorded_sample import REF, settings_for, store_sample

OWNED = SessionRef.checked(REF.namespace, REF.cluster, REF.session, "rayjob", "nightly")
SELECTED = {
    "cluster_name": REF.cluster,
    "cluster_namespace": REF.namespace,
    "session_name": REF.session,
    "owner_kind": "rayjob",
    "owner_name": "nightly",
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = settings_for(tmp_path_factory.mktemp("kuberay"))
    store_sample(settings, ref=OWNED)
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture
def client(app: TestClient) -> Iterator[TestClient]:
    yield app
    app.cookies.clear()


def cookies_of(response: httpx2.Response) -> dict[str, str]:
    cookies: SimpleCookie = SimpleCookie()
    for line in response.headers.get_list("set-cookie"):
        cookies.load(line)
    assert all((morsel["path"], morsel["max-age"]) == ("/", "600") for morsel in cookies.values())
    return {name: morsel.value for name, morsel in cookies.items()}


def test_cluster_list_has_the_owner(client: TestClient) -> None:
    (listed,) = client.get("/clusters").json()
    assert listed == {
        "name": REF.cluster,
        "namespace": REF.namespace,
        "sessionName": REF.session,
        "createTime": "2026-11-15T19:18:08Z",
        "createTimeStamp": 1794770288,
        "ownerKind": "rayjob",
        "ownerName": "nightly",
    }


@pytest.mark.parametrize(
    "choice",
    [
        "rayjob/nightly",
        "RayJob/nightly/",
        "rayjob/nightly/latest",
        f"rayjob/nightly/{REF.session}",
        f"raycluster/{REF.cluster}/{REF.session}",
        f"{REF.cluster}/{REF.session}",
    ],
)
def test_cluster_is_entered_by_its_owner_or_its_name(client: TestClient, choice: str) -> None:
    response = client.get(f"/enter_cluster/{REF.namespace}/{choice}")
    assert response.json() == {
        "name": REF.cluster, "namespace": REF.namespace, "result": "success", "session": REF.session,
    }  # fmt: skip
    assert cookies_of(response) == SELECTED
    tasks = client.get("/api/v0/tasks")
    assert tasks.json()["data"]["result"]["total"] > 0
    assert cookies_of(tasks) == SELECTED


@pytest.mark.parametrize(
    ("choice", "status", "message"),
    [
        ("rayservice/nightly", 404, "cluster default/rayservice/nightly with session latest not found"),
        ("rayjob/other/live", 404, "cluster default/rayjob/other with session live not found"),
        (f"raycluster/{REF.cluster}/session_x", 404, "with session session_x not found"),
        (f"raycron/{REF.cluster}/{REF.session}", 400, "use /enter_cluster/{namespace}/{kind}/{name}[/{session}]"),
        (f"raycluster/{REF.cluster}/{REF.session}@1", 404, "not found"),
        (f"raycluster/{'x' * 300}", 400, "invalid namespace, cluster or owner name"),
        ("raycluster/Über", 400, "invalid namespace, cluster or owner name"),
        ("", 400, "use /enter_cluster/"),
    ],
)
def test_invalid_selection_is_reported(client: TestClient, choice: str, status: int, message: str) -> None:
    response = client.get(f"/enter_cluster/{REF.namespace}/{choice}")
    assert (response.status_code, message in response.text) == (status, True)
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("missing", ["cluster_name", "cluster_namespace", "session_name"])
def test_incomplete_cookies_select_nothing(client: TestClient, missing: str) -> None:
    """The API returns 400, and `/` is the home page."""
    client.cookies.update({name: value for name, value in SELECTED.items() if name != missing})
    response = client.get("/api/jobs/")
    assert (response.status_code, "Cluster Cookie not found" in response.json()) == (400, True)
    assert response.headers["x-rayhistory-error"] == "no_session_selected"
    assert client.get("/").status_code == 200
    assert client.get("/static/js/main.js").status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/jobs/unknown", 410), ("/api/nothing", 410), ("/static/js/none.js", 404), ("/api/v0/platform_events", 404)],
)
def test_not_found_becomes_410_only_for_rays_dashboard(client: TestClient, path: str, status: int) -> None:
    """A Ray dashboard in front of the server replaces a 404 by data of its own cluster."""
    client.cookies.update(SELECTED)
    assert client.get(path, headers={"Content-Type": "application/json"}).status_code == status
    assert client.get(path).status_code == 404


def test_actor_has_kuberays_messages(client: TestClient) -> None:
    client.cookies.update(SELECTED)
    actor_id = next(iter(client.get("/logical/actors").json()["data"]["actors"]))
    found, unknown = (client.get(f"/logical/actors/{name}").json() for name in (actor_id, "0" * 32))
    assert (found["result"], found["msg"], found["data"]["detail"]["actorId"]) == (True, "Actor fetched.", actor_id)
    assert unknown == {"result": False, "msg": "Actor not found.", "data": {"detail": None}}
    client.cookies.clear()
    rays = client.get(f"{REF.url}logical/actors/{actor_id}").json()
    assert (rays["result"], rays["msg"]) == (True, "Actor details fetched.")


def test_filter_on_an_unknown_column_is_400_as_in_ray(client: TestClient) -> None:
    """KubeRay ignores the filter and responds with 200."""
    client.cookies.update(SELECTED)
    query = "filter_keys=statte&filter_predicates=%3D&filter_values=x"
    assert client.get(f"/api/v0/tasks?{query}").status_code == 400


def test_ended_cluster_entered_as_live_is_its_newest_session(client: TestClient) -> None:
    response = client.get(f"/enter_cluster/{REF.namespace}/raycluster/{REF.cluster}/live")
    assert (response.status_code, response.json()["session"]) == (200, REF.session)
