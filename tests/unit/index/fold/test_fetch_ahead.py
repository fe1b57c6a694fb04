"""Sources are fetched ahead of their decoding, within budgets, and in any state of the store."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rayhistory.errors import ObjectNotFound, StoreUnavailable
from rayhistory.gaps import GapCode
from rayhistory.index.fold import fetch_ahead, fold_process, parallel_decode
from rayhistory.index.fold.fetch_ahead import MAX_REQUESTS, PIECE_BYTES, FetchAhead
from rayhistory.index.fold.parallel_decode import DecodeWork, decode
from rayhistory.index.fold.partitions import Partitions
from rayhistory.index.fold.source_ranges import SourceRanges
from rayhistory.index.fold.sources import MAX_WHOLE_BYTES, Source, SourceKind
from rayhistory.sessions import Layout
from rayhistory.storage.local import LocalStore
from support.folding import RECORDED, REF, as_lines, fold_session, put, read_files, settings_for, tables

PETABYTE = 1 << 50


def source(name: str, size: int, kind: SourceKind = SourceKind.EVENTS) -> Source:
    return Source(name, size, kind)


class Reads:
    """Reads of sources, with a record of what is in flight."""

    def __init__(self, respond: Callable[[Source], None] = lambda source: None) -> None:
        self._respond = respond
        self.in_flight = self.most = self.cancelled = 0
        self.ranges: list[tuple[str, int, int]] = []

    async def read(self, source: Source, start: int, end: int) -> bytes:
        self.ranges.append((source.key, start, end))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(0.001)
            self._respond(source)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        return b"x" * (end - start)


async def consume(fetches: FetchAhead, sources: list[Source]) -> list[int]:
    return [sum([len(piece) async for piece in fetches.pieces(each)]) for each in sources]


def test_many_small_objects_are_in_flight_at_once_with_one_request_each() -> None:
    reads, sources = Reads(), [source(f"{number}", 100) for number in range(10_000)]
    fetched = asyncio.run(consume(FetchAhead(reads.read, sources, 1 << 20), sources))
    assert fetched == [100] * 10_000
    assert len(reads.ranges) == 10_000
    assert reads.most == MAX_REQUESTS


def test_bytes_in_flight_and_not_yet_decoded_stay_within_the_budget() -> None:
    held: list[int] = []
    sources = [source(f"{number}", 1000 + number) for number in range(200)]

    async def work() -> None:
        reads = Reads()
        fetches = FetchAhead(reads.read, sources, 10_000)
        decoded = 0
        for each in sources:
            async for piece in fetches.pieces(each):
                held.append(sum(end - start for _, start, end in reads.ranges) - decoded)
                await asyncio.sleep(0.002)
                decoded += len(piece)

    asyncio.run(work())
    assert max(held) <= 10_000
    assert max(held) > 5_000, "the budget is used"


def test_object_larger_than_the_budget_is_fetched_piece_by_piece() -> None:
    large = source("large", 3 * PIECE_BYTES + 5)
    reads = Reads()
    assert asyncio.run(consume(FetchAhead(reads.read, [large], 1), [large])) == [large.size]
    assert reads.most == 1
    assert [end - start for _, start, end in reads.ranges] == [PIECE_BYTES] * 3 + [5]


def test_large_object_is_fetched_in_several_requests_at_once() -> None:
    large = source("large", 8 * PIECE_BYTES)
    reads = Reads()
    assert asyncio.run(consume(FetchAhead(reads.read, [large], 4 * PIECE_BYTES), [large])) == [large.size]
    assert reads.most == 4


def test_rest_of_an_abandoned_source_is_dropped_whatever_size_it_claims() -> None:
    claimed, following = source("claimed", PETABYTE), source("following", 10)

    async def work() -> list[int]:
        fetches = FetchAhead(Reads().read, [claimed, following], 3 * PIECE_BYTES)
        async for _ in fetches.pieces(claimed):
            break
        return await consume(fetches, [following])

    assert asyncio.run(work()) == [10]


def test_source_that_is_never_read_is_skipped() -> None:
    sources = [source("unread", 10), source("read", 20)]
    assert asyncio.run(consume(FetchAhead(Reads().read, sources, 100), sources[1:])) == [20]


def test_missing_object_fails_alone() -> None:
    def respond(each: Source) -> None:
        if each.key == "gone":
            raise ObjectNotFound("object gone not found")

    sources = [source("gone", 2 * PIECE_BYTES), source("there", 7)]

    async def work() -> list[int]:
        fetches = FetchAhead(Reads(respond).read, sources, 100 * PIECE_BYTES)
        with pytest.raises(ObjectNotFound):
            await consume(fetches, sources[:1])
        return await consume(fetches, sources[1:])

    assert asyncio.run(work()) == [7]


def test_closing_ends_all_requests() -> None:
    async def work() -> Reads:
        reads, sources = Reads(), [source(f"{number}", 100) for number in range(1000)]
        fetches = FetchAhead(reads.read, sources, 1 << 20)
        await consume(fetches, sources[:5])
        await asyncio.sleep(0)
        assert reads.in_flight
        await fetches.close()
        assert not reads.in_flight
        return reads

    assert asyncio.run(work()).cancelled


def test_too_large_dashboard_response_is_not_fetched() -> None:
    response = source("response", MAX_WHOLE_BYTES + 1, SourceKind.ENDPOINT)
    reads = Reads()
    asyncio.run(consume(FetchAhead(reads.read, [response], 1 << 20), [response]))
    assert [end - start for _, start, end in reads.ranges] == [0]


def test_object_that_grew_after_the_listing_is_read_whole(tmp_path: Path) -> None:
    """KubeRay's collectors overwrite an object with a longer one; half of a gzip member would count as damage."""
    (tmp_path / "grown").write_bytes(b"0123456789")
    read = SourceRanges(LocalStore(tmp_path)).read
    assert asyncio.run(read(source("grown", 4), 0, 4)) == b"0123456789"
    assert asyncio.run(read(source("grown", 10), 0, 10)) == b"0123456789"
    assert asyncio.run(read(source("grown", 0), 0, 0)) == b"0123456789"


