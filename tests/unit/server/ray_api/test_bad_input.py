"""Every list and summary of the State API answers every kind of mistake alike: with 400, and with what is wrong."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from recorded_sample import serving

LISTS = ("tasks", "actors", "jobs", "nodes", "workers", "placement_groups", "objects", "runtime_envs", "cluster_events")
SUMMARIES = ("tasks/summarize", "tasks/summarize?summary_by=lineage", "actors/summarize", "objects/summarize")

FILTERS = {
    "filter_keys=colour&filter_predicates=%3D&filter_values=red": "The given filter column colour is not supported",
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


def refused(client: TestClient, address: str) -> str:
    answer = client.get(f"api/v0/{address}")
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert (body["result"], body["data"]) == (False, {"result": None})
    return str(body["msg"])


@pytest.mark.parametrize("query", [*FILTERS, *NUMBERS])
@pytest.mark.parametrize("resource", LISTS)
def test_a_list_says_what_is_wrong(client: TestClient, resource: str, query: str) -> None:
    assert (FILTERS | NUMBERS)[query] in refused(client, f"{resource}?{query}")


@pytest.mark.parametrize("query", FILTERS)
@pytest.mark.parametrize("summary", SUMMARIES)
def test_a_summary_says_what_is_wrong(client: TestClient, summary: str, query: str) -> None:
    assert FILTERS[query] in refused(client, f"{summary}{'&' if '?' in summary else '?'}{query}")


@pytest.mark.parametrize("value", ["", "0", "zz", "ab", "ab" * 40, "ab" * 12 + "z"])
@pytest.mark.parametrize(("resource", "column"), [(name, column) for name, sizes in IDS.items() for column in sizes])
def test_an_id_of_the_wrong_length_is_refused(client: TestClient, resource: str, column: str, value: str) -> None:
    complaint = refused(client, f"{resource}?filter_keys={column}&filter_predicates=%3D&filter_values={value}")
    assert "is not an id" in complaint or f"ID string needs to have length {IDS[resource][column]}" in complaint


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_possible(client: TestClient, method: str) -> None:
    for path in ("api/v0/tasks", "api/jobs/", "api/v0/logs/file", "api/history/gaps", ""):
        assert client.request(method, path).status_code == 405


def test_a_path_that_ray_does_not_have_is_not_there(client: TestClient) -> None:
    for path in (
        "api/v0/nothing",
        "api/v0/tasks/x/y",
        "api/v0/../../etc/passwd",
        "api/v1/tasks",
        "%00",
        "api/v0/%2e%2e/x",
    ):
        assert client.get(path).status_code == 404
