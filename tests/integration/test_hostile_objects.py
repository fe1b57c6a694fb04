"""Objects in the bucket that somebody made to do harm: they cost what is in them, and nothing else."""

import asyncio
import dataclasses
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
import zstandard
from starlette.testclient import TestClient

from folding import NODE, RECORDED, as_lines, fold_session, put, rows
from folding import REF as FOLDED
from rayhistory.collector.routing import sort
from rayhistory.errors import DamagedIndex, StoreError
from rayhistory.events.columns import Rows
from rayhistory.events.snapshots import add_rows
from rayhistory.index import read as reading
from rayhistory.index.manifest import MERGED, SCHEMA, Manifest, parse_manifest
from rayhistory.index.query import Filter, OpenIndex, Query
from rayhistory.index.sources import list_sources
from rayhistory.keeping.copying import SessionCopy
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.packnames import shown
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import (
    EVENTS,
    GONE,
    LOG,
    Catalog,
    Compressor,
    DamagedPack,
    Frame,
    Place,
    Range,
    Root,
    SegmentInfo,
    Stream,
    Tail,
    end_of_pack,
    pack_name,
    to_columns,
    unpack_directory,
)
from rayhistory.server.app import create_app
from rayhistory.storage.local import LocalStore
from recorded_sample import REF, keep_sample, settings_for

HOSTILE = SessionRef.checked("default", "hostile", "session_2026-11-15_20-00-00_000000_1")
DEEP = b"[" * 100_000 + b"]" * 100_000
LAYOUT = Layout()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    keep_sample(settings_for(tmp_path))
    return tmp_path


def write(directory: Path, key: str, data: bytes) -> None:
    path = directory / "store" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def served(directory: Path) -> TestClient:
    settings = dataclasses.replace(settings_for(directory), index_ahead=False)
    return TestClient(create_app(settings), follow_redirects=False)


# Records

