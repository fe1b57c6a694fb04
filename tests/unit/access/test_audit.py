"""The audit log."""

from pathlib import Path

import pytest

from support.recorded_sample import REF
from support.two_namespaces import (
    ALLOWED_TOKEN,
    HIDDEN,
    UNKNOWN_TOKEN,
    bearer,
    serve_two_namespaces,
    write_access_file,
)

PROFILING = f"{REF.url}api/profiling_enabled"


def test_each_visit_and_each_denied_request_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rayhistory.audit")
    with serve_two_namespaces(tmp_path, auth="token", access_file=write_access_file(tmp_path)) as client:
        for _ in range(3):
            client.get(PROFILING, headers=bearer(ALLOWED_TOKEN))
        client.get(f"{HIDDEN.url}api/jobs/", headers=bearer(ALLOWED_TOKEN))
        client.get(PROFILING, headers=bearer(UNKNOWN_TOKEN))
        client.post("/api/authenticate", headers=bearer(ALLOWED_TOKEN), json={})
    lines = [
        (record.getMessage(), fields["visitor"], fields.get("session") or fields.get("resource", ""))
        for record in caplog.records
        if record.name == "rayhistory.audit"
        for fields in [vars(record)]
    ]
    assert lines == [
        ("visitor opened a session", "ada", f"{REF.namespace}/{REF.cluster}/{REF.session}"),
        ("access denied", "ada", f"{HIDDEN.namespace}/{HIDDEN.cluster}/{HIDDEN.session}"),
        ("access denied", "", PROFILING),
        ("visitor signed in", "ada", ""),
    ]
    logged = str([vars(record) for record in caplog.records])  # with the fields, which are not in the text
    assert ALLOWED_TOKEN not in logged
    assert UNKNOWN_TOKEN not in logged