class UnreliableStore(LocalStore):
    """A directory store that fails for one key, and counts the reads in flight."""

    def __init__(self, directory: Path, outage: str = "") -> None:
        super().__init__(directory)
        self.outage = outage
        self.in_flight = 0
        self.was_read = asyncio.Event()

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.was_read.set()
        self.in_flight += 1
        try:
            if key == self.outage:
                raise StoreUnavailable("the store is down")
            return await super().get_range(key, start, end)
        finally:
            self.in_flight -= 1


def sources_in(directory: Path, count: int) -> list[Source]:
    data = [as_lines(RECORDED[number::count]) for number in range(count)]
    return [Source(put(directory, number, text), len(text), SourceKind.EVENTS) for number, text in enumerate(data)]


def decode_work(directory: Path, scratch: Path) -> DecodeWork:
    scratch.mkdir()
    return DecodeWork(settings_for(directory), scratch, Partitions())


def test_outage_midway_fails_the_decoding_and_ends_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = sources_in(tmp_path / "store", 40)
    store = UnreliableStore(tmp_path / "store", outage=sources[20].key)
    monkeypatch.setattr(parallel_decode, "open_store", lambda settings: store)
    with pytest.raises(StoreUnavailable, match="the store is down"):
        asyncio.run(decode(decode_work(tmp_path / "store", tmp_path / "scratch"), sources, "0"))
    assert store.in_flight == 0


def test_outage_midway_publishes_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is never an index with holes."""
    sources = sources_in(tmp_path, 40)
    store = UnreliableStore(tmp_path, outage=sources[20].key)
    for module in (fold_process, parallel_decode):
        monkeypatch.setattr(module, "open_store", lambda settings: store)
    with pytest.raises(StoreUnavailable, match="the store is down"):
        fold_session(tmp_path)
    assert not list((tmp_path / Layout().index_prefix(REF)).rglob("*"))
    store.outage = ""
    assert fold_session(tmp_path).events == len(RECORDED)


def test_cancelled_decoding_ends_its_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = sources_in(tmp_path / "store", 40)
    store = UnreliableStore(tmp_path / "store")
    monkeypatch.setattr(parallel_decode, "open_store", lambda settings: store)
    work = decode_work(tmp_path / "store", tmp_path / "scratch")

    async def cancel_midway() -> None:
        decoding = asyncio.create_task(decode(work, sources, "0"))
        await store.was_read.wait()
        decoding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await decoding
        assert store.in_flight == 0

    asyncio.run(cancel_midway())


def test_object_that_vanished_after_the_listing_is_a_gap_and_no_failure(tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "store", 4)
    (tmp_path / "store" / sources[1].key).unlink()
    work = decode_work(tmp_path / "store", tmp_path / "scratch")
    decoded = asyncio.run(decode(work, sources, "0"))
    assert decoded.events == sum(len(RECORDED[number::4]) for number in (0, 2, 3))
    gaps = read_files(list(work.scratch.glob("gaps-*.parquet")), "source, kind")
    assert (sources[1].key, GapCode.OBJECT_DISAPPEARED.value) in gaps


@pytest.mark.slow
def test_tables_do_not_depend_on_the_size_of_pieces_or_the_number_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources_in(tmp_path, 7)
    before = tables(tmp_path, fold_session(tmp_path))
    monkeypatch.setattr(fetch_ahead, "MAX_REQUESTS", 2)
    monkeypatch.setattr(fetch_ahead, "PIECE_BYTES", 1000)
    assert tables(tmp_path, fold_session(tmp_path, fresh=True)) == before
