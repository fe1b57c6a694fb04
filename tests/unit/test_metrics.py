"""Metrics of nodes: read from what a node says, kept in small objects, and served as points."""

import asyncio
import gzip
import math
import os
import socket
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from rayhistory.collector.discovery import autoscaler_port, metrics_port
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.prometheus import MOST_SERIES, Scrape, ScrapeError, scrape, take_apart
from rayhistory.collector.samples import Sampler
from rayhistory.errors import StoreUnavailable
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.metrics import DamagedMetrics, Samples, Series, decode, encode
from rayhistory.server.app import create_app
from rayhistory.settings import Settings, resolve
from rayhistory.storage.local import LocalStore

SESSION = "session_2026-11-15_19-18-08_055078_15551"
REF = SessionRef("default", "test", SESSION)
NODE, OTHER = "a" * 56, "b" * 56
SAID = gzip.decompress((Path(__file__).parents[1] / "data/ray-2.60/metrics.txt.gz").read_bytes())
"""By the agent of a real Ray 2.60 whose job had tasks, actors and a counter of its own."""
SKIP = Settings().metrics_skip


def values(*numbers: float) -> bytes:
    return array("d", numbers).tobytes()


def read(text: bytes, *skip: str) -> Scrape:
    found = Scrape()
    for line in text.split(b"\n"):
        found.read(line, tuple(name.encode() for name in skip))
    return found


# What a node says


def test_a_real_nodes_answer_is_read_to_the_last_series() -> None:
    found = read(SAID)
    assert len(found.values) == sum(not line.startswith(b"#") for line in SAID.splitlines())
    assert not found.dropped
    parts = [take_apart(series) for series in found.values]
    assert None not in parts
    by_name = dict(filter(None, parts))
    assert by_name["ray_my_app_total"]["k"] == "v"
    assert by_name["ray_node_cpu_count"]["ip"] == "127.0.0.1"
    assert found.types["ray_tasks"] == "gauge"


def test_what_is_internal_to_ray_is_left_out_and_what_charts_need_is_not() -> None:
    names = {series.partition(b"{")[0].decode() for series in read(SAID, *SKIP).values}
    assert names >= {"ray_tasks", "ray_actors", "ray_resources", "ray_object_store_memory", "ray_my_app_total"}
    assert names >= {f"ray_node_{name}" for name in ("cpu_utilization", "mem_used_host", "disk_usage", "cpu_count")}
    assert names >= {"ray_node_network_send_speed", "ray_component_rss_bytes", "ray_component_cpu_percentage"}
    assert not [name for name in names if name.startswith(SKIP)]
    assert len(read(SAID, *SKIP).values) < len(read(SAID).values) / 2


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        (b"up 1", "up", {}, 1.0),
        (b"up 1 1786526102000", "up", {}, 1.0),
        (b'a{b="c"} 2 1786526102000', "a", {"b": "c"}, 2.0),
        (b'a{b="} 7 {",c=""} 3e5', "a", {"b": "} 7 {", "c": ""}, 3e5),
        (rb'a{b="q\"\\\n",} +Inf', "a", {"b": 'q"\\\n'}, math.inf),
        (b'a{ b = "c" , d="e"}\t4', "a", {"b": "c", "d": "e"}, 4.0),
        (b"a{} -0.5\r", "a", {}, -0.5),
    ],
)
def test_lines_are_read_in_every_form(line: bytes, name: str, labels: dict[str, str], value: float) -> None:
    ((series, number),) = read(line).values.items()
    assert take_apart(series) == (name, labels)
    assert number == value


@pytest.mark.parametrize("line", [b"up", b"up one", b'a{b="c"}', b"}", b"{", b"\xff\xfe"])
def test_lines_that_are_none_are_counted(line: bytes) -> None:
    found = read(line + b"\nup 1")
    assert (found.values, found.dropped) == ({b"up": 1.0}, 1)


@pytest.mark.parametrize(
    "series", [b"", b"{}", b"a}", b"1a", b"a{b}", b"a{b=c}", b'a{b="c}', b'a{"b"}', b"\xff", b'a{b="c"d}']
)
def test_names_that_are_none_have_no_parts(series: bytes) -> None:
    assert take_apart(series) is None


@given(st.binary(max_size=300))
def test_no_text_breaks_the_reader(text: bytes) -> None:
    for series in read(text).values:
        take_apart(series)


