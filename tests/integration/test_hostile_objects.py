"""Hostile objects in the store: they damage only what they contain."""

import asyncio
import dataclasses
import gzip
import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
import zstandard
from starlette.testclient import TestClient

from rayhistory.collector.ingest.event_routing import route_batch
from rayhistory.errors import IndexDamaged, StoreError
from rayhistory.events.dashboard_responses import add_dashboard_rows
from rayhistory.events.row_buffer import RowBuffer
from rayhistory.index.fold import source_reader, sources
from rayhistory.index.fold.served_tasks import AS_OF_COLUMNS
from rayhistory.index.manifest import MERGED_PREFIX, SCHEMA_VERSION, Manifest, parse_manifest
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Filter, Query
from rayhistory.server.app import create_app
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage.local import LocalStore
from support.folding import NODE, RECORDED, as_lines, fold_session, put, rows
from support.recorded_sample import REF, settings_for, store_indexed_sample, store_sample
from support.stored_manifest import describe_file

HOSTILE = SessionRef.checked("default", "hostile", "session_2026-11-15_20-00-00_000000_1")
DEEP = b"[" * 100_000 + b"]" * 100_000
LAYOUT = Layout()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    store_sample(settings_for(tmp_path))
    return tmp_path


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    store_indexed_sample(settings_for(tmp_path))
    return tmp_path


def write(directory: Path, key: str, data: bytes) -> None:
    path = directory / "store" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def client_for(directory: Path) -> TestClient:
    settings = dataclasses.replace(settings_for(directory), index_ahead=False)
    return TestClient(create_app(settings), follow_redirects=False)


# Records

RECORDS: dict[str, bytes] = {
    "a year out of range": b'{"namespace":"default","cluster":"hostile","session":"s","started_ms":%d,'
    b'"ended_ms":%d,"last_ms":%d}' % ((10**30,) * 3),
    "negative times": b'{"namespace":"a","cluster":"b","session":"s","started_ms":-1e300,"ended_ms":-1}',
    "invalid UTF-8": b'{"namespace":"\xff\xfe","ended_ms":1,"reason":"\xff","last_ms":1}',
    "deep nesting": b'{"ended_ms":1,"last_ms":1,"x":' + DEEP + b"}",
    "a number of 400 digits": b'{"ended_ms":' + b"9" * 400 + b',"started_ms":1,"last_ms":1}',
    "empty": b"",
    "a list": b"[]",
}


@pytest.mark.parametrize("record", ["start.json", "end.json", "vanished.json", "manifest"])
def test_malformed_records_do_not_break_the_list_of_sessions(home: Path, record: str) -> None:
    refs = {name: SessionRef.checked("default", f"hostile-{n}", HOSTILE.session) for n, name in enumerate(RECORDS)}
    for name, ref in refs.items():
        for key in (LAYOUT.metadata_key(ref), LAYOUT.start_key(ref), LAYOUT.alive_key(ref)):
            write(home, key, b"")
        key = LAYOUT.manifest_key(ref, 1) if record == "manifest" else f"{Path(LAYOUT.start_key(ref)).parent}/{record}"
        write(home, key, RECORDS[name])
    pages = [(ref.url, f"{ref.url}gaps") for ref in refs.values()]
    with client_for(home) as client:
        for path in ("/home", "/home.json", "/clusters", *itertools.chain.from_iterable(pages)):
            response = client.get(path, headers={"Accept": "text/html"})
            assert response.status_code == 200, (path, response.text[:300])
        listed = {row["cluster"] for row in client.get("/home.json").json()["sessions"]}
        assert listed == {"sample", *(ref.cluster for ref in refs.values())}


# Indexes


