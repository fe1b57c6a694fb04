"""What is fuzzed: each target takes any bytes, and raises when something is raised that should not be, or is not true.

The seeds are what is really there: events that Ray sent, answers of its dashboard, packs and indexes that were written.
"""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
import zstandard
from starlette.datastructures import QueryParams
from starlette.requests import Request

from rayhistory.collector.prometheus import Scrape, take_apart
from rayhistory.collector.routing import RoutingError, sort
from rayhistory.errors import RayHistoryError, UsageError
from rayhistory.events import exports, snapshots, stateapi
from rayhistory.events.columns import Rows
from rayhistory.events.decode import EventDecoder
from rayhistory.events.logevents import add_log_lines
from rayhistory.events.tables import BY_NAME
from rayhistory.index.ask import question
from rayhistory.index.manifest import MERGED, SCHEMA, Closing, Counts, Manifest, parse_manifest
from rayhistory.index.partials import arrow_batch
from rayhistory.index.read import unpacker
from rayhistory.layout import EndRecord, Layout, NodeSeal, SessionRef, StartRecord, Tombstone, read_record
from rayhistory.layout import metrics as samples
from rayhistory.layout.keys import is_event_file
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import (
    Compressor,
    DamagedPack,
    Frame,
    Place,
    Range,
    Ranges,
    Root,
    SegmentInfo,
    Stream,
    Tail,
    end_of_pack,
    pack_name,
    to_columns,
    unpack_directory,
    unpack_frame,
)
from rayhistory.layout.session import is_safe_component, is_session_name, session_time
from rayhistory.server.byterange import NoSuchRange, asked_range
from rayhistory.server.home import read_filters
from rayhistory.server.kuberay import cookie_headers
from rayhistory.server.logfind import below_logs
from rayhistory.server.logglob import listed
from rayhistory.server.resolve import parse_session_path, selection_from_cookies
from rayhistory.storage.keys import checked_key
from rayhistory.storage.seam import ObjectInfo
from rayhistory.web import format as shown

DATA = Path(__file__).parents[1] / "data"
REF = SessionRef.checked("default", "sample", "session_2026-11-15_19-18-08_055078_15551")
NODE = "d74e93bbb0bb3d213b18dc894f53711ffbaf4e270e8c2d5dde2f15f2"
_MS = 1_794_770_300_000
_PACKED = Compressor()
_LARGEST_READ = 1 << 20


class Target(NamedTuple):
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


# Events


def _tables_fit(rows: Rows) -> None:
    """Whatever was taken becomes columns: this is where a wrong type would show."""
    for name, columns in rows.columns.items():
        assert len({len(column) for column in columns}) == 1, name
        if columns[0]:
            arrow_batch(BY_NAME[name], columns)


def events(data: bytes) -> None:
    for feed in (EventDecoder.feed, EventDecoder.feed_array):
        decoder = EventDecoder("fuzzed", Rows())
        assert feed(decoder, data) >= 0
        decoder.finish()
        _tables_fit(decoder.rows)


def _event_seeds() -> list[bytes]:
    lines = (DATA / "ray-2.60/events.jsonl").read_bytes().splitlines()
    kinds = {json.loads(line)["eventType"]: line for line in lines}
    bodies = [path.read_bytes().splitlines()[0] for path in sorted((DATA / "bodies").glob("*.jsonl"))]
    return [*kinds.values(), b"\n".join(lines[:20]), *_snapshot_events(), *bodies]


def _snapshot_events() -> list[bytes]:
    return [
        json.dumps({"eventType": "DASHBOARD_SNAPSHOT", "timestamp": "2026-11-15T19:19:50.5Z",
                    "dashboardSnapshot": {"uri": uri, "body": json.loads(body)}}).encode()
        for uri, body in _answers().items()
    ]  # fmt: skip


def _answers() -> dict[str, bytes]:
    found = {
        "/api/jobs/": "jobs_after_snap", "/api/v0/placement_groups": "v0_placement_groups_detail",
        "/api/v0/workers": "v0_workers_detail", "/api/v0/nodes": "v0_nodes_detail", "/nodes": "nodes_summary",
        "/api/v0/tasks": "v0_tasks_detail", "/api/v0/actors": "v0_actors_detail",
    }  # fmt: skip
    places = {uri: DATA / f"ray-2.60/endpoints/{name}.json" for uri, name in found.items()}
    return {uri: _shorter(path.read_bytes()) for uri, path in places.items() if path.exists()}