RECORDS: dict[str, bytes] = {
    "a year that no calendar has": b'{"namespace":"default","cluster":"hostile","session":"s","started_ms":%d,'
    b'"ended_ms":%d,"last_ms":%d}' % ((10**30,) * 3),
    "a time before time": b'{"namespace":"a","cluster":"b","session":"s","started_ms":-1e300,"ended_ms":-1}',
    "bytes that are no text": b'{"namespace":"\xff\xfe","ended_ms":1,"reason":"\xff","last_ms":1}',
    "depth": b'{"ended_ms":1,"last_ms":1,"x":' + DEEP + b"}",
    "a number of 400 digits": b'{"ended_ms":' + b"9" * 400 + b',"started_ms":1,"last_ms":1}',
    "nothing": b"",
    "a list": b"[]",
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("record", ["start.json", "end.json", "vanished.json", "manifest"])
def test_a_bad_record_does_not_take_the_list_of_sessions_away(home: Path, record: str, name: str) -> None:
    write(home, LAYOUT.metadata_key(HOSTILE), b"")
    for key in (LAYOUT.start_key(HOSTILE), LAYOUT.alive_key(HOSTILE)):
        write(home, key, b"")
    key = (
        LAYOUT.manifest_key(HOSTILE, 1)
        if record == "manifest"
        else f"{Path(LAYOUT.start_key(HOSTILE)).parent}/{record}"
    )
    write(home, key, RECORDS[name])
    with served(home) as client:
        for path in ("/home", "/home.json", "/clusters", HOSTILE.url, f"{HOSTILE.url}gaps"):
            answer = client.get(path, headers={"Accept": "text/html"})
            assert answer.status_code == 200, (path, answer.text[:300])
        assert {row["cluster"] for row in client.get("/home.json").json()["sessions"]} == {"sample", "hostile"}


# Indexes


def _with_index(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The session's own index, whose manifest says something else."""
    with served(directory) as client:
        assert client.get(f"{REF.url}api/v0/tasks?limit=1").status_code == 200
    (path,) = (directory / "store" / LAYOUT.index_prefix(REF)).glob("manifest-*.json")
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_bytes(json.dumps(manifest).encode())


MANIFESTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a build elsewhere": lambda m: m.update(build="../../../../../elsewhere"),
    "a build at the root": lambda m: m.update(build="/tmp/elsewhere"),
    "a build with a quote": lambda m: m.update(build="x') OR true --"),
    "a table elsewhere": lambda m: m["files"].update({"../../tasks": [7]}),
    "a table less": lambda m: m["files"].pop("tasks"),
    "no tables": lambda m: m.update(files={}),
    "no merged tables": lambda m: m.update(files={k: v for k, v in m["files"].items() if not k.startswith(MERGED)}),
    "more parts than there can be": lambda m: m["files"].update(tasks=[1] * 100_000),
    "a file of no size": lambda m: m["files"].update(tasks=[-1]),
    "a file beyond all sizes": lambda m: m["files"].update(tasks=[2**62]),
    "more tasks than atoms": lambda m: m["counts"].update(tasks=10**80),
    "an end beyond time": lambda m: m.update(last_ns=10**40),
    "numbers that are texts": lambda m: m.update(first_ns="now", generation="x"),
    "a generation that is none": lambda m: m.update(generation=-5),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_lies_is_no_manifest(home: Path, name: str) -> None:
    """Nothing outside is opened because of it: the session is folded again, and answers as before."""
    with served(home) as client:
        good = client.get(f"{REF.url}api/v0/tasks?limit=5").json()
    for path in (home / "store" / LAYOUT.index_prefix(REF)).glob("manifest-*.json"):
        path.unlink()
    _with_index(home, MANIFESTS[name])
    with served(home) as client:
        answer = client.get(f"{REF.url}api/v0/tasks?limit=5")
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"]["result"]["result"] == good["data"]["result"]["result"]
        assert client.get("/home").status_code == 200
    assert not Path("/tmp/elsewhere").exists()


def test_a_manifest_of_many_tables_is_none() -> None:
    (seed,) = [b'{"schema":%d,"generation":1,"build":"1-a","files":{%s},"covered":"","closing":null,"counts":{},'
               b'"first_ns":null,"last_ns":null,"ray_version":null,"seconds":1,"events":1}']  # fmt: skip
    assert parse_manifest(seed % (SCHEMA, b'"tasks":[1]')) is not None
    assert parse_manifest(seed % (SCHEMA, b",".join(b'"t%d":[1]' % n for n in range(5_000)))) is None


def _replace_table(directory: Path, table: str, query: str) -> None:
    """Another Parquet file in the place of a table, and a manifest that knows its size."""

    def change(manifest: dict[str, Any]) -> None:
        path = directory / "store" / LAYOUT.index_file_key(REF, manifest["build"], table, 0)
        with duckdb.connect() as database:
            database.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
        manifest["files"][table] = [path.stat().st_size]

    _with_index(directory, change)
    for path in (directory / "cache").rglob("*.parquet"):
        path.unlink()


TABLES = {
    "no columns that are known": "SELECT 1 AS x",
    "columns of other types": "SELECT 1 AS task_id, [1] AS state, true AS name, {'a': 1} AS job_id",
    "no rows": "SELECT 'x' AS task_id WHERE false",
    "a column that is a query": "SELECT 1 AS \"(SELECT content FROM read_text('/etc/passwd'))\", 'x' AS task_id",
    "a type that is a query": "SELECT {']''))) OR (SELECT true FROM read_text(''/etc/passwd'')) --': 1} AS task_id",
    "hundreds of millions of rows": "SELECT repeat('x', 1000) AS name, 'FAILED' AS state FROM range(200000000)",
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_another_harms_nobody_else(home: Path, name: str) -> None:
    """What it says is shown, or an error; the next visitor of another session notices nothing."""
    write(home, LAYOUT.metadata_key(HOSTILE), b"")
    rows_wanted = 100_000 if name == "hundreds of millions of rows" else 10
    _replace_table(home, "tasks", TABLES[name].replace("200000000", str(rows_wanted * 20)))
    with served(home) as client:
        for asked in (
            "api/v0/tasks?detail=1&limit=10000", "api/history/rows/tasks?limit=10", "api/v0/tasks/summarize",
            "api/history/rows/tasks?columns=" + "(SELECT content FROM read_text('/etc/passwd'))",
            "api/history/rows/tasks?sort=" + "(SELECT content FROM read_text('/etc/passwd'))",
        ):  # fmt: skip
            answer = client.get(f"{REF.url}{asked}")
            assert answer.status_code in (200, 400, 500, 503), asked
            assert "root:x:" not in answer.text
        assert client.get(f"{HOSTILE.url}api/v0/tasks").status_code == 200


def test_a_type_that_is_none_of_ours_stands_in_no_query(home: Path) -> None:
    """The names of a structure's fields are part of its type."""
    manifests: list[dict[str, Any]] = []
    _with_index(home, manifests.append)
    path = home / "hostile.parquet"
    with duckdb.connect() as database:
        database.execute(f"COPY ({TABLES['a type that is a query']}) TO '{path}' (FORMAT parquet)")
    manifest = msgspec.convert(manifests[0], Manifest)

    async def here(name: str, parts: range, *, again: bool) -> list[Path]:
        return [path]

    many = Filter("task_id", "in", tuple(range(17)))
    with pytest.raises(DamagedIndex, match="a table has columns of other types than ours: STRUCT"):
        asyncio.run(OpenIndex(manifest, here).rows(Query("tasks", filters=(many,))))


# Packs

PACKED = Compressor()


def _tail(number: int, base: Place, streams: list[Stream] = [], ranges: list[Range] = []) -> Tail:  # noqa: B006
    return Tail(number, 9, "", base, streams, [], {}, to_columns(ranges))


def _put_pack(directory: Path, number: int, tail: Tail, *parts: bytes, prefix: str = "p") -> str:
    begin, end = b"".join(parts), end_of_pack(PACKED.directory(tail))
    name = pack_name(number, len(begin) + len(end), len(end))
    path = directory / prefix / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(begin + end)
    return name


def opened(directory: Path) -> PackReader:
    reader = PackReader(LocalStore(directory), "p")
    asyncio.run(reader.refresh())
    return reader


def _read(directory: Path, name: str, start: int, end: int) -> bytes:
    async def work() -> bytes:
        reader = PackReader(LocalStore(directory), "p")
        await reader.refresh()
        return await reader.read(name, start, end)

    return asyncio.run(work())


def test_a_pack_whose_root_is_in_a_later_pack_ends_the_search(tmp_path: Path) -> None:
    later = pack_name(7, 500, 100)
    for number in range(3):
        _put_pack(tmp_path, number, _tail(number, Place(later, 0, 10), [Stream(number, f"{number}.log", size=1)]))
    assert "2.log" in opened(tmp_path).names


def test_a_long_row_of_packs_without_roots_ends(tmp_path: Path) -> None:
    for number in range(400):
        _put_pack(tmp_path, number, _tail(number, Place("", 0, 10), [Stream(number, f"{number}.log", size=1)]))
    assert "399.log" in opened(tmp_path).names


def test_segments_that_do_not_fit_together_are_damage(tmp_path: Path) -> None:
    root = Root([Stream(1, "a.log", size=100)], {}, [SegmentInfo(Place("", 0, 1), "", [1, 1, 1], [0], [])])
    packed = PACKED.directory(root)
    _put_pack(tmp_path, 0, _tail(0, Place("", 0, len(packed)), [Stream(1, "a.log", size=100)]), packed)
    assert len(_read(tmp_path, "a.log", 0, 100)) == 100


PLACES = {
    "another node": Frame("../q/000000000/000000000000-100-50.pack", 0, 50, 100),
    "another file": Frame("../../secret", 0, 50, 100),
    "an absolute path": Frame("/etc/passwd", 0, 50, 100),
    "before the beginning": Frame("", -50, 50, 100),
    "a size below nothing": Frame("", 0, -50, 100),
    "far behind the end": Frame("", 2**62, 50, 100),
    "more than there can be": Frame("", 0, 2**62, 100),
    "a frame beyond all frames": Frame("", 0, 50, 2**62),
    "a NUL": Frame("\0", 0, 50, 100),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_directory_leads_to_packs_of_its_own_node_only(tmp_path: Path, name: str) -> None:
    """What it points to elsewhere is damage of these bytes, and neither an outage nor a way out."""
    frame = PACKED.frame(b"secret\n" * 20)
    for place in ("secret", "q/000000000/000000000000-100-50.pack"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(frame)
    streams = [Stream(1, "a.log", size=100), Stream(2, "b.log", size=2**62)]
    good = Range(2, 0, 100, Frame("", 0, len(PACKED.frame(b"line\n" * 20)), 100), 0)
    _put_pack(
        tmp_path,
        0,
        _tail(0, Place("", 0, 1), streams, [Range(1, 0, 100, PLACES[name], 0), good]),
        PACKED.frame(b"line\n" * 20),
    )
    assert b"damaged in the store" in _read(tmp_path, "a.log", 0, 100)
    assert _read(tmp_path, "b.log", 0, 100) == b"line\n" * 20
    assert len(_read(tmp_path, "b.log", 2**61, 2**61 + 1000)) == 1000


@pytest.mark.parametrize(("inside", "length"), [(50, 100), (-50, 100), (2**62, 100), (0, 2**40)])
def test_a_range_that_is_not_in_its_frame_has_its_length_all_the_same(tmp_path: Path, inside: int, length: int) -> None:
    frame = PACKED.frame(b"line\n" * 20)
    found = Range(1, 0, length, Frame("", 0, len(frame), 100), inside)
    _put_pack(tmp_path, 0, _tail(0, Place("", 0, 1), [Stream(1, "a.log", size=length)], [found]), frame)
    assert len(_read(tmp_path, "a.log", 0, 200)) == min(length, 200)


HUGE = 2**50
CLAIMS = {
    "nothing": b"",
    "a line": b"line\n",
    "some events": gzip.compress(as_lines(RECORDED[:1])),
}


def _claim(directory: Path, kind: int, name: str, held: bytes, length: int | None = None) -> None:
    """A pack of few bytes whose stream is a petabyte, of which it holds nothing or little."""
    frame = PACKED.frame(held)
    found = Range(1, 0, length or len(held), Frame("", 0, len(frame), len(held)), 0)
    tail = _tail(0, Place("", 0, 1), [Stream(1, name, kind, size=HUGE)], [found])
    _put_pack(directory, 0, tail, frame, prefix=LAYOUT.node_packs_prefix(FOLDED, NODE))


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_reading_of_events_that_a_pack_only_claims_ends(tmp_path: Path, claim: str) -> None:
    _claim(tmp_path, EVENTS, "1794770300000000000.wal", CLAIMS[claim])
    found = Rows()

    async def work() -> None:
        store = LocalStore(tmp_path)
        (source,) = await list_sources(store, LAYOUT, FOLDED)
        async for _ in reading.read_source(store, source, found):
            pass

    asyncio.run(work())
    assert [row[1] for row in found.rows("gaps")] == [
        "truncated gzip" if claim == "some events" else "damaged events in packs"
    ]


@pytest.mark.parametrize("length", [None, HUGE])
@pytest.mark.parametrize(("kind", "name"), [(EVENTS, "1794770300000000000.wal"), (LOG, "raylet.out")])
def test_a_copy_leaves_out_what_a_pack_only_claims(tmp_path: Path, kind: int, name: str, length: int | None) -> None:
    source, target = LocalStore(tmp_path / "store"), LocalStore(tmp_path / "target")
    _claim(tmp_path / "store", kind, name, b"line\n", length)
    write(tmp_path, LAYOUT.log_key(FOLDED, NODE, "other.log"), b"hello\n")
    copy = SessionCopy(FOLDED, (source, LAYOUT), (target, LAYOUT), tmp_path, lambda done, total: None)
    copied = asyncio.run(copy.run([], plain=True))
    assert (copied.objects, copied.left_out) == (1, 1)


@pytest.mark.parametrize("name", ["{0}/outside/1.wal", "../../../outside/1.wal", "\0.wal", "", "1" * 300])
def test_events_of_a_pack_are_written_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    frame = PACKED.frame(b"line\n" * 20)
    stream = Stream(1, name.format(tmp_path), EVENTS, size=100)
    found = Range(1, 0, 100, Frame("", 0, len(frame), 100), 0)
    _put_pack(
        tmp_path / "a",
        0,
        _tail(0, Place("", 0, 1), [stream], [found]),
        frame,
        prefix=LAYOUT.node_packs_prefix(FOLDED, NODE),
    )
    stores = (LocalStore(tmp_path / "a"), LAYOUT), (LocalStore(tmp_path / "b"), LAYOUT)
    with pytest.raises(StoreError, match="events of unknown kind"):
        asyncio.run(SessionCopy(FOLDED, *stores, tmp_path, lambda done, total: None).run([], plain=True))
    assert not [*(tmp_path / "outside").iterdir()]


def test_many_files_of_one_name_are_named_in_one_go() -> None:
    streams = {number: Stream(number, "a.log", state=GONE, since=number) for number in range(50_000)}
    assert len(shown(Catalog(streams=streams))) == 50_000


def test_a_directory_that_is_a_bomb_or_an_abyss_is_damage() -> None:
    for raw in (b"\0" * (300 << 20), b"\x98" + b"\x91" * 500_000):
        with pytest.raises(DamagedPack):
            unpack_directory(zstandard.compress(raw), Tail)


# Events


def _gaps(directory: Path) -> dict[str, int]:
    manifest = fold_session(directory)
    return dict(rows(directory, manifest, "SELECT kind, sum(count) FROM gaps GROUP BY 1"))


BOMBS = {
    "a line without end, gzip": (gzip.compress(b'{"eventId": "' + b" " * (40 << 20)), "line that is too long"),
    "a line without end, zstd": (zstandard.compress(b" " * (40 << 20)), "line that is too long"),
    "a line without end": (b"x" * (40 << 20), "line that is too long"),
    "an array without end": (gzip.compress(b"[" + b" " * (40 << 20)), "array of events that is too large"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_cannot_be_held_is_passed_over_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The rest of the session is there, and so is what follows a line."""
    monkeypatch.setattr(reading, "_LARGEST", 8 << 20)
    bomb, gap = BOMBS[name]
    put(tmp_path, 1, as_lines(RECORDED))
    put(tmp_path, 2, bomb)
    put(tmp_path, 3, b"x" * (20 << 20) + b"\n" + as_lines(RECORDED[:50]))
    found = _gaps(tmp_path)
    assert found[gap] >= 1
    assert found["line that is too long"] >= 1


def test_answers_and_event_logs_that_are_too_large_are_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_LARGEST", 1 << 20)
    put(tmp_path, 1, as_lines(RECORDED))
    history = tmp_path / Path(put(tmp_path, 2, b"")).parents[2].relative_to(Path())
    for path, content in {
        history / "fetched_endpoints/restful__api__jobs": b"[" + b" " * (2 << 20) + b"]",
        history / NODE / "logs/events/event_GCS.log": b'{"event_id": "e", "timestamp": "1"}\n' * 100_000,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    found = _gaps(tmp_path)
    assert found["answer of the dashboard that is too large"] == 1
    assert found["event log that is too large to be read whole"] == 1


def test_records_that_no_memory_could_hold_are_not_read_whole(home: Path) -> None:
    """The session opens without what they may say; they are holes on the disk, so that the test costs nothing."""
    keys = (LAYOUT.start_key(REF), LAYOUT.end_key(REF), LAYOUT.manifest_key(REF, 7), LAYOUT.node_seal_key(REF, NODE))
    for key in keys:
        write(home, key, b"")
        os.truncate(home / "store" / key, 1 << 40)
    with served(home) as client:
        assert client.get(f"{REF.url}api/v0/tasks").status_code == 200
        assert client.get("/home.json").json()["sessions"][0]["state"] == "ended"


def test_an_answer_that_is_deep_is_told_and_not_raised() -> None:
    """What can just be decoded cannot always be encoded again."""
    for depth in range(200, 1_100, 25):
        try:
            deep = msgspec.json.decode(b"[" * depth + b"]" * depth)
        except RecursionError:
            break
        job = dict.fromkeys(("entrypoint", "job_id", "message", "error_type"))
        job |= {"type": "SUBMISSION", "submission_id": "x", "runtime_env": deep, "metadata": deep, "status": "FAILED"}
        add_rows(Rows().add, "/api/jobs/", [job | {"start_time": 1, "end_time": 1}], 1)


@pytest.mark.parametrize("kind", [{"a": 1}, [1], 7, None, True])
def test_an_event_whose_type_is_no_text_does_not_stop_the_rest(kind: object) -> None:
    """Ray would send the whole batch again for ever."""
    good = {"eventId": "g", "sessionName": REF.session, "eventType": "NODE_LIFECYCLE_EVENT"}
    found = sort(json.dumps([{**good, "eventType": kind, "x": "ü"}, good], ensure_ascii=False).encode())
    assert found.events == 2
    assert sum(block.lines for blocks in found.blocks.values() for block in blocks) + len(found.broken) == 2


# Keys, and the disk


def test_digits_that_are_no_numbers_are_no_generation() -> None:
    prefix = LAYOUT.index_prefix(REF)
    for written in ("²-x/tasks.0.parquet", "٣-x/t", "-x", "manifest-².json", "manifest-٣.json"):
        assert LAYOUT.generation_of(REF, f"{prefix}/{written}") is None
    assert LAYOUT.generation_of(REF, f"{prefix}/12-x/t") == 12


def test_a_link_in_the_store_is_not_followed(tmp_path: Path) -> None:
    """Neither one that leads out, nor one that leads round in a circle."""
    store = LocalStore(tmp_path / "store")
    write(tmp_path, "a/b", b"x")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store/a/out").symlink_to(tmp_path / "secret")
    (tmp_path / "store/a/round").symlink_to(tmp_path / "store")

    async def keys() -> list[str]:
        return [info.key async for info in store.list_all("")]

    assert asyncio.run(keys()) == ["a/b"]
    for key in ("a/out", "a/round/a/b"):
        with pytest.raises(StoreError):
            asyncio.run(store.get(key))
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "store")
    assert asyncio.run(LocalStore(linked).get("a/b")) == b"x"


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "0", "9999-12-31T23:59:59Z",
                                    "999999999999999", "1969-12-31T23:59:59Z"])  # fmt: skip
def test_a_moment_before_or_after_everything_is_a_moment(home: Path, moment: str) -> None:
    with served(home) as client:
        answer = client.get(f"{REF.url[:-1]}@{moment}/api/v0/tasks")
        assert answer.status_code == 200, answer.text
