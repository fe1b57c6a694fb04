"""With `--mask-env-vars`, no value of an environment variable reaches the spool or the store."""

import gzip
import json
from pathlib import Path

import pytest

from rayhistory.collector.dashboard.schedule import JOBS
from support.collector_process import CollectorProcess, FakeRay, event, eventually, running_collector
from support.dashboard_double import run_dashboard

SECRET = "secret-value-of-a-variable"
ENDPOINT = "/additional"
RUNTIME_ENV = {"env_vars": {"TOKEN": SECRET}}


def contents(directory: Path) -> bytes:
    """Return all files of a directory, those with gzip members decompressed."""
    files = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    return b"".join(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data for data in files)


def record(home: Path, ray: FakeRay, *flags: str) -> tuple[bytes, CollectorProcess]:
    """Record an event and responses with a secret; return the spool's content and the collector."""
    ray.start()
    definition = event(1) | {
        "taskDefinitionEvent": {
            "jobId": "AQAAAA==", "runtimeEnvInfo": {"serializedRuntimeEnv": json.dumps(RUNTIME_ENV)},
        }
    }  # fmt: skip
    with run_dashboard() as dashboard:
        dashboard.responses[JOBS] = [{"submission_id": "a", "runtime_env": RUNTIME_ENV}]
        dashboard.responses[ENDPOINT] = {"runtime_env": RUNTIME_ENV}
        settings = {"RAY_DASHBOARD_ADDRESS": dashboard.url, "RAY_COLLECTOR_ADDITIONAL_ENDPOINTS": ENDPOINT}
        with running_collector(home, "--role=Head", *flags, **settings) as collector:
            assert collector.post([definition]).status_code == 200
            spooled = collector.spooled()
            eventually(lambda: any("restful__additional" in key for key in collector.stored_keys()), 60.0)
            ray.stop()
            assert collector.terminate() == 0
    return spooled, collector


def test_masked_values_are_neither_spooled_nor_stored(home: Path, ray: FakeRay) -> None:
    spooled, collector = record(home, ray, "--mask-env-vars=true")
    stored = contents(collector.store)
    assert SECRET.encode() not in spooled + stored
    assert b"<redacted>" in spooled
    assert stored.count(b"<redacted>") >= 3
    (masked,) = collector.stored_events()
    assert masked["taskDefinitionEvent"]["jobId"] == "AQAAAA=="


@pytest.mark.slow
def test_values_are_stored_by_default(home: Path, ray: FakeRay) -> None:
    _, collector = record(home, ray)
    assert contents(collector.store).count(SECRET.encode()) >= 3
