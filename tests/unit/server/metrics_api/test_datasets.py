"""Datasets on the job page, with measurements from stored metrics where the head had no Prometheus."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from support.recorded_sample import NODE, REF, settings_for, store_sample
from support.stored_metrics import Columns, samples, store_object

URI = "/api/data/datasets/01000000"
START_MS = round(datetime(2026, 11, 15, 19, 19, 40, tzinfo=UTC).timestamp() * 1000)
NAMES = ("ray_data_output_rows", "ray_data_current_bytes", "ray_data_spilled_bytes")


def measured(rows: Any, current: Any) -> dict[str, Any]:
    return {
        "ray_data_output_rows": {"max": rows},
        "ray_data_current_bytes": {"value": current, "max": current},
        "ray_data_spilled_bytes": {"max": 0},
        "progress": 0,
    }


def response(rows: Any, current: Any) -> dict[str, Any]:
    operators = [{"operator": name, **measured(rows, current)} for name in ("Read0", "Map1")]
    return {"datasets": [{"dataset": "dataset_1", **measured(rows, current), "operators": operators}, "odd", {}]}


@pytest.fixture
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    settings = settings_for(tmp_path)
    store_sample(settings, responses={URI: request.param})
    columns: Columns = {
        (name, (("dataset", "dataset_1"), ("operator", operator))): [0.0, factor, 3 * factor, 2 * factor]
        for name, factor in zip(NAMES[:2], (10.0, 1000.0), strict=True)
        for operator in ("Read0", "Map1")
    }
    store_object(tmp_path / "store", NODE, samples(columns, START_MS), START_MS, REF)
    with TestClient(create_app(settings), base_url=f"http://testserver{REF.url}") as client:
        yield client


@pytest.mark.parametrize("client", [response(0, 0)], indirect=True)
def test_measurements_come_from_stored_metrics(client: TestClient) -> None:
    """The highest value of the session, and the last one; a metric without samples stays 0."""
    dataset, *others = client.get(URI[1:]).json()["datasets"]
    assert others == ["odd", {}]
    assert dataset["ray_data_output_rows"] == {"max": 60}
    assert dataset["ray_data_current_bytes"] == {"value": 4000, "max": 6000}
    for operator in dataset["operators"]:
        assert operator["ray_data_output_rows"] == {"max": 30}
        assert operator["ray_data_current_bytes"] == {"value": 2000, "max": 3000}
    assert dataset["ray_data_spilled_bytes"] == {"max": 0}
    assert dataset["progress"] == 0


@pytest.mark.parametrize("client", [response("7", "8")], indirect=True)
def test_measurements_of_a_prometheus_are_kept(client: TestClient) -> None:
    """They are texts."""
    assert client.get(URI[1:]).json() == response("7", "8")


@pytest.mark.parametrize("client", [response(0, 0)], indirect=True)
def test_measurements_end_at_the_chosen_point_in_time(client: TestClient) -> None:
    as_of = f"http://testserver{REF.url[:-1]}@{START_MS + 16_000}{URI}"
    dataset, *_ = client.get(as_of).json()["datasets"]
    assert dataset["ray_data_output_rows"] == {"max": 20}
