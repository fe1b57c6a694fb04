"""Results of queries are kept as long as the samples that they read are the same."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.metrics import metrics_reader
from rayhistory.server.app import create_app
from support.stored_metrics import REF, START_MS, samples, server_settings, store_object, store_session


def value(client: TestClient, **params: Any) -> str:
    response = client.get(f"{REF.url}prometheus/api/v1/query", params={"query": "up", **params})
    return str(response.json()["data"]["result"][0]["value"][1])


def test_repeated_query_reads_nothing_until_samples_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_session(tmp_path / "store")
    store_object(tmp_path / "store", "a" * 56, samples({("up", ()): [1.0, 2.0]}))
    monkeypatch.setattr(metrics_reader, "_LISTING_TTL_S", 0.0)
    with TestClient(create_app(server_settings(tmp_path))) as client:
        assert value(client, time=START_MS / 1000 + 60) == "2"
        assert value(client, time=START_MS / 1000) == "1"
        store_object(tmp_path / "store", "a" * 56, samples({("up", ()): [1.0, 2.0, 3.0]}))
        assert value(client, time=START_MS / 1000 + 60) == "3"


def test_point_in_time_has_results_of_its_own(tmp_path: Path) -> None:
    store_session(tmp_path / "store")
    store_object(tmp_path / "store", "a" * 56, samples({("up", ()): [1.0, 2.0]}))
    with TestClient(create_app(server_settings(tmp_path))) as client:
        at = START_MS / 1000 + 60
        assert value(client, time=at) == "2"
        earlier = client.get(f"{REF.url[:-1]}@{START_MS}/prometheus/api/v1/query", params={"query": "up", "time": at})
        assert earlier.json()["data"]["result"][0]["value"][1] == "1"
