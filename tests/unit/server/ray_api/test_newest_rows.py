"""Lists of the newest rows: they end at a number of rows and at a size, and say what they leave out."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rayhistory.server.app import create_app
from rayhistory.server.ray_api import newest_rows
from support.large_tables import store_large_tables
from support.recorded_sample import REF, settings_for

EVENTS = newest_rows.MAX_ROWS + 1


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("events")
    store_large_tables(directory, 1, EVENTS)
    with TestClient(create_app(settings_for(directory)), base_url=f"http://testserver{REF.url}") as client:
        yield client


def listed(data: dict[str, Any]) -> int:
    events = data["events"]
    return len(events) if isinstance(events, list) else sum(map(len, events.values()))


@pytest.mark.parametrize("path", ["events", "api/v0/platform_events"])
def test_list_ends_at_a_number_of_rows(client: TestClient, path: str) -> None:
    data = client.get(path).json()["data"]
    assert (listed(data), data["total"]) == (newest_rows.MAX_ROWS, EVENTS)
    assert f"Only the {newest_rows.MAX_ROWS:,} newest of {EVENTS:,} events" in data["warnings"][0]


@pytest.mark.parametrize("path", ["events", "api/v0/platform_events"])
def test_list_ends_at_a_size(client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of events may be long."""
    monkeypatch.setattr(newest_rows, "_MAX_BYTES", 1)
    data = client.get(f"{path}?short").json()["data"]  # another query, because the first response is cached
    assert 0 < listed(data) < newest_rows.MAX_ROWS
    assert data["total"] == EVENTS
