"""Every list and summary of the State API rejects invalid parameters with 400 and a message."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from support.recorded_sample import serving

LISTS = ("tasks", "actors", "jobs", "nodes", "workers", "placement_groups", "objects", "runtime_envs", "cluster_events")
SUMMARIES = ("tasks/summarize", "tasks/summarize?summary_by=lineage", "actors/summarize", "objects/summarize")

FILTERS = {
    "filter_keys=color&filter_predicates=%3D&filter_values=red": "The given filter column color is not supported",
    "filter_keys=&filter_predicates=%3D&filter_values=": "The given filter column  is not supported",
    "filter_keys=state&filter_predicates=%3E&filter_values=x": "Unsupported filter predicate > is given",
    "filter_keys=state&filter_predicates=&filter_values=x": "Unsupported filter predicate  is given",
    "filter_keys=state&filter_predicates=%3D": "Each filter needs one of each",
    "filter_keys=a&filter_keys=b&filter_predicates=%3D&filter_values=x": "Each filter needs one of each",
    "filter_values=x": "Each filter needs one of each",
}
NUMBERS = {
    "limit=x": "limit: invalid literal",
    "limit=": "limit: invalid literal",
    "limit=1.5": "limit: invalid literal",
    "limit=-1": "Given limit -1 is negative",
    "timeout=x": "timeout: invalid literal",
    "detail=2": "Failed to convert a value 2",
    "exclude_driver=no": "Failed to convert a value no",
}
IDS = {
    "tasks": {"task_id": 24, "job_id": 4, "actor_id": 16},
    "actors": {"actor_id": 16, "job_id": 4},
    "nodes": {"node_id": 28},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with serving(tmp_path_factory.mktemp("bad")) as client:
        yield client


def get_error(client: TestClient, path: str) -> str:
    response = client.get(f"api/v0/{path}")
    assert response.status_code == 400, response.text
    body = response.json()
    assert (body["result"], body["data"]) == (False, {"result": None})
    return str(body["msg"])


@pytest.mark.parametrize("query", [*FILTERS, *NUMBERS])
@pytest.mark.parametrize("resource", LISTS)
def test_list_reports_invalid_parameters(client: TestClient, resource: str, query: str) -> None:
    assert (FILTERS | NUMBERS)[query] in get_error(client, f"{resource}?{query}")


@pytest.mark.parametrize("query", FILTERS)
@pytest.mark.parametrize("summary", SUMMARIES)
def test_summary_reports_invalid_filters(client: TestClient, summary: str, query: str) -> None:
    assert FILTERS[query] in get_error(client, f"{summary}{'&' if '?' in summary else '?'}{query}")


@pytest.mark.parametrize("value", ["", "0", "zz", "ab", "ab" * 40, "ab" * 12 + "z"])
@pytest.mark.parametrize(("resource", "column"), [(name, column) for name, sizes in IDS.items() for column in sizes])
def test_id_of_wrong_length_is_rejected(client: TestClient, resource: str, column: str, value: str) -> None:
    message = get_error(client, f"{resource}?filter_keys={column}&filter_predicates=%3D&filter_values={value}")
    assert "is not an id" in message or f"ID string needs to have length {IDS[resource][column]}" in message


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_only_get_and_head_are_allowed(client: TestClient, method: str) -> None:
    for path in ("api/v0/tasks", "api/jobs/", "api/v0/logs/file", "api/history/gaps", ""):
        assert client.request(method, path).status_code == 405


def test_unknown_path_gets_404(client: TestClient) -> None:
    for path in (
        "api/v0/nothing",
        "api/v0/tasks/x/y",
        "api/v0/../../etc/passwd",
        "api/v1/tasks",
        "%00",
        "api/v0/%2e%2e/x",
    ):
        assert client.get(path).status_code == 404