def _shorter(answer: bytes) -> bytes:
    """With a few things of each list: the others are alike."""

    def cut(value: object) -> object:
        if isinstance(value, dict):
            return {name: cut(item) for name, item in value.items()}
        return [cut(item) for item in value[:2]] if isinstance(value, list) else value

    return json.dumps(cut(json.loads(answer))).encode()


def answers(data: bytes) -> None:
    """The first line says of what the rest is the answer."""
    uri, _, body = data.partition(b"\n")
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    rows = Rows()
    snapshots.add_rows(rows.add, uri.decode("latin-1"), document, 1_794_770_300_000_000_000)
    exports.add_export(rows.add, document, 1_794_770_300_000_000_000)
    stateapi.add_only_answer(rows.add, uri.decode("latin-1"), document, 1_794_770_300_000_000_000)
    _tables_fit(rows)


def _answer_seeds() -> list[bytes]:
    kinds = [
        {"source_type": "EXPORT_TASK", "timestamp": 1794770300, "event_data": {
            "task_id": "AQID", "attempt_number": 0, "job_id": "AQAAAA==", "task_info": {"type": "NORMAL_TASK"},
            "state_updates": {"state_ts_ns": {"1": "1794770300000000000"}, "error_info": {"error_type": "X"}},
            "profile_events": {"component_type": "worker", "events": [{"event_name": "x", "start_time": "1"}]}}},
        {"source_type": "EXPORT_ACTOR", "timestamp": 1794770300, "event_data": {
            "actor_id": "AQID", "job_id": "AQAAAA==", "state": "DEAD", "death_cause": {"a": {"actor_id": "AQ=="}}}},
        {"source_type": "EXPORT_NODE", "timestamp": 1794770300, "event_data": {
            "node_id": "AQID", "state": "ALIVE", "start_time_ms": "1", "labels": {}, "resources_total": {}}},
        {"source_type": "EXPORT_DRIVER_JOB", "timestamp": 1794770300, "event_data": {
            "job_id": "AQAAAA==", "config": {"metadata": {}}, "start_time": "1", "driver_pid": "7"}},
        {"source_type": "EXPORT_SUBMISSION_JOB", "timestamp": 1794770300, "event_data": {
            "submission_job_id": "x", "status": "FAILED", "message": "m", "start_time": 1, "runtime_env_json": "{}"}},
    ]  # fmt: skip
    exported = [b"\n" + json.dumps(kind).encode() for kind in kinds]
    return [*(uri.encode() + b"\n" + body for uri, body in _answers().items()), *exported]


def event_logs(data: bytes) -> None:
    rows = Rows()
    assert add_log_lines(rows, data) >= 0
    _tables_fit(rows)


def _event_log_seeds() -> list[bytes]:
    line = {"event_id": "e1", "source_type": "GCS", "host_name": "h", "pid": "7", "severity": "INFO", "label": "x",
            "message": "a\\nb", "timestamp": "1794770300", "custom_fields": {"job_id": "01000000"}}  # fmt: skip
    return [json.dumps(line).encode(), json.dumps({**line, "source_hostname": "h", "source_pid": 7}).encode()]


def packed_text(data: bytes) -> None:
    """Pieces of bounded size, whatever the bytes claim; the reading ends where the damage begins."""
    unpack = unpacker(data)
    total = 0
    for piece in unpack.feed(data) if unpack else ():
        assert len(piece) <= 8 << 20
        total += len(piece)
        if total > 64 << 20:
            break


def _packed_seeds() -> list[bytes]:
    text = (DATA / "ray-2.60/events.jsonl").read_bytes()[:20_000]
    return [
        gzip.compress(text), gzip.compress(b"a") * 3, gzip.compress(b" " * 10_000_000), gzip.compress(text)[:-9],
        zstandard.compress(text), zstandard.compress(b"a") * 3, zstandard.compress(b" " * 10_000_000),
        zstandard.ZstdCompressor(write_content_size=False).compress(text),
    ]  # fmt: skip


# The collector


