"""KubeRay's own way to a session: the list of clusters, and the choice of one that cookies keep."""

from collections.abc import Iterator
from http.cookies import SimpleCookie

import httpx
import pytest
from starlette.testclient import TestClient

from rayhistory.layout import SessionRef
from rayhistory.server.app import create_app
from recorded_sample import REF, keep_sample, settings_for

OWNED = SessionRef.checked(REF.namespace, REF.cluster, REF.session, "rayjob", "nightly")
CHOSEN = {
    "cluster_name": REF.cluster,
    "cluster_namespace": REF.namespace,
    "session_name": REF.session,
    "owner_kind": "rayjob",
    "owner_name": "nightly",
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = settings_for(tmp_path_factory.mktemp("kuberay"))
    keep_sample(settings, ref=OWNED)
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture
def client(app: TestClient) -> Iterator[TestClient]:
    yield app
    app.cookies.clear()


def cookies_of(answer: httpx.Response) -> dict[str, str]:
    found: SimpleCookie = SimpleCookie()
    for line in answer.headers.get_list("set-cookie"):
        found.load(line)
    assert all((morsel["path"], morsel["max-age"]) == ("/", "600") for morsel in found.values())
    return {name: morsel.value for name, morsel in found.items()}


def test_the_list_tells_who_owns_a_cluster(client: TestClient) -> None:
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
def test_a_cluster_is_entered_by_its_owner_or_its_name(client: TestClient, choice: str) -> None:
    answer = client.get(f"/enter_cluster/{REF.namespace}/{choice}")
    assert answer.json() == {
        "name": REF.cluster, "namespace": REF.namespace, "result": "success", "session": REF.session,
    }  # fmt: skip
    assert cookies_of(answer) == CHOSEN
    again = client.get("/api/v0/tasks")
    assert again.json()["data"]["result"]["total"] > 0
    assert cookies_of(again) == CHOSEN


@pytest.mark.parametrize(
    ("choice", "status", "said"),
    [
        ("rayservice/nightly", 404, "cluster default/rayservice/nightly with session latest not found"),
        ("rayjob/other/live", 404, "cluster default/rayjob/other with session live not found"),
        (f"raycluster/{REF.cluster}/session_x", 404, "with session session_x not found"),
        (f"raycron/{REF.cluster}/{REF.session}", 400, "use /enter_cluster/{namespace}/{kind}/{name}[/{session}]"),
        (f"raycluster/{REF.cluster}/{REF.session}@1", 404, "not found"),
        (f"raycluster/{'x' * 300}", 400, "not a name of a namespace, cluster or owner"),
        ("raycluster/Über", 400, "not a name of a namespace, cluster or owner"),
        ("", 400, "use /enter_cluster/"),
    ],
)
def test_what_cannot_be_entered_is_told(client: TestClient, choice: str, status: int, said: str) -> None:
    answer = client.get(f"/enter_cluster/{REF.namespace}/{choice}")
    assert (answer.status_code, said in answer.text) == (status, True)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("missing", ["cluster_name", "cluster_namespace", "session_name"])
def test_half_a_choice_is_none(client: TestClient, missing: str) -> None:
    """The API says so; `/` is home."""
    client.cookies.update({name: value for name, value in CHOSEN.items() if name != missing})
    answer = client.get("/api/jobs/")
    assert (answer.status_code, answer.json().startswith("Cluster Cookie not found")) == (400, True)
    assert client.get("/").status_code == 200
    assert client.get("/static/js/main.js").status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/jobs/nobodys", 410), ("/api/nothing", 410), ("/static/js/none.js", 404), ("/api/v0/platform_events", 404)],
)
def test_what_is_not_there_is_gone_except_where_ray_may_answer(client: TestClient, path: str, status: int) -> None:
    """Ray's dashboard, when it stands before the server, answers a 404 itself: from another cluster."""
    client.cookies.update(CHOSEN)
    assert client.get(path).status_code == status
