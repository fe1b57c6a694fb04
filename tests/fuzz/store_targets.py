"""Fuzz targets: keys and objects of a store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec
import zstandard

from fuzz.target import MS, NODE, REF, Target
from rayhistory.index.manifest import (
    SCHEMA_VERSION,
    Manifest,
    Part,
    SessionCounts,
    StoredFile,
    parse_manifest,
)
from rayhistory.metrics import samples
from rayhistory.packs.pack_format import (
    Compressor,
    DirectoryCoverage,
    DirectoryLocation,
    DirectoryRoot,
    DirectoryTail,
    Frame,
    PackDamaged,
    Range,
    RangeColumns,
    Stream,
    encode_pack_end,
    pack_name,
    to_columns,
    unpack_directory,
    unpack_frame,
)
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions import EndRecord, Layout, NodeSeal, SessionRef, StartRecord, Tombstone, read_record
from rayhistory.sessions.kuberay_keys import is_event_file
from rayhistory.sessions.records import Closing
from rayhistory.sessions.ref import is_safe_component, is_session_name, session_start_time
from rayhistory.sizes import format_size
from rayhistory.storage.object_keys import checked_key
from rayhistory.storage.store import ObjectInfo
from rayhistory.web import format as web_format

_COMPRESSOR = Compressor()
_MAX_READ = 1 << 20


def keys(data: bytes) -> None:
    """A key is parsed as a session only if the session has that key, and no parsed name leaves its folder."""
    key, layout = data.decode("utf-8", "replace"), Layout()
    for parsed, made in ((layout.parse_metadata_key(key), layout.metadata_key),
                         (layout.parse_v1_6_metadata_key(key), layout.v1_6_metadata_key)):  # fmt: skip
        if parsed is not None and key.startswith(("cluster-metadata/", "metadir/")):
            checked_key(made(parsed))
            assert made(parsed).lower() == key.lower()
    if record := layout.parse_record_key(key):
        checked_key(layout.start_key(record[0]))
    if mark := layout.parse_pin_or_tombstone_key(key):
        checked_key(layout.pin_key(mark))
    layout.parse_event_key(REF, key, 1)
    layout.parse_dashboard_responses_key(key, 1)
    layout.parse_manifest_key(key)
    layout.generation_of(REF, key)
    if sampled := layout.parse_metrics_key(REF, key):
        assert is_safe_component(sampled[0])
    is_event_file(key)
    if is_session_name(key):
        assert is_safe_component(key)
        session_start_time(key)
    for root in ("", "a/b", key):
        Layout(root).start_key(REF)


def _key_seeds() -> list[bytes]:
    layout, owned = Layout(), SessionRef.checked("ns", "c", REF.session, "rayjob", "nightly")
    keys = [
        layout.metadata_key(REF), layout.metadata_key(owned), layout.v1_6_metadata_key(REF), layout.start_key(REF),
        layout.pin_key(REF), layout.manifest_key(REF, 7), layout.index_file_key(REF, "7-abcd", "tasks", 0),
        layout.events_key(REF, NODE, "node_events", 1_794_770_300_000_000_000, compressed=True),
        layout.events_key(REF, NODE, "snapshots", 1_794_770_300_000_000_000, compressed=False),
        layout.metrics_key(REF, NODE, MS), layout.log_key(REF, NODE, "old/x.log"), REF.session,
        layout.index_prefix(REF) + "/²-x/tasks.0.parquet",
    ]  # fmt: skip
    return [key.encode() for key in keys]


class _Objects:
    """An object store in memory, with the methods that pack readers use."""

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
    objects: Sequence[ObjectInfo] = ()


def packs(data: bytes) -> None:
    """Any range of any stream in a directory of any content can be read, and has its length.

    Seeds are JSON, because mutated JSON stays meaningful; other bytes are used unchanged.
    """
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        data = msgspec.msgpack.encode(msgspec.json.decode(data))
    for kind in (DirectoryTail, DirectoryRoot, RangeColumns):
        try:
            unpack_directory(_COMPRESSOR.frame(data), kind)
        except PackDamaged:
            continue
    for damaged in (lambda: unpack_directory(data, DirectoryTail), lambda: unpack_frame(data, len(data))):
        try:
            damaged()
        except PackDamaged:
            continue
    asyncio.run(_read_packs(data))


async def _read_packs(data: bytes) -> None:
    frame, directory = _COMPRESSOR.frame(b"line\n" * 20), _COMPRESSOR.frame(data)
    end, good = encode_pack_end(directory), encode_pack_end(_COMPRESSOR.directory(_tail()))
    begin = frame + directory
    objects = {
        f"p/{pack_name(0, len(frame) + len(good), len(good))}": frame + good,
        f"p/{pack_name(1, len(begin) + len(end), len(end))}": begin + end,
    }
    reader = PackReader(_Objects(objects), "p")
    await reader.refresh()
    for name, stream in list(reader.files.items())[:5]:
        for start, stop in ((0, 100), (0, stream.size), (stream.size - 10, stream.size), (3, 4)):
            first, last = max(0, min(start, 2**62)), min(stop, max(0, start) + _MAX_READ)
            read = await reader.read(name, first, last)
            assert len(read) == max(0, min(last, stream.size) - first)


def _tail(pack: str = "", size: int = 100) -> DirectoryTail:
    found = Range(1, 0, size, Frame(pack, 0, len(_COMPRESSOR.frame(b"line\n" * 20)), 100), 0)
    streams = [Stream(1, "a.log", size=size), Stream(2, "a.log", state=1, size=5), Stream(3, "e", kind=1, size=9)]
    return DirectoryTail(1, 4, "", DirectoryLocation("", 0, 10), streams, [9], {"link": 1}, to_columns([found]))


def _pack_seeds() -> list[bytes]:
    info = DirectoryCoverage(DirectoryLocation("", 0, 10), "", [1, 2], [0, 0], [100, 5])
    root = DirectoryRoot([Stream(1, "a.log", size=100)], {"b": 1}, [info])
    other = pack_name(0, 500, 100)
    values = [_tail(), _tail(other), _tail("../../x", 2**40), _tail(other, 2**62), root, _tail().ranges]
    return [*map(msgspec.json.encode, values), msgspec.msgpack.encode(_tail())]


def manifests(data: bytes) -> None:
    """An accepted manifest has safe names and numbers that a page can format."""
    manifest = parse_manifest(data)
    if manifest is None:
        return
    for name, file in manifest.all_files():
        checked_key(Layout().index_file_key(REF, file.folder, name, file.number))
    assert all(is_safe_component(name) for name in (manifest.build, *manifest.tables))
    assert manifest.size >= 0
    for ns in (manifest.first_ns, manifest.last_ns):
        web_format.format_iso((ns or 0) // 1_000_000)
    format_size(manifest.counts.size_bytes)


PART_TABLES = (
    "tasks", "task_list", "profile_events", "merged.task_definitions", "merged.task_updates", "merged.keys",
    "merged.depends", "merged.unexecuted", "merged.superseded",
)  # fmt: skip


def _manifest_seeds() -> list[bytes]:
    manifest = Manifest(
        schema=SCHEMA_VERSION, generation=3, build="3-abcd1234", files={"jobs": [StoredFile("3-abcd1234", 0, 10)]},
        parts=[Part("3-abcd1234", {name: [StoredFile("2-x", 0, 9)] for name in PART_TABLES}, 9, 1, [(2, 3)])],
        covered="d" * 64,
        closing=Closing(MS * 10**6, clean=True), counts=SessionCounts({"FAILED": 1}, 5, 1, 2, 1, 0, 99),
        first_ns=MS * 10**6, last_ns=None, ray_version="2.60.0", seconds=0.5, events=7,
    )  # fmt: skip
    return [msgspec.json.encode(manifest), msgspec.json.encode(msgspec.structs.replace(manifest, build="../../x"))]


def records(data: bytes) -> None:
    if start := read_record(data, StartRecord):
        web_format.format_iso(start.started_ms)
    if end := read_record(data, EndRecord):
        web_format.format_utc(end.ended_ms)
        assert end.ended_ms * 1_000_000 < 2**63
    read_record(data, NodeSeal)
    read_record(data, Tombstone)


def _record_seeds() -> list[bytes]:
    found = [StartRecord("ns", "c", REF.session, MS, NODE), EndRecord(MS, "clean"), NodeSeal(NODE, MS, 1, 1)]
    return [*map(msgspec.json.encode, found), b'{"ended_ms": 1, "reason": "\xff"}', b'{"made_ms": 1, "owners": []}']


def metrics(data: bytes) -> None:
    for packed in (data, zstandard.compress(data)):
        try:
            found = samples.decode(packed)
        except samples.MetricsDamaged:
            continue
        for series in found.series:
            list(series.points(found.times))
            samples.family(series.name, found.types)


def _metrics_seeds() -> list[bytes]:
    found = samples.Samples([MS, MS + 1], [samples.SampledSeries("ray_x", {"a": "b"}, b"\0" * 16)], {"ray_x": "gauge"})
    return [msgspec.msgpack.encode(found), samples.encode(found)]


TARGETS = {
    "keys": Target(keys, _key_seeds),
    "packs": Target(packs, _pack_seeds),
    "manifests": Target(manifests, _manifest_seeds),
    "records": Target(records, _record_seeds),
    "metrics": Target(metrics, _metrics_seeds),
}