def bodies(data: bytes) -> None:
    """Everything in a body is filed or set aside: once, whole, and where nothing else can be."""
    try:
        found = sort(data)
    except RoutingError as reason:
        assert len(str(reason)) < 40
        return
    filed = 0
    for session, blocks in found.blocks.items():
        assert is_session_name(session)
        for block in blocks:
            assert all(is_safe_component(part) for part in block.category.split("/"))
            assert block.data.count(b"\n") == block.lines
            assert all(isinstance(msgspec.json.decode(line), dict) for line in block.data.splitlines())
            filed += block.lines
    assert filed + len(found.broken) == found.events


def _body_seeds() -> list[bytes]:
    paths = sorted((DATA / "bodies").glob("*.jsonl"))
    real = [body for path in paths for body in path.read_bytes().splitlines()[:3]]
    small = {"eventId": "e", "sessionName": REF.session, "eventType": "NODE_LIFECYCLE_EVENT"}
    return [*real, json.dumps([small]).encode(), json.dumps([{**small, "message": "ü"}], ensure_ascii=False).encode()]


def scrapes(data: bytes) -> None:
    found = Scrape()
    for line in data.split(b"\n"):
        found.read(line, (b"process_",))
    for series in found.values:
        take_apart(series)


def _scrape_seeds() -> list[bytes]:
    text = gzip.decompress((DATA / "ray-2.60/metrics.txt.gz").read_bytes())
    return [b"\n".join(text.splitlines()[at : at + 30]) for at in range(0, 300, 30)]


# Names


def names(data: bytes) -> None:
    """A key is read as a session only if it is the very key of that session; nothing that is read leads elsewhere."""
    key, layout = data.decode("utf-8", "replace"), Layout()
    for parsed, made in ((layout.parse_metadata_key(key), layout.metadata_key),
                         (layout.parse_old_metadata_key(key), layout.old_metadata_key)):  # fmt: skip
        if parsed is not None and key.startswith(("cluster-metadata/", "metadir/")):
            checked_key(made(parsed))
            assert made(parsed).lower() == key.lower()
    if record := layout.parse_record_key(key):
        checked_key(layout.start_key(record[0]))
    if mark := layout.parse_mark_key(key):
        checked_key(layout.pin_key(mark))
    layout.parse_event_key(REF, key, 1)
    layout.parse_snapshot_key(key, 1)
    layout.parse_manifest_key(key)
    layout.generation_of(REF, key)
    if sampled := layout.parse_metrics_key(REF, key):
        assert is_safe_component(sampled[0])
    is_event_file(key)
    if is_session_name(key):
        assert is_safe_component(key)
        session_time(key)
    for root in ("", "a/b", key):
        Layout(root).start_key(REF)


def _name_seeds() -> list[bytes]:
    layout, owned = Layout(), SessionRef.checked("ns", "c", REF.session, "rayjob", "nightly")
    keys = [
        layout.metadata_key(REF), layout.metadata_key(owned), layout.old_metadata_key(REF), layout.start_key(REF),
        layout.pin_key(REF), layout.manifest_key(REF, 7), layout.index_file_key(REF, "7-abcd", "tasks", 0),
        layout.events_key(REF, NODE, "node_events", 1_794_770_300_000_000_000, compressed=True),
        layout.events_key(REF, NODE, "snapshots", 1_794_770_300_000_000_000, compressed=False),
        layout.metrics_key(REF, NODE, _MS), layout.log_key(REF, NODE, "old/x.log"), REF.session,
        layout.index_prefix(REF) + "/²-x/tasks.0.parquet",
    ]  # fmt: skip
    return [key.encode() for key in keys]


def addresses(data: bytes) -> None:
    """Addresses, cookies and queries, as they are when a request has been decoded."""
    text = unquote_to_bytes(data).decode("utf-8", "replace")
    cookies = dict(zip(("cluster_name", "cluster_namespace", "session_name"), text.split("/"), strict=False))
    for attempt in (lambda: parse_session_path(text)[0], lambda: selection_from_cookies(cookies)):
        try:
            selection = attempt()
        except RayHistoryError:
            continue
        if selection is not None:
            checked_key(f"{selection.namespace}/{selection.name}/{selection.session}")
    assert b"\r" not in b"".join(value for _, value in cookie_headers(cookies))
    params = QueryParams(data)
    try:
        read_filters(params)
        given = {name: params.get(name, "") for name in ("columns", "sort", "cursor")}
        question(params.get("table", "tasks"), where=params.getlist("where"), limit=params.get("limit", "1"), **given)
    except UsageError:
        pass


