"""A session from one store to another.

Data comes first; what makes a session exist, our record and KubeRay's key, comes last, so that half a session is seen
by nobody. What is there already is not sent again: a copy that was interrupted goes on when it is asked for again.
"""

import asyncio
import secrets
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from rayhistory.collector.segment import Segment
from rayhistory.collector.split import split
from rayhistory.errors import ObjectNotFound, StoreError, UsageError
from rayhistory.keeping.objects import each, objects_below, trees
from rayhistory.keeping.transfer import PIECE, Transfer
from rayhistory.layout import Layout, Owner, SessionRef, VanishedRecord
from rayhistory.layout.keys import is_node_folder
from rayhistory.layout.packread import PackReader
from rayhistory.layout.packs import Stream
from rayhistory.storage import ObjectInfo, Store

_AT_ONCE = 8
_MOST_FILLED = 256 << 20
"""Of a file that is mostly in no pack."""
_RECORDS = ("end.json", "vanished.json", "alive", "start.json")
"""The last ones of a session, in this order."""

Progress = Callable[[int, int], None]


class Copied(msgspec.Struct):
    """What was done."""

    objects: int = 0
    size: int = 0
    already: int = 0
    damaged: int = 0
    """Places in packs that could not be read, and are filled in the plain files."""
    left_out: int = 0
    """Files that packs speak of, and do not hold."""


