"""A writer of one prefix: small objects that decompress, or decode, to millions of values."""

import asyncio
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import zstandard

from rayhistory.metrics.dashboard_bundle import decode_bundle
from rayhistory.metrics.samples import MetricsDamaged
from rayhistory.metrics.samples import decode as decode_samples
from rayhistory.packs import compacted_packs
from rayhistory.packs.compacted_packs import CompactedName, CompactionRecord, MovedPack, PackObjects
from rayhistory.packs.pack_compaction import compact_node
from rayhistory.packs.pack_format import (
    DirectoryGroup,
    DirectoryRoot,
    DirectoryTail,
    PackDamaged,
    RangeColumns,
    pack_name,
    unpack_directory,
)
from rayhistory.server.untrusted_json import decode_json, has_too_many_values
from rayhistory.storage.local import LocalStore
from support.packed_node import PREFIX, PackedNode
from support.recorded_sample import serving_with

COUNT = 500_000
MAX_BYTES = 20 << 20


def compressed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=True).compress(data)


def array(item: bytes, count: int = COUNT) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + item * count


def numbers() -> bytes:
    return b"\xdd" + struct.pack(">I", COUNT) + b"".join(b"\xce" + struct.pack(">I", n) for n in range(COUNT))


EMPTY, NO_LINKS, LOCATION = b"\x90", b"\x80", b"\x93\xa0\x00\x00"
STREAM = b"\x92\x01\xa1a"
COVERAGE = b"\x95" + LOCATION + b"\xa0" + EMPTY * 3
LINKS = b"\xdf" + struct.pack(">I", COUNT) + b"".join(b"\xa6%06x\x01" % number for number in range(COUNT))
SERIES = b"\x93\xa0\x80\xc4\x00"
ROOT, GROUP, TAIL, RANGES = (
    partial(unpack_directory, kind=kind) for kind in (DirectoryRoot, DirectoryGroup, DirectoryTail, RangeColumns)
)
TIMES, SERIES_OF, TYPES = b"\xa5times", b"\xa6series", b"\xa5types"
BOMBS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "streams of a root": (ROOT, b"\x93" + array(STREAM) + NO_LINKS + EMPTY),
    "links of a root": (ROOT, b"\x93" + EMPTY + LINKS + EMPTY),
    "leaves of a root": (ROOT, b"\x93" + EMPTY + NO_LINKS + array(COVERAGE)),
    "leaves of a group": (GROUP, b"\x91" + array(COVERAGE)),
    "streams of a tail": (TAIL, b"\x98\x00\x09\xa0" + LOCATION + array(STREAM) + EMPTY),
    "ranges": (RANGES, b"\x9a" + EMPTY * 2 + numbers() * 3),
    "metrics series": (decode_samples, b"\x82" + TIMES + EMPTY + SERIES_OF + array(SERIES)),
    "metrics times": (decode_samples, b"\x82" + TIMES + numbers() + SERIES_OF + EMPTY),
    "metrics types": (
        decode_samples,
        b"\x83" + TIMES + EMPTY + SERIES_OF + EMPTY + TYPES + LINKS.replace(b"\x01", b"\xa0"),
    ),
    "Grafana dashboards": (decode_bundle, b'{"a":{"b":[' + b"[]," * COUNT + b"[]]}}"),
}
"""Each stored kind of data, not yet compressed, with the function that decodes it."""


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", BOMBS)
def test_few_compressed_bytes_do_not_fill_the_memory(name: str) -> None:
    """A pack of 1,204 bytes took 394 MiB of the server, and might have taken 2 GiB."""
    decode, content = BOMBS[name]
    data = compressed(content)

    def refuse() -> None:
        with pytest.raises((PackDamaged, MetricsDamaged)):
            decode(data)

    assert peak_of(refuse) < MAX_BYTES


def test_json_with_too_many_values_is_not_decoded() -> None:
    """8 MiB took 235 MiB."""
    text = '{"a":[' + "[]," * COUNT + "[]]}"
    assert has_too_many_values(text)
    assert peak_of(lambda: decode_json(text, {})) < MAX_BYTES
    assert decode_json(text, {}) == {}


@pytest.mark.slow
def test_dashboard_response_with_too_many_values_is_reported(tmp_path: Path) -> None:
    uri = "/api/serve/applications/"
    with serving_with(tmp_path, {uri: {"applications": {"a": [[]] * COUNT}}}) as client:
        response = client.get(uri.lstrip("/"))
    assert (response.status_code, response.headers["X-RayHistory-Error"]) == (500, "response_too_large")


def test_records_of_compacted_packs_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of 1 MiB becomes 5 MiB, and a node may have thousands of them."""
    monkeypatch.setattr(compacted_packs, "_MAX_PACKS_IN_MEMORY", 250)
    names = [CompactedName(number * 100, number * 100 + 99, 10_000, f"{number:08x}") for number in range(20)]
    (tmp_path / "p" / "compacted").mkdir(parents=True)
    for name in names:
        packs = [MovedPack(pack_name(n, 100, 50), 100 * (n - name.first), n) for n in range(name.first, name.last + 1)]
        (tmp_path / "p" / f"{name}.json").write_bytes(msgspec.json.encode(CompactionRecord(packs)))
        (tmp_path / "p" / f"{name}.packs").write_bytes(bytes(10_000))

    async def read() -> None:
        objects = PackObjects(LocalStore(tmp_path), "p")
        assert await objects.times() == {number: number for number in range(2000)}
        assert objects.moved_packs <= 250
        for number in (0, 1999, 1, 1000):
            assert await objects.get_range(pack_name(number, 100, 50), 0, 100) == bytes(100)
            assert objects.moved_packs <= 250

    asyncio.run(read())


@pytest.mark.slow
def test_compaction_reads_one_record_at_a_time(tmp_path: Path) -> None:
    """The compaction of all namespaces kept all records of a node in memory: 40 MB here."""
    node = PackedNode(tmp_path)
    for _ in range(300):
        node.append("raylet.out")
        node.flush()
    folder = tmp_path / "store" / PREFIX / "compacted"
    folder.mkdir()
    for number in range(60):
        name = CompactedName(0, 10**6, 2_000, f"{number:08x}")
        packs = [MovedPack(pack_name(10**5 + each, 1, 1), each, each) for each in range(2_000)]
        (folder.parent / f"{name}.json").write_bytes(msgspec.json.encode(CompactionRecord(packs)))
        (folder.parent / f"{name}.packs").write_bytes(bytes(2_000))
    compact = compact_node(node.store, PREFIX, node.store.delete_many, min_packs=10_000)
    assert peak_of(lambda: asyncio.run(compact)) < MAX_BYTES