def test_the_number_of_series_is_bounded_and_the_rest_counted() -> None:
    found = read(b"\n".join(b'a{n="%d"} 1' % n for n in range(MOST_SERIES + 5)))
    assert (len(found.values), found.dropped) == (MOST_SERIES, 5)
    long = read(b"\n".join(b'a{n="%d%b"} 1' % (n, b"x" * 60_000) for n in range(200)))
    assert sum(map(len, long.values)) <= 4 * 2**20
    assert len(long.values) + long.dropped == 200


# Asking it


@contextmanager
def saying(*answers: bytes) -> Iterator[int]:
    """A port where each connection gets the next answer, whatever it asks for; the last one again and again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = list(answers)

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    try:
                        peer.sendall(left.pop(0) if len(left) > 1 else left[0])
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join()


def http(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body) if length is None else length, body)


def test_a_scrape_takes_the_whole_answer() -> None:
    with saying(http(SAID)) as port:
        assert asyncio.run(scrape(port, (), 10)) == read(SAID)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "not HTTP"),
        (b"hello\r\n\r\nup 1\n", "not HTTP"),
        (b"x" * 100_000, "not HTTP"),
        (b"HTTP/1.1 503 No\r\n\r\n", "status 503"),
        (http(b"up 1\n", 1000), "cut short"),
        (http(b"x" * 1_000_000), "line too long"),
        (http((b"#" * 60_000 + b"\n") * 1200), "too large"),
    ],
)
def test_an_answer_that_is_none_is_said_to_be(answer: bytes, reason: str) -> None:
    with saying(answer) as port, pytest.raises(ScrapeError, match=reason):
        asyncio.run(scrape(port, (), 30))


def test_nobody_there_and_nothing_said_are_failures() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ScrapeError, match="no answer in time"):
        asyncio.run(scrape(silent.getsockname()[1], (), 0.2))
    with pytest.raises(ScrapeError, match="no connection"):
        asyncio.run(scrape(silent_port(), (), 5))


def silent_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return int(closed.getsockname()[1])


def test_the_port_is_found_on_the_nodes_own_disk(tmp_path: Path) -> None:
    assert metrics_port(tmp_path, NODE) is None
    old = {"10.0.0.1:/tmp/plasma_store": {"metrics_agent_port": 1, "metrics_export_port": 8080}}
    (tmp_path / "ports_by_node.json").write_bytes(msgspec.json.encode(old))
    assert metrics_port(tmp_path, NODE) == 8080
    for said, port in (("40099", 40099), ("-1", None), ("x", None), ("99999", None), ("0", None)):
        (tmp_path / f"metrics_export_port_{NODE}").write_text(said)
        assert metrics_port(tmp_path, NODE) == port
    for bad in (b"\xff", b"[]", b"{", b'{"a":1}', b'{"a":{}}'):
        (tmp_path / f"metrics_export_port_{NODE}").unlink(missing_ok=True)
        (tmp_path / "ports_by_node.json").write_bytes(bad)
        assert metrics_port(tmp_path, NODE) is None
    (tmp_path / "logs").mkdir()
    line = "2026-11-16 INFO monitor.py:200 -- Starting autoscaler metrics server on port 44217\n"
    (tmp_path / "logs/monitor.log").write_text(line)
    assert autoscaler_port(tmp_path) == 44217


# Keeping it


def test_what_is_written_is_read_again() -> None:
    series = [Series("a", {"b": "c"}, values(1.0, math.nan)), Series("d", {}, values(math.inf, -0.0))]
    samples = Samples([1000, 2000], series, {"a": "gauge"}, 3)
    again = decode(encode(samples))
    assert again == samples
    assert list(again.series[0].points(again.times)) == [(1000, 1.0)]


def test_damage_is_found() -> None:
    whole = encode(Samples([1], [Series("a", {}, values(1.0))]))
    bomb = zstandard.compress(b"\0" * 200_000_000)
    wrong = encode(Samples([1, 2], [Series("a", {}, values(1.0))]))
    newer = encode(Samples([1], [], format=2))
    for data in (b"", b"x" * 100, whole[:-3], whole[:-1] + b"x", bomb, wrong, newer, zstandard.compress(b"\xc1")):
        with pytest.raises(DamagedMetrics):
            decode(data)


def sampler(tmp_path: Path, port: int, store: LocalStore, **options: Any) -> Sampler:
    tmp_path.joinpath(f"metrics_export_port_{NODE}").write_text(str(port))
    given = {"node": lambda: NODE, "interval": 5.0, "skip": (), "head": False} | options
    key_of = lambda node, first_ms: Layout().metrics_key(REF, node, first_ms)  # noqa: E731
    return Sampler(tmp_path, store, Metrics(), key_of=key_of, **given)


def kept(store: Path) -> list[Samples]:
    return [decode(path.read_bytes()) for path in sorted(store.rglob("*.msgpack.zst"))]


def test_samples_become_columns_and_one_object_that_grows(tmp_path: Path) -> None:
    """A series that comes late or goes away has no value meanwhile; what says nothing is left out of labels."""
    answers = [
        b'# TYPE a gauge\na{ip="1",SessionName="s",Version="2",empty=""} 1\nb 5\n',
        b'a{ip="1",SessionName="s",Version="2",empty=""} 2\n',
        b'a{ip="1",SessionName="s",Version="2",empty=""} 3\nc 7\nbad{ 1} 1\n',
    ]
    store = tmp_path / "store"

    async def run() -> None:
        with saying(*map(http, answers)) as port:
            taking = sampler(tmp_path, port, LocalStore(store))
            await taking.take()
            await taking.flush()
            (first,) = kept(store)
            assert len(first.times) == 1
            await taking.take()
            await taking.take()
            await taking.finish()
            assert taking.left() == []

    asyncio.run(run())
    (samples,) = kept(store)
    columns = {each.name: (each.labels, list(array("d", each.values))) for each in samples.series}
    assert columns["a"] == ({"ip": "1"}, [1.0, 2.0, 3.0])
    assert [str(value) for value in columns["b"][1]] == ["5.0", "nan", "nan"]
    assert [str(value) for value in columns["c"][1]] == ["nan", "nan", "7.0"]
    assert (samples.types, samples.dropped) == ({"a": "gauge"}, 1)
    assert abs(samples.times[0] - time.time() * 1000) < 60_000


def test_a_failed_scrape_leaves_no_sample_and_is_counted(tmp_path: Path) -> None:
    async def run() -> Metrics:
        with saying(http(b"up 1\n"), http(b"up 2\n", 1000), http(b"up 3\n")) as port:
            taking = sampler(tmp_path, port, LocalStore(tmp_path / "store"))
            for _ in range(3):
                await taking.take()
            await taking.finish()
            return taking._metrics

    metrics = asyncio.run(run())
    (samples,) = kept(tmp_path / "store")
    assert list(array("d", samples.series[0].values)) == [1.0, 3.0]
    assert b'metrics_failures_total{reason="cut short"} 1.0' in metrics.exposition()


def test_a_head_also_samples_its_autoscaler(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()

    async def run() -> None:
        with saying(http(b"up 1\n")) as port, saying(http(b"autoscaler_active_nodes 2\nprocess_x 1\n")) as autoscaler:
            said = f"Starting autoscaler metrics server on port {autoscaler}\n"
            (tmp_path / "logs/monitor.log").write_text(said)
            taking = sampler(tmp_path, port, LocalStore(tmp_path / "store"), head=True)
            await taking.take()
            await taking.finish()

    asyncio.run(run())
    (samples,) = kept(tmp_path / "store")
    assert [each.name for each in samples.series] == ["autoscaler_active_nodes", "up"]


class Away(LocalStore):
    away = True

    async def put(self, key: str, data: bytes | Path) -> None:
        if self.away:
            raise StoreUnavailable("connection refused")
        await super().put(key, data)


def test_a_store_that_was_away_gets_everything(tmp_path: Path) -> None:
    """Also what was of another node id, or of an hour that was over meanwhile."""
    names = [NODE, OTHER, NODE]

    async def run() -> None:
        store = Away(tmp_path / "store")
        with saying(http(b"up 1\n")) as port:
            tmp_path.joinpath(f"metrics_export_port_{OTHER}").write_text(str(port))
            taking = sampler(tmp_path, port, store, node=lambda: names[0])
            while names:
                await taking.take()
                await taking.flush()
                del names[0]
                await asyncio.sleep(0.002)
            assert len(taking.left()) == 3
            store.away = False
            await taking.finish()
            assert not taking.left()

    asyncio.run(run())
    assert len(kept(tmp_path / "store")) == 3


def test_what_waits_for_a_store_is_bounded_and_what_is_given_up_counted(tmp_path: Path) -> None:
    names = [f"{n:056x}" for n in range(14)]
    noise = b"".join(b'n%d{x="%b"} %d\n' % (n, os.urandom(400).hex().encode(), n) for n in range(2000))

    async def run() -> tuple[int, int]:
        store = Away(tmp_path / "store")
        with saying(http(noise)) as port:
            taking = sampler(tmp_path, port, store, node=lambda: names[0])
            while len(names) > 1:
                tmp_path.joinpath(f"metrics_export_port_{names[0]}").write_text(str(port))
                await taking.take()
                await taking.flush()
                del names[0]
            return sum(map(len, taking._waiting.values())), taking._metrics.lost

    waiting, lost = asyncio.run(run())
    assert waiting <= 8 * 2**20
    assert lost > 0


# Giving it back


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """Two nodes; the first has two files, of which the second one begins at 3000, and one that is damaged."""
    store = tmp_path / "store"
    metadata = store / Layout().metadata_key(REF)
    metadata.parent.mkdir(parents=True)
    metadata.write_bytes(b"")

    def put(node: str, first_ms: int, data: bytes) -> None:
        path = store / Layout().metrics_key(REF, node, first_ms)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    cpu = {"ip": "1"}
    put(NODE, 1000, encode(Samples([1000, 2000], [
        Series("cpu", cpu, values(10.0, 20.0)), Series("tasks", {"State": "RUNNING"}, values(math.nan, 1.0)),
        Series("tasks", {"State": "FAILED"}, values(0.0, 0.0)), Series("asked_total", {}, values(1.0, 2.0)),
    ], {"cpu": "gauge", "tasks": "gauge", "asked": "counter"}, 7)))  # fmt: skip
    put(NODE, 3000, encode(Samples([3000, 3500], [Series("cpu", cpu, values(30.0, math.inf))], {"cpu": "gauge"})))
    put(OTHER, 1500, encode(Samples([1500], [Series("cpu", {"ip": "2"}, values(5.0))], {"cpu": "gauge"})))
    put(OTHER, 9000, b"damaged")
    flags = {"setting_local_storage_dir": str(store), "setting_cache_dir": str(tmp_path / "cache"),
             "setting_index_ahead": "false"}  # fmt: skip
    with TestClient(create_app(resolve("historyserver", flags, {})[0])) as client:
        yield client


AT = f"/s/default/test/{SESSION}"


def test_names_are_listed_with_what_is_missing(client: TestClient) -> None:
    assert client.get(f"{AT}/api/history/metrics").json() == {
        "metrics": [
            {"name": "asked_total", "type": "counter", "nodes": 1},
            {"name": "cpu", "type": "gauge", "nodes": 2},
            {"name": "tasks", "type": "gauge", "nodes": 1},
        ],
        "series_dropped": 7,
        "files_damaged": 1,
    }


def test_points_are_joined_over_files_and_nodes(client: TestClient) -> None:
    """And are the same when asked for again."""
    for _ in range(2):
        answer = client.get(f"{AT}/api/history/metrics?name=cpu").json()
        assert answer["type"] == "gauge"
        assert answer["series"] == [
            {"node": NODE, "labels": {"ip": "1"}, "points": [[1000, 10.0], [2000, 20.0], [3000, 30.0], [3500, None]]},
            {"node": OTHER, "labels": {"ip": "2"}, "points": [[1500, 5.0]]},
        ]


@pytest.mark.parametrize(
    ("asked", "points"),
    [
        ("name=tasks&State=RUNNING", [[[2000, 1.0]]]),
        ("name=tasks&State=NONE", []),
        ("name=nothing", []),
        (f"name=cpu&node={OTHER}", [[[1500, 5.0]]]),
        ("name=cpu&from=1500&to=2000", [[[2000, 20.0]], [[1500, 5.0]]]),
        ("name=cpu&ip=1&step=2000", [[[1000, 10.0], [3500, None]]]),
    ],
)
def test_points_are_chosen_by_label_node_and_time(client: TestClient, asked: str, points: list[Any]) -> None:
    found = client.get(f"{AT}/api/history/metrics?{asked}").json()["series"]
    assert [each["points"] for each in found] == points


def test_as_of_a_moment_nothing_later_is_seen(client: TestClient) -> None:
    found = client.get(f"{AT}@1700/api/history/metrics?name=cpu").json()["series"]
    assert [each["points"] for each in found] == [[[1000, 10.0]], [[1500, 5.0]]]


def test_wrong_questions_are_told_so(client: TestClient) -> None:
    assert client.get(f"{AT}/api/history/metrics?name=cpu&from=yesterday").status_code == 400
    other = AT.replace("15551", "15552")
    assert client.get(f"{other}/api/history/metrics").status_code == 404
