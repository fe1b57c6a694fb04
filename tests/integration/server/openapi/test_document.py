"""The OpenAPI document describes every route, response and error of the history API."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route
from starlette.testclient import TestClient

from rayhistory.server.api_routes import SESSION_ROUTES
from rayhistory.server.app import create_app
from rayhistory.server.openapi import descriptions, document
from support.recorded_sample import REF, settings_for, store_indexed_sample
from support.server_process import running_server
from support.two_namespaces import ALLOWED_TOKEN, HIDDEN, UNKNOWN_TOKEN, bearer, serve_two_namespaces, write_access_file

PATHS = ["/api/history/sessions", "/api/history/openapi.json", f"{REF.url}api/history/gaps",
         f"{REF.url}api/history/overview", f"{REF.url}api/history/metrics",
         f"{REF.url}api/history/rows/tasks"]  # fmt: skip
EXAMPLES = int(os.environ.get("RAYHISTORY_LAWS") or 8)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = settings_for(tmp_path_factory.mktemp("openapi"))
    store_indexed_sample(settings)
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture(scope="module")
def described(client: TestClient) -> dict[str, Any]:
    body: dict[str, Any] = client.get(descriptions.DOCUMENT_PATH).json()
    return body


def test_routes_and_descriptions_match(client: TestClient, described: dict[str, Any]) -> None:
    def paths(routes: Any) -> list[str]:
        return document.api_paths(route.path for route in routes if isinstance(route, Route))

    assert paths(client.app.routes) == sorted(descriptions.SERVER_ENDPOINTS)  # type: ignore[attr-defined]
    assert paths(SESSION_ROUTES) == sorted(descriptions.SESSION_ENDPOINTS)
    assert len(described["paths"]) == len(descriptions.SERVER_ENDPOINTS) + len(descriptions.SESSION_ENDPOINTS)
    with pytest.raises(KeyError):
        document.build_document(["/api/history/undescribed"], [])


def test_schema_references_resolve(described: dict[str, Any]) -> None:
    text = json.dumps(described)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(described["components"]["schemas"])
    assert {"SessionList", "SessionRow", "TableRows", "SessionGaps", "MetricPoints", "ErrorResponse"} <= names


@pytest.mark.parametrize("path", PATHS)
def test_described_path_responds(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{REF.url}api/history/rows/nothing", 400),
        ("GET", f"{REF.url}api/history/rows/tasks?where=colour", 400),
        ("GET", f"{REF.url}api/history/metrics?from=soon", 400),
        ("GET", f"{REF.url}api/history/nothing", 404),
        ("GET", "/s/default/unknown/latest/api/history/gaps", 404),
        ("GET", "/s/default/unknown/latest/api/history/metrics", 404),
        ("GET", "/s/default/sample/nonsense/api/history/gaps", 404),
        ("GET", "/s/BAD/sample/latest/api/history/gaps", 400),
        ("GET", "/api/history/gaps", 400),
        ("POST", f"{REF.url}api/history/gaps", 405),
        ("DELETE", "/api/history/sessions", 405),
    ],
)
def test_errors_have_one_shape(client: TestClient, method: str, path: str, status: int) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    assert response.json()["error"]["status"] == status
    assert response.json()["error"]["message"]


def test_access_and_rate_limit_errors_are_described(tmp_path: Path, described: dict[str, Any]) -> None:
    reported = [set((each.get("get") or each["post"])["responses"]) for each in described["paths"].values()]
    rows = f"{REF.url}api/history/rows/gaps"
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path), rate_limit=1) as client:
        responses = [
            client.get(rows),
            client.get(rows, headers=bearer(UNKNOWN_TOKEN)),
            client.get(f"{HIDDEN.url}api/history/gaps", headers=bearer(ALLOWED_TOKEN)),
            *(client.get(rows, headers=bearer(ALLOWED_TOKEN)) for _ in range(2)),
        ]
    assert [response.status_code for response in responses] == [401, 403, 403, 200, 429]
    assert int(responses[-1].headers["retry-after"]) > 0
    for response in responses:
        assert all(str(response.status_code) in statuses for statuses in reported)
        assert set(response.json()) == ({"error"} if response.status_code != 200 else {"rows", "next"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = settings_for(tmp_path_factory.mktemp("served"))
    store_indexed_sample(settings)
    with running_server(Path(settings.local_storage_dir), Path(settings.cache_dir)) as address:
        yield address


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_generated_requests_get_responses_as_described(
    server: str, described: dict[str, Any], mode: schemathesis.GenerationMode
) -> None:
    """Generate valid and invalid requests from the document, and validate the responses."""
    schema = schemathesis.openapi.from_dict(described)
    statuses: Counter[int] = Counter()
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        cases = operation.as_strategy(mode)

        @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
                             suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
        @hypothesis.given(case=cases)
        def check(case: schemathesis.Case[Any]) -> None:
            for name, value in (("namespace", REF.namespace), ("cluster", REF.cluster), ("session", REF.session)):
                if name in case.path_parameters:
                    case.path_parameters[name] = value
            statuses[case.call_and_validate(base_url=server, checks=CHECKS).status_code] += 1

        with suppress(hypothesis.errors.Unsatisfiable):  # an operation without parameters has no invalid requests
            check()
    usual = 200 if mode is schemathesis.GenerationMode.POSITIVE else 400
    assert statuses[usual] > 50, statuses


def test_only_allowed_origins_can_read(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    store_indexed_sample(settings)
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
def test_allowed_origins_can_send_the_headers_of_the_api(tmp_path: Path, name: str) -> None:
    """Cookies are never allowed."""
    asking = {
        "Origin": "https://grafana.example.com",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": name,
    }
    settings = dataclasses.replace(settings_for(tmp_path), cors_origins=(asking["Origin"],))
    Path(settings.local_storage_dir).mkdir()
    client = TestClient(create_app(settings))
    response = client.options("/api/history/sessions", headers=asking)
    assert response.status_code == 200, response.text
    assert name in response.headers["access-control-allow-headers"].lower().split(", ")
    assert "access-control-allow-credentials" not in response.headers
    other = client.options("/api/history/sessions", headers=asking | {"Access-Control-Request-Headers": "x-other"})
    assert other.status_code == 400