class SessionCopy:
    """`progress` is told how many bytes are done, and of how many."""

    def __init__(
        self,
        ref: SessionRef,
        source: tuple[Store, Layout],
        target: tuple[Store, Layout],
        scratch: Path,
        progress: Progress,
    ) -> None:
        self._ref = ref
        self._source, self._from = source
        self._target, self._to = target
        self._scratch = scratch
        self._transfer = Transfer(self._source, self._target, scratch)
        self._progress = progress
        self._there: dict[str, ObjectInfo] = {}
        self._total = self._done = 0
        self._copied = Copied()

    async def run(self, owners: list[Owner], *, vanished_ms: int | None = None, plain: bool = False) -> Copied:
        """Of a session that has vanished, `vanished_ms` is its last sign of life: the copy's own times are later."""
        await self._refuse_if_going()
        found = await trees(self._source, self._from, self._ref, owners)
        left_out = [self._from.index_prefix(self._ref)] if plain or self._from.root != self._to.root else []
        left_out += [self._from.packs_prefix(self._ref)] if plain else []
        data = [
            info
            for info in await objects_below(self._source, [prefix for prefix in found.data if prefix not in left_out])
            if info.key != self._from.claim_key(self._ref)  # who folds here does not fold there
        ]
        records = await objects_below(self._source, found.records)
        there = [*found.records, *found.data]
        self._there = {
            info.key: info
            for info in await objects_below(self._target, [self._from.moved(prefix, self._to) for prefix in there])
        }
        self._total = sum(info.size for info in (*data, *records))
        manifests = [info for info in data if self._from.parse_manifest_key(info.key) is not None]
        await each(set(data).difference(manifests), self._copy, _AT_ONCE)
        if plain:
            await self._unpack({info.key: info.size for info in data})
        await each(manifests, self._copy, _AT_ONCE)
        if vanished_ms is not None:
            record = msgspec.json.encode(VanishedRecord(vanished_ms))
            await self._transfer.put(self._to.vanished_key(self._ref), record)
        else:
            await self._take_back(self._to.vanished_key(self._ref), records)
        await self._take_back(self._to.end_key(self._ref), records)
        self._there.pop(self._to.alive_key(self._ref), None)  # it is put again: its time is what it says
        for info in sorted(records, key=_record_order):
            await self._copy(info)
        for key in found.metadata:
            await self._copy_if_there(key)
        return self._copied

    async def _refuse_if_going(self) -> None:
        try:
            await self._target.head(self._to.tombstone_key(self._ref))
        except ObjectNotFound:
            return
        raise UsageError(f"{self._ref.path} is being removed from {self._target.url}: finish that with retention first")

    async def _take_back(self, key: str, records: list[ObjectInfo]) -> None:
        """A word on the end that was true when the session was copied before; it has gone on since."""
        if key in self._there and key not in {self._from.moved(info.key, self._to) for info in records}:
            await self._target.delete(key)

    async def _copy(self, info: ObjectInfo) -> None:
        key = self._from.moved(info.key, self._to)
        try:
            news = await self._transfer.copy(info, key, self._there.get(key))
        except ObjectNotFound:
            if not info.key.startswith(self._from.index_prefix(self._ref) + "/"):
                raise
            return  # a newer index has taken its place
        self._count(info.size, news=news)

    async def _copy_if_there(self, key: str) -> None:
        try:
            info = await self._source.head(key)
        except ObjectNotFound:
            return
        await self._copy(info)

    def _count(self, size: int, *, news: bool) -> None:
        self._copied.objects += 1
        self._copied.size += size
        self._copied.already += not news
        self._done += size
        self._progress(self._done, self._total)

    async def _unpack(self, whole: dict[str, int]) -> None:
        """Logs in packs become whole files, where there are none yet, or less of them."""
        for node in (await self._source.list_folder(self._from.packs_prefix(self._ref))).folders:
            if not is_node_folder(node):
                continue
            reader = PackReader(self._source, self._from.node_packs_prefix(self._ref, node))
            await reader.refresh()
            names = [
                name
                for name, stream in reader.names.items()
                if whole.get(self._from.log_key(self._ref, node, name), -1) < stream.size
                and await self._is_held(reader, stream)
            ]
            self._total += sum(reader.names[name].size for name in names)
            for name in names:
                await self._unpack_one(reader, node, name)
            for stream in reader.events.values():
                if await self._is_held(reader, stream):
                    await self._unpack_events(reader, node, stream, whole)
            self._copied.damaged += reader.damaged

    async def _is_held(self, reader: PackReader, stream: Stream) -> bool:
        """A pack may claim any size for a stream; what it does not hold would be filled."""
        missing = await reader.missing(stream)
        held = missing <= max(_MOST_FILLED, stream.size - missing)
        self._copied.left_out += not held
        return held

    async def _unpack_one(self, reader: PackReader, node: str, name: str) -> None:
        stream = reader.names[name]
        key = self._to.log_key(self._ref, node, name)

        async def read(start: int, end: int) -> bytes:
            return await reader.read_stream(stream, start, end)

        news = await self._transfer.put_stream(key, stream.size, read, self._there.get(key))
        self._count(stream.size, news=news)

    async def _unpack_events(self, reader: PackReader, node: str, stream: Stream, whole: dict[str, int]) -> None:
        """Events of a node that vanished before they had objects of their own get those that they were to have; of an
        object that is there, packs may have no more than the beginning."""
        created_ns = stream.name.partition(".")[0]
        if not (created_ns.isdecimal() and len(created_ns) <= 20):
            raise StoreError(f"{self._ref.path}: packs with events of unknown kind: {stream.name!r}")
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            segment = Segment(Path(folder) / f"{created_ns}.wal", self._ref.session, int(created_ns), node)
            with segment.path.open("wb") as file:
                for start in range(0, stream.size, PIECE):
                    piece = await reader.read_stream(stream, start, start + PIECE)
                    await asyncio.to_thread(file.write, piece)
            parts, _ = await asyncio.to_thread(split, segment, Path(folder), compressed=True)
            for part in parts:
                key_in = partial(self._from.events_key, self._ref, node, part.category, segment.created_ns)
                if key_in(compressed=True) in whole or key_in(compressed=False) in whole:
                    continue
                key = self._to.events_key(self._ref, node, part.category, segment.created_ns, compressed=True)
                await self._transfer.put(key, await asyncio.to_thread(part.path.read_bytes))
                self._count(part.path.stat().st_size, news=True)


def _record_order(info: ObjectInfo) -> int:
    name = info.key.rpartition("/")[2]
    return _RECORDS.index(name) if name in _RECORDS else -1


async def same_place(source: tuple[Store, Layout], target: tuple[Store, Layout]) -> bool:
    """Whether two stores are one, whatever they are called: what is written to the one is found in the other. A target
    that cannot be written to is found out here, and a bucket that is not there is made."""
    key = f"{target[1].scratch_prefix()}/{secrets.token_hex(8)}"
    await target[0].put(key, b"")
    try:
        await source[0].head(key)
        return source[1].root == target[1].root
    except ObjectNotFound:
        return False
    finally:
        await target[0].delete(key)
