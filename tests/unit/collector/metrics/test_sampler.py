"""Metrics samples reach the store in objects that grow, also after an outage."""

import asyncio
import os
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from rayhistory.collector.metrics import sampler as sampler_module
from rayhistory.collector.metrics.sampler import MetricsSampler, SampleWindow, sample_interval
from rayhistory.collector.telemetry import Telemetry
from rayhistory.errors import StoreUnavailable
from rayhistory.metrics.samples import Samples, decode
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.local import LocalStore
from support.metrics_endpoint import http_response, serve_responses

REF = SessionRef("default", "test", "session_2026-11-15_19-18-08_055078_15551")
NODE, OTHER_NODE = "a" * 56, "b" * 56


def make_sampler(tmp_path: Path, port: int, store: LocalStore, **options: Any) -> MetricsSampler:
    tmp_path.joinpath(f"metrics_export_port_{NODE}").write_text(str(port))
    arguments: dict[str, Any] = {"node": lambda: NODE, "interval": 5.0, "skip": (), "head": False} | options
    key_of = lambda node, first_ms: Layout().metrics_key(REF, node, first_ms)  # noqa: E731
    return MetricsSampler(tmp_path, store, Telemetry(), key_of=key_of, **arguments)


def stored_samples(store: Path) -> list[Samples]:
    return [decode(path.read_bytes()) for path in sorted(store.rglob("*.msgpack.zst"))]


@pytest.mark.parametrize(
    ("age_s", "interval_s", "expected_s"), [(0, 15, 5), (179, 15, 5), (180, 15, 15), (0, 2, 2), (3600, 2, 2)]
)
def test_first_minutes_are_sampled_more_often(age_s: float, interval_s: float, expected_s: float) -> None:
    """Short sessions need charts, too. A shorter interval stays, as that of `rayhistory run`."""
    assert sample_interval(age_s, interval_s) == expected_s


def test_samples_become_columns_in_one_object_that_grows(tmp_path: Path) -> None:
    """A series that appears late or vanishes has no value meanwhile. Constant and empty labels are removed."""
    bodies = [
        b'# TYPE a gauge\na{ip="1",SessionName="s",Version="2",empty=""} 1\nb 5\n',
        b'a{ip="1",SessionName="s",Version="2",empty=""} 2\n',
        b'a{ip="1",SessionName="s",Version="2",empty=""} 3\nc 7\nbad{ 1} 1\n',
    ]
    store = tmp_path / "store"

    async def run() -> None:
        with serve_responses(*map(http_response, bodies)) as port:
            sampler = make_sampler(tmp_path, port, LocalStore(store))
            await sampler.sample()
            await sampler.flush()
            (first,) = stored_samples(store)
            assert len(first.times) == 1
            await sampler.sample()
            await sampler.sample()
            await sampler.finish()
            assert sampler.unshipped() == []

    asyncio.run(run())
    (samples,) = stored_samples(store)
    columns = {series.name: (series.labels, list(array("d", series.values))) for series in samples.series}
    assert columns["a"] == ({"ip": "1"}, [1.0, 2.0, 3.0])
    assert [str(value) for value in columns["b"][1]] == ["5.0", "nan", "nan"]
    assert [str(value) for value in columns["c"][1]] == ["nan", "nan", "7.0"]
    assert (samples.types, samples.dropped) == ({"a": "gauge"}, 1)
    assert abs(samples.times[0] - time.time() * 1000) < 60_000


def test_failed_scrape_adds_no_sample_and_is_counted(tmp_path: Path) -> None:
    async def run() -> Telemetry:
        responses = http_response(b"up 1\n"), http_response(b"up 2\n", 1000), http_response(b"up 3\n")
        with serve_responses(*responses) as port:
            sampler = make_sampler(tmp_path, port, LocalStore(tmp_path / "store"))
            for _ in range(3):
                await sampler.sample()
            await sampler.finish()
            return sampler._telemetry

    telemetry = asyncio.run(run())
    (samples,) = stored_samples(tmp_path / "store")
    assert list(array("d", samples.series[0].values)) == [1.0, 3.0]
    assert b'metrics_scrape_failures_total{reason="truncated"} 1.0' in telemetry.exposition()


def test_head_also_samples_its_autoscaler(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    autoscaler_body = http_response(b"autoscaler_active_nodes 2\nprocess_x 1\n")

    async def run() -> None:
        with serve_responses(http_response(b"up 1\n")) as port, serve_responses(autoscaler_body) as autoscaler_port:
            line = f"Starting autoscaler metrics server on port {autoscaler_port}\n"
            (tmp_path / "logs/monitor.log").write_text(line)
            sampler = make_sampler(tmp_path, port, LocalStore(tmp_path / "store"), head=True)
            await sampler.sample()
            await sampler.finish()

    asyncio.run(run())
    (samples,) = stored_samples(tmp_path / "store")
    assert [series.name for series in samples.series] == ["autoscaler_active_nodes", "up"]


class UnavailableStore(LocalStore):
    available = False

    async def put(self, key: str, data: bytes | Path) -> None:
        if not self.available:
            raise StoreUnavailable("connection refused")
        await super().put(key, data)


def test_all_samples_are_stored_after_an_outage(tmp_path: Path) -> None:
    """Including those of another node id, and of an hour that ended meanwhile."""
    nodes = [NODE, OTHER_NODE, NODE]

    async def run() -> None:
        store = UnavailableStore(tmp_path / "store")
        with serve_responses(http_response(b"up 1\n")) as port:
            tmp_path.joinpath(f"metrics_export_port_{OTHER_NODE}").write_text(str(port))
            sampler = make_sampler(tmp_path, port, store, node=lambda: nodes[0])
            while nodes:
                await sampler.sample()
                await sampler.flush()
                del nodes[0]
                await asyncio.sleep(0.002)
            assert len(sampler.unshipped()) == 3
            store.available = True
            await sampler.finish()
            assert not sampler.unshipped()

    asyncio.run(run())
    assert len(stored_samples(tmp_path / "store")) == 3


def test_pending_samples_are_bounded_and_dropped_ones_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "_MAX_PENDING_BYTES", 32 << 10)
    nodes = [f"{n:056x}" for n in range(6)]
    body = b"".join(b'n%d{x="%b"} %d\n' % (n, os.urandom(400).hex().encode(), n) for n in range(20))

    async def run() -> tuple[int, int]:
        store = UnavailableStore(tmp_path / "store")
        with serve_responses(http_response(body)) as port:
            sampler = make_sampler(tmp_path, port, store, node=lambda: nodes[0])
            while len(nodes) > 1:
                tmp_path.joinpath(f"metrics_export_port_{nodes[0]}").write_text(str(port))
                await sampler.sample()
                await sampler.flush()
                del nodes[0]
            return sum(map(len, sampler._pending.values())), sampler._telemetry.lost_count

    pending_bytes, lost = asyncio.run(run())
    assert 16 << 10 < pending_bytes <= 32 << 10
    assert lost > 0


def test_clock_that_was_set_back_ends_the_object() -> None:
    """The key of an object has the time of its first sample, so that all others must be later."""
    window = SampleWindow("key", "node", 10_000)
    assert not window.is_full(10_000)
    assert window.is_full(9_999)
    assert window.is_full(10_000 + 3_600_000)
