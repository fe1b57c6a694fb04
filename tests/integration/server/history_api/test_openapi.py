"""Our own API is described: every route of it, truly; and all its errors have one shape."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route
from starlette.testclient import TestClient

from guarded import HIDDEN, NOBODYS, OURS, bearer, guarded, rules
from rayhistory.server import openapi
from rayhistory.server.app import create_app
from rayhistory.server.routes import SESSION_ROUTES
from recorded.served import serving
from recorded_sample import REF, keep_sample, settings_for

PATHS = ["/api/history/sessions", "/api/history/openapi.json", f"{REF.url}api/history/gaps",
         f"{REF.url}api/history/course", f"{REF.url}api/history/metrics",
         f"{REF.url}api/history/rows/tasks"]  # fmt: skip
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = settings_for(tmp_path_factory.mktemp("openapi"))
    keep_sample(settings)
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture(scope="module")
def described(client: TestClient) -> dict[str, Any]:
    document: dict[str, Any] = client.get(openapi.DOCUMENT).json()
    return document


def test_every_route_is_described_and_every_description_has_a_route(
    client: TestClient, described: dict[str, Any]
) -> None:
    def paths(routes: Any) -> list[str]:
        return openapi.own_paths(route.path for route in routes if isinstance(route, Route))

    assert paths(client.app.routes) == sorted(openapi.ABOUT_SERVER)  # type: ignore[attr-defined]
    assert paths(SESSION_ROUTES) == sorted(openapi.ABOUT_SESSION)
    assert len(described["paths"]) == len(openapi.ABOUT_SERVER) + len(openapi.ABOUT_SESSION)
    with pytest.raises(KeyError):
        openapi.document(["/api/history/undescribed"], [])


def test_what_the_document_names_is_there(described: dict[str, Any]) -> None:
    text = json.dumps(described)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(described["components"]["schemas"])
    assert {"Sessions", "SessionRow", "Rows", "Gaps", "MetricPoints", "Failure"} <= names


@pytest.mark.parametrize("path", PATHS)
def test_a_described_path_answers(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{REF.url}api/history/rows/nothing", 400),
        ("GET", f"{REF.url}api/history/rows/tasks?where=colour", 400),
        ("GET", f"{REF.url}api/history/metrics?from=soon", 400),
        ("GET", f"{REF.url}api/history/nothing", 404),
        ("GET", "/s/default/nobodys/latest/api/history/gaps", 404),
        ("GET", "/s/default/nobodys/latest/api/history/metrics", 404),
        ("GET", "/s/default/sample/nonsense/api/history/gaps", 404),
        ("GET", "/s/BAD/sample/latest/api/history/gaps", 400),
        ("GET", "/api/history/gaps", 400),
        ("POST", f"{REF.url}api/history/gaps", 405),
        ("DELETE", "/api/history/sessions", 405),
    ],
)
def test_every_error_has_one_shape(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert answer.json()["error"]["status"] == status
    assert answer.json()["error"]["message"]


def test_what_access_and_limits_answer_is_described(tmp_path: Path, described: dict[str, Any]) -> None:
    told = [set(each["get"]["responses"]) for each in described["paths"].values()]
    rows = f"{REF.url}api/history/rows/gaps"
    with guarded(tmp_path, auth="token", access_file=rules(tmp_path), expensive_calls=1) as client:
        answers = [
            client.get(rows),
            client.get(rows, headers=bearer(NOBODYS)),
            client.get(f"{HIDDEN.url}api/history/gaps", headers=bearer(OURS)),
            *(client.get(rows, headers=bearer(OURS)) for _ in range(2)),
        ]
    assert [answer.status_code for answer in answers] == [401, 403, 403, 200, 429]
    assert int(answers[-1].headers["retry-after"]) > 0
    for answer in answers:
        assert all(str(answer.status_code) in statuses for statuses in told)
        assert set(answer.json()) == ({"error"} if answer.status_code != 200 else {"rows", "next"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = settings_for(tmp_path_factory.mktemp("served"))
    keep_sample(settings)
    with serving(Path(settings.local_storage_dir), Path(settings.cache_dir)) as address:
        yield address


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_whatever_is_asked_the_answers_are_as_described(
    server: str, described: dict[str, Any], mode: schemathesis.GenerationMode
) -> None:
    """Requests that the description allows are made up, and others; what comes back must fit it."""
    schema = schemathesis.openapi.from_dict(described)
    statuses: Counter[int] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        cases = operation.as_strategy(mode)

        @hypothesis.settings(max_examples=25, deadline=None, database=None, derandomize=True,
                             suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
        @hypothesis.given(case=cases)
        def asked(case: schemathesis.Case) -> None:
            for name, value in (("namespace", REF.namespace), ("cluster", REF.cluster), ("session", REF.session)):
                if name in case.path_parameters:
                    case.path_parameters[name] = value
            statuses[case.call_and_validate(base_url=server, checks=CHECKS).status_code] += 1

        with suppress(hypothesis.errors.Unsatisfiable):  # where nothing is given, nothing can be wrong
            asked()
    usual = 200 if mode is schemathesis.GenerationMode.POSITIVE else 400
    assert statuses[usual] > 50, statuses


def test_pages_of_other_origins_may_read_only_when_they_are_named(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    keep_sample(settings)
    origin = {"Origin": "https://grafana.example.com"}
    asking = origin | {"Access-Control-Request-Method": "GET"}
    with TestClient(create_app(settings)) as client:
        assert "access-control-allow-origin" not in client.get("/api/history/sessions", headers=origin).headers
        assert client.options("/api/history/sessions", headers=asking).status_code == 405
    named = dataclasses.replace(settings, cors_origins=(origin["Origin"],))
    with TestClient(create_app(named)) as client:
        allowed = client.get("/api/history/sessions", headers=origin).headers
        assert allowed["access-control-allow-origin"] == origin["Origin"]
        assert client.options("/api/history/sessions", headers=asking).status_code == 200
        other = {"Origin": "https://elsewhere.example.com"}
        assert "access-control-allow-origin" not in client.get("/api/history/sessions", headers=other).headers
        assert client.options("/api/history/sessions", headers=asking | other).status_code == 400
        assert client.post("/api/history/sessions", headers=origin).status_code == 405


@pytest.mark.parametrize("name", ["authorization", "x-ray-authorization", "if-none-match", "range"])
def test_pages_of_named_origins_may_send_what_the_api_reads(tmp_path: Path, name: str) -> None:
    """And no cookies, as before."""
    asking = {
        "Origin": "https://grafana.example.com",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": name,
    }
    settings = dataclasses.replace(settings_for(tmp_path), cors_origins=(asking["Origin"],))
    Path(settings.local_storage_dir).mkdir()
    client = TestClient(create_app(settings))
    answer = client.options("/api/history/sessions", headers=asking)
    assert answer.status_code == 200, answer.text
    assert name in answer.headers["access-control-allow-headers"].lower().split(", ")
    assert "access-control-allow-credentials" not in answer.headers
    other = client.options("/api/history/sessions", headers=asking | {"Access-Control-Request-Headers": "x-other"})
    assert other.status_code == 400
