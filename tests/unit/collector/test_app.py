"""The collector's routes beside the events: probes and metrics."""

from starlette.testclient import TestClient

from rayhistory.collector.app import make_app
from rayhistory.collector.telemetry import Telemetry


def test_probes_tell_a_spool_that_cannot_be_written() -> None:
    reasons = [None, "cannot write to the spool /spool"]
    client = TestClient(make_app(None, Telemetry(), lambda: reasons[0]))
    assert client.get("/readyz").status_code == client.get("/readz").status_code == 200
    reasons.reverse()
    response = client.get("/readyz")
    assert (response.status_code, response.text) == (503, "cannot write to the spool /spool\n")
    assert client.get("/livez").status_code == 200


def test_disabled_event_collection_names_its_setting() -> None:
    response = TestClient(make_app(None, Telemetry(), lambda: None)).post("/v1/events", content=b"[]")
    assert (response.status_code, "ENABLE_EVENT_COLLECTOR" in response.text) == (404, True)


def test_metrics_are_those_of_the_collector() -> None:
    response = TestClient(make_app(None, Telemetry(), lambda: None)).get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "rayhistory_" in response.text
