"""Middleware: unhandled exceptions."""

from pathlib import Path

import pytest

from support.recorded_sample import REF
from support.two_namespaces import serve_two_namespaces


@pytest.mark.slow
def test_unhandled_exception_is_counted_and_has_all_headers(tmp_path: Path) -> None:
    with serve_two_namespaces(tmp_path) as client:
        client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
        del client.app.state.response_cache  # type: ignore[attr-defined]
        response = client.get(f"{REF.url}api/version")
        assert (response.status_code, response.headers.get("x-content-type-options")) == (500, "nosniff")
        assert response.headers["x-rayhistory-error"] == "internal_error"
        assert 'rayhistory_requests_total{status="500"} 1.0' in client.get("/metrics").text
