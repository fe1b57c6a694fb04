"""With `--mask-env-vars`, no value of an environment variable reaches the spool or the store."""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

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


class Recorded(NamedTuple):
    spooled: bytes
    collector: CollectorProcess


def record(home: Path, *flags: str) -> Recorded:
    """Record an event and responses with a secret."""
    ray = FakeRay(home)
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
    return Recorded(spooled, collector)


@pytest.fixture(scope="module")
def recordings() -> Iterator[dict[str, Future[Recorded]]]:
    """Two sessions at the same time, with and without masking: additional endpoints are polled after 15 s."""
    with ExitStack() as homes, ThreadPoolExecutor(2) as pool:
        masked, plain = (Path(homes.enter_context(TemporaryDirectory(prefix="rh"))) for _ in range(2))
        recorded = {"masked": pool.submit(record, masked, "--mask-env-vars=true"), "plain": pool.submit(record, plain)}
        wait(recorded.values())
        yield recorded


def test_masked_values_are_neither_spooled_nor_stored(recordings: dict[str, Future[Recorded]]) -> None:
    spooled, collector = recordings["masked"].result()
    stored = contents(collector.store)
    assert SECRET.encode() not in spooled + stored
    assert b"<redacted>" in spooled
    assert stored.count(b"<redacted>") >= 3
    (masked,) = collector.stored_events()
    assert masked["taskDefinitionEvent"]["jobId"] == "AQAAAA=="


def test_values_are_stored_by_default(recordings: dict[str, Future[Recorded]]) -> None:
    _, collector = recordings["plain"].result()
    assert contents(collector.store).count(SECRET.encode()) >= 3