def _address_seeds() -> list[bytes]:
    return [
        f"default/sample/{REF.session}/api/v0/tasks".encode(), b"ns/~rayjob/nightly/latest/",
        b"ns/c/latest@1794770300000/",
        b"ns/c/latest@2026-11-15T19:20:00+01:00/x", b"ns/c/latest@0001-01-01T00:00:00+23:59/",
        b"q=a&state=ended&owner=rayjob/x&since=7d&from=2026-11-15&to=9999-12-31&sort=-started&page=2",
        b"table=tasks&columns=name,state&where=state=FAILED&where=name~x&sort=-start_time_ms&limit=9&cursor=W1td",
    ]  # fmt: skip


# Logs


class _Objects:
    """A store in memory, as far as readers of packs ask one."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        checked_key(key)
        assert 0 <= start <= end <= 10**12
        return self._objects.get(key, b"")[start:end]

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        for key, data in sorted(self._objects.items()):
            if key.startswith(prefix + "/") and key > start_after:
                yield ObjectInfo(key, len(data), 0.0)

    async def list_folder(self, prefix: str) -> "_Folder":
        rest = [key.removeprefix(prefix + "/") for key in self._objects if key.startswith(prefix + "/")]
        return _Folder(sorted({key.partition("/")[0] for key in rest if "/" in key}))


class _Folder(NamedTuple):
    folders: Sequence[str]


def packs(data: bytes) -> None:
    """Directories that say anything, well packed: any range of any name can still be asked for, and has its length.

    They are written here as JSON, which is easier to change in meaningful ways; other bytes are taken as they are.
    """
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        data = msgspec.msgpack.encode(msgspec.json.decode(data))
    for kind in (Tail, Root, Ranges):
        try:
            unpack_directory(_PACKED.frame(data), kind)
        except DamagedPack:
            continue
    for damaged in (lambda: unpack_directory(data, Tail), lambda: unpack_frame(data, len(data))):
        try:
            damaged()
        except DamagedPack:
            continue
    asyncio.run(_read_packs(data))


async def _read_packs(data: bytes) -> None:
    frame, directory = _PACKED.frame(b"line\n" * 20), _PACKED.frame(data)
    end, good = end_of_pack(directory), end_of_pack(_PACKED.directory(_tail()))
    begin = frame + directory
    objects = {
        f"p/{pack_name(0, len(frame) + len(good), len(good))}": frame + good,
        f"p/{pack_name(1, len(begin) + len(end), len(end))}": begin + end,
    }
    reader = PackReader(_Objects(objects), "p")
    await reader.refresh()
    for name, stream in list(reader.names.items())[:5]:
        for start, stop in ((0, 100), (0, stream.size), (stream.size - 10, stream.size), (3, 4)):
            first, last = max(0, min(start, 2**62)), min(stop, max(0, start) + _LARGEST_READ)
            read = await reader.read(name, first, last)
            assert len(read) == max(0, min(last, stream.size) - first)


def _tail(pack: str = "", size: int = 100) -> Tail:
    found = Range(1, 0, size, Frame(pack, 0, len(_PACKED.frame(b"line\n" * 20)), 100), 0)
    streams = [Stream(1, "a.log", size=size), Stream(2, "a.log", state=1, size=5), Stream(3, "e", kind=1, size=9)]
    return Tail(1, 4, "", Place("", 0, 10), streams, [9], {"link": 1}, to_columns([found]))


def _pack_seeds() -> list[bytes]:
    info = SegmentInfo(Place("", 0, 10), "", [1, 2], [0, 0], [100, 5])
    root = Root([Stream(1, "a.log", size=100)], {"b": 1}, [info])
    other = pack_name(0, 500, 100)
    values = [_tail(), _tail(other), _tail("../../x", 2**40), _tail(other, 2**62), root, _tail().ranges]
    return [*map(msgspec.json.encode, values), msgspec.msgpack.encode(_tail())]


def log_questions(data: bytes) -> None:
    """A range is inside of what there is; a name is one of the listing, or none."""
    text = data.decode("latin-1")
    for size in (0, 1, 1000, 2**40):
        request = Request({"type": "http", "headers": [(b"range", data)], "query_string": b""})
        try:
            found = asked_range(request, size)
        except NoSuchRange:
            continue
        assert found is None or 0 <= found[0] < found[1] <= size
    paths = ["a.log", "old/b.out", "deep/er/c.err"]
    try:
        groups = listed(paths, text)
    except UsageError:
        groups = {}
    known = {*paths, "old/", "deep/", "deep/er/"}
    assert {name for names in groups.values() for name in names} <= known
    below_logs(text)


def _log_question_seeds() -> list[bytes]:
    return [b"bytes=0-499", b"bytes=-5", b"bytes=5-", b"bytes=1-2,3-4", b"bytes= 7 - 9", b"**", b"old/*", b"[a-z]*.log",
            b"/tmp/ray/session_x/logs/a.log", b"../../a", b"bytes=99999999999999999999-1"]  # fmt: skip


# What is small in the bucket


def manifests(data: bytes) -> None:
    """A manifest that is taken has names that are no paths, and numbers that a page can show."""
    manifest = parse_manifest(data)
    if manifest is None:
        return
    checked_key(Layout().index_file_key(REF, manifest.build, next(iter(manifest.files), "x"), 0))
    assert all(is_safe_component(name) for name in (manifest.build, *manifest.files))
    assert manifest.size >= 0
    for ns in (manifest.first_ns, manifest.last_ns):
        shown.format_iso((ns or 0) // 1_000_000)
    shown.format_bytes(manifest.counts.size_bytes)


def _manifest_seeds() -> list[bytes]:
    manifest = Manifest(
        schema=SCHEMA, generation=3, build="3-abcd1234", files={"tasks": [10], f"{MERGED}tasks": [1, 2]},
        covered="d" * 64, closing=Closing(_MS * 10**6, clean=True), counts=Counts({"FAILED": 1}, 5, 1, 2, 1, 0, 99),
        first_ns=_MS * 10**6, last_ns=None, ray_version="2.60.0", seconds=0.5, events=7,
    )  # fmt: skip
    return [msgspec.json.encode(manifest), msgspec.json.encode(msgspec.structs.replace(manifest, build="../../x"))]


def records(data: bytes) -> None:
    if start := read_record(data, StartRecord):
        shown.format_iso(start.started_ms)
    if end := read_record(data, EndRecord):
        shown.format_utc(end.ended_ms)
        assert end.ended_ms * 1_000_000 < 2**63
    read_record(data, NodeSeal)
    read_record(data, Tombstone)


def _record_seeds() -> list[bytes]:
    found = [StartRecord("ns", "c", REF.session, _MS, NODE), EndRecord(_MS, "clean"), NodeSeal(NODE, _MS, 1, 1)]
    return [*map(msgspec.json.encode, found), b'{"ended_ms": 1, "reason": "\xff"}', b'{"made_ms": 1, "owners": []}']


def metrics(data: bytes) -> None:
    for packed in (data, zstandard.compress(data)):
        try:
            found = samples.decode(packed)
        except samples.DamagedMetrics:
            continue
        for series in found.series:
            list(series.points(found.times))
            samples.family(series.name, found.types)


def _metrics_seeds() -> list[bytes]:
    found = samples.Samples([_MS, _MS + 1], [samples.Series("ray_x", {"a": "b"}, b"\0" * 16)], {"ray_x": "gauge"})
    return [msgspec.msgpack.encode(found), samples.encode(found)]


TARGETS = {
    "events": Target(events, _event_seeds),
    "answers": Target(answers, _answer_seeds),
    "event-logs": Target(event_logs, _event_log_seeds),
    "packed-text": Target(packed_text, _packed_seeds),
    "bodies": Target(bodies, _body_seeds),
    "scrapes": Target(scrapes, _scrape_seeds),
    "names": Target(names, _name_seeds),
    "addresses": Target(addresses, _address_seeds),
    "packs": Target(packs, _pack_seeds),
    "log-questions": Target(log_questions, _log_question_seeds),
    "manifests": Target(manifests, _manifest_seeds),
    "records": Target(records, _record_seeds),
    "metrics": Target(metrics, _metrics_seeds),
}