def _change_manifest(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Index the session, then change its manifest."""
    with client_for(directory) as client:
        assert client.get(f"{REF.url}api/v0/tasks?limit=1").status_code == 200
    (path,) = (directory / "store" / LAYOUT.index_prefix(REF)).glob("manifest-*.json")
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_bytes(json.dumps(manifest).encode())


def _served_only(files: dict[str, Any]) -> dict[str, Any]:
    return {name: sizes for name, sizes in files.items() if not name.startswith(MERGED_PREFIX)}


MANIFESTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a relative build path": lambda m: m.update(build="../../../../../elsewhere"),
    "an absolute build path": lambda m: m.update(build="/tmp/elsewhere"),
    "a build with a quote": lambda m: m.update(build="x') OR true --"),
    "a relative table path": lambda m: m["files"].update({"../../tasks": [7]}),
    "a missing table": lambda m: m["parts"][0]["files"].pop("tasks"),
    "a part without keys": lambda m: m["parts"][0]["files"].pop("merged.keys"),
    "a part without name": lambda m: m["parts"][0].update(name="../.."),
    "a file elsewhere": lambda m: m["files"].update(jobs=[["../../elsewhere", 0, 1]]),
    "no tables": lambda m: m.update(files={}),
    "no merged tables": lambda m: m.update(
        files={k: v for k, v in m["files"].items() if not k.startswith(MERGED_PREFIX)}
    ),
    "too many files": lambda m: m["files"].update(jobs=[["1-x", 0, 1]] * 100_000),
    "a negative file size": lambda m: m["files"].update(jobs=[["1-x", 0, -1]]),
    "a huge file size": lambda m: m["files"].update(jobs=[["1-x", 0, 2**62]]),
    "a count out of range": lambda m: m["counts"].update(tasks=10**80),
    "a time out of range": lambda m: m.update(last_ns=10**40),
    "text instead of numbers": lambda m: m.update(first_ns="now", generation="x"),
    "a negative generation": lambda m: m.update(generation=-5),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_hostile_manifest_is_ignored(indexed: Path, name: str) -> None:
    """It opens no other file. The session is indexed again, and its responses are as before."""
    with client_for(indexed) as client:
        good = client.get(f"{REF.url}api/v0/tasks?limit=5").json()
    _change_manifest(indexed, MANIFESTS[name])
    with client_for(indexed) as client:
        response = client.get(f"{REF.url}api/v0/tasks?limit=5")
        assert response.status_code == 200, response.text
        assert response.json()["data"]["result"]["result"] == good["data"]["result"]["result"]
        assert client.get("/home").status_code == 200
    assert not Path("/tmp/elsewhere").exists()


def test_manifest_with_too_many_tables_is_invalid() -> None:
    template = (b'{"schema":%d,"generation":1,"build":"1-a","files":{%s},"covered":"","closing":null,"counts":{},'
               b'"first_ns":null,"last_ns":null,"ray_version":null,"seconds":1,"events":1}')  # fmt: skip
    assert parse_manifest(template % (SCHEMA_VERSION, b'"tasks":[["1-a",0,1]]')) is not None
    assert parse_manifest(template % (SCHEMA_VERSION, b",".join(b'"t%d":[]' % n for n in range(5_000)))) is None


def _replace_table(directory: Path, table: str, query: str) -> None:
    """Replace a table by another Parquet file, and its size and digest in the manifest."""

    def change(manifest: dict[str, Any]) -> None:
        path = directory / "store" / LAYOUT.index_file_key(REF, manifest["build"], table, 0)
        with duckdb.connect() as database:
            database.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
        describe_file(manifest, table, path)

    _change_manifest(directory, change)
    for path in (directory / "cache").rglob("*.parquet"):
        path.unlink()


TABLES = {
    "unknown columns": "SELECT 1 AS x",
    "columns of other types": "SELECT 1 AS task_id, [1] AS state, true AS name, {'a': 1} AS job_id",
    "no rows": "SELECT 'x' AS task_id WHERE false",
    "a column that is a query": "SELECT 1 AS \"(SELECT content FROM read_text('/etc/passwd'))\", 'x' AS task_id",
    "a type that is a query": "SELECT {']''))) OR (SELECT true FROM read_text(''/etc/passwd'')) --': 1} AS task_id",
    "hundreds of millions of rows": "SELECT repeat('x', 1000) AS name, 'FAILED' AS state FROM range(200000000)",
}


@pytest.mark.parametrize("name", TABLES)
def test_replaced_table_does_not_affect_other_sessions(indexed: Path, name: str) -> None:
    """Its content is shown, or an error; other sessions are served as usual."""
    write(indexed, LAYOUT.metadata_key(HOSTILE), b"")
    limit = 100_000 if name == "hundreds of millions of rows" else 10
    _replace_table(indexed, "tasks", TABLES[name].replace("200000000", str(limit * 20)))
    with client_for(indexed) as client:
        for path in (
            "api/v0/tasks?detail=1&limit=10000", "api/history/rows/tasks?limit=10", "api/v0/tasks/summarize",
            "api/history/rows/tasks?columns=" + "(SELECT content FROM read_text('/etc/passwd'))",
            "api/history/rows/tasks?sort=" + "(SELECT content FROM read_text('/etc/passwd'))",
        ):  # fmt: skip
            response = client.get(f"{REF.url}{path}")
            assert response.status_code in (200, 400, 500, 503), path
            assert "root:x:" not in response.text
        assert client.get(f"{HOSTILE.url}api/v0/tasks").status_code == 200


def test_unknown_column_type_is_not_part_of_a_query(home: Path) -> None:
    """The type of a struct contains its field names, which could hold SQL."""
    manifests: list[dict[str, Any]] = []
    _change_manifest(home, manifests.append)
    path = home / "hostile.parquet"
    with duckdb.connect() as database:
        facts = ", ".join(f"NULL AS {fact}" for fact in AS_OF_COLUMNS)
        source = f"SELECT *, {facts} FROM ({TABLES['a type that is a query']})"
        database.execute(f"COPY ({source}) TO '{path}' (FORMAT parquet)")
    manifest = msgspec.convert(manifests[0], Manifest)

    async def fetch(name: str, numbers: Sequence[int], *, refetch: bool) -> list[Path]:
        return [path]

    many = Filter("task_id", "in", tuple(range(17)))
    with pytest.raises(IndexDamaged, match="unexpected column types: STRUCT"):
        asyncio.run(OpenIndex(manifest, fetch).rows(Query("tasks", filters=(many,))))


# Events


def _gap_counts(directory: Path) -> dict[str, int]:
    manifest = fold_session(directory)
    return dict(rows(directory, manifest, "SELECT kind, sum(count) FROM gaps GROUP BY 1"))


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "an endless line, gzip": (lambda: gzip.compress(b'{"eventId": "' + b" " * (40 << 20)), "line_too_long"),
    "an endless line, zstd": (lambda: zstandard.compress(b" " * (40 << 20)), "line_too_long"),
    "an endless line": (lambda: b"x" * (40 << 20), "line_too_long"),
    "an endless array": (lambda: gzip.compress(b"[" + b" " * (40 << 20)), "event_array_too_large"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_too_large_lines_and_arrays_are_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The rest of the session is read, and the lines after a line that is too long."""
    monkeypatch.setattr(source_reader, "MAX_WHOLE_BYTES", 8 << 20)
    bomb, code = BOMBS[name]
    put(tmp_path, 1, as_lines(RECORDED))
    put(tmp_path, 2, bomb())
    put(tmp_path, 3, b"x" * (20 << 20) + b"\n" + as_lines(RECORDED[:50]))
    found = _gap_counts(tmp_path)
    assert found[code] >= 1
    assert found["line_too_long"] >= 1


def test_too_large_responses_and_event_logs_are_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (source_reader, sources):
        monkeypatch.setattr(module, "MAX_WHOLE_BYTES", 1 << 20)
    put(tmp_path, 1, as_lines(RECORDED))
    history = tmp_path / Path(put(tmp_path, 2, b"")).parents[2].relative_to(Path())
    for path, content in {
        history / "fetched_endpoints/restful__api__jobs": b"[" + b" " * (2 << 20) + b"]",
        history / NODE / "logs/events/event_GCS.log": b'{"event_id": "e", "timestamp": "1"}\n' * 100_000,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    found = _gap_counts(tmp_path)
    assert found["dashboard_response_too_large"] == 1
    assert found["event_log_too_large"] == 1


def test_huge_records_are_not_read_whole(home: Path) -> None:
    """The session opens without them. They are sparse files, so that the test needs no disk space."""
    keys = (LAYOUT.start_key(REF), LAYOUT.end_key(REF), LAYOUT.manifest_key(REF, 7), LAYOUT.node_seal_key(REF, NODE))
    for key in keys:
        write(home, key, b"")
        os.truncate(home / "store" / key, 1 << 40)
    with client_for(home) as client:
        assert client.get(f"{REF.url}api/v0/tasks").status_code == 200
        assert client.get("/home.json").json()["sessions"][0]["state"] == "ended"


def test_deeply_nested_response_does_not_raise() -> None:
    """A document that can just be decoded cannot always be encoded again."""
    for depth in range(200, 1_100, 25):
        try:
            deep = msgspec.json.decode(b"[" * depth + b"]" * depth)
        except RecursionError:
            break
        job = dict.fromkeys(("entrypoint", "job_id", "message", "error_type"))
        job |= {"type": "SUBMISSION", "submission_id": "x", "runtime_env": deep, "metadata": deep, "status": "FAILED"}
        add_dashboard_rows(RowBuffer(), "/api/jobs/", [job | {"start_time": 1, "end_time": 1}], 1)


@pytest.mark.parametrize("event_type", [{"a": 1}, [1], 7, None, True])
def test_event_type_that_is_not_text_does_not_reject_the_batch(event_type: object) -> None:
    """Ray would send a rejected batch again forever."""
    good = {"eventId": "g", "sessionName": REF.session, "eventType": "NODE_LIFECYCLE_EVENT"}
    routed = route_batch(json.dumps([{**good, "eventType": event_type, "x": "ü"}, good], ensure_ascii=False).encode())
    assert routed.event_count == 2
    assert sum(block.lines for blocks in routed.blocks.values() for block in blocks) + len(routed.malformed) == 2


# Keys and files


def test_unicode_digits_are_not_a_generation() -> None:
    prefix = LAYOUT.index_prefix(REF)
    for name in ("²-x/tasks.0.parquet", "٣-x/t", "-x", "manifest-².json", "manifest-٣.json"):
        assert LAYOUT.generation_of(REF, f"{prefix}/{name}") is None
    assert LAYOUT.generation_of(REF, f"{prefix}/12-x/t") == 12


def test_symlink_in_the_store_is_not_followed(tmp_path: Path) -> None:
    """Neither one to a file outside, nor one to the store itself."""
    store = LocalStore(tmp_path / "store")
    write(tmp_path, "a/b", b"x")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store/a/out").symlink_to(tmp_path / "secret")
    (tmp_path / "store/a/loop").symlink_to(tmp_path / "store")

    async def keys() -> list[str]:
        return [info.key async for info in store.list_all("")]

    assert asyncio.run(keys()) == ["a/b"]
    for key in ("a/out", "a/loop/a/b"):
        with pytest.raises(StoreError):
            asyncio.run(store.get(key))
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "store")
    assert asyncio.run(LocalStore(linked).get("a/b")) == b"x"


@pytest.mark.parametrize(
    ("time", "status"),
    [
        ("0001-01-01T00:00:00Z", 404),
        ("0001-01-01T00:00:00+23:59", 404),
        ("0", 404),
        ("1969-12-31T23:59:59Z", 404),
        ("9999-12-31T23:59:59Z", 200),
        ("999999999999999", 200),
    ],
)
def test_extreme_times_are_before_the_start_or_after_the_end(indexed: Path, time: str, status: int) -> None:
    with client_for(indexed) as client:
        response = client.get(f"{REF.url[:-1]}@{time}/api/v0/tasks")
        assert response.status_code == status, response.text
