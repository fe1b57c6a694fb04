"""Copy a session to another store.

Data is copied first. The records and KubeRay's metadata keys, which make a session visible, are copied last. Objects
that the target already has are skipped, so an interrupted copy resumes when it is repeated.
"""

import asyncio
import secrets
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from rayhistory.archive.session_objects import for_each, list_objects, session_prefixes
from rayhistory.archive.transfer import CHUNK_BYTES, Transfer
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.segment import Segment
from rayhistory.collector.spool.segment_objects import split_segment
from rayhistory.errors import ObjectNotFound, StoreError, UsageError
from rayhistory.packs.pack_format import Stream
from rayhistory.packs.pack_reader import PackReader
from rayhistory.sessions import (
    MAX_RECORD_BYTES,
    EndRecord,
    Layout,
    Owner,
    SessionRef,
    StartRecord,
    VanishedRecord,
    read_record,
)
from rayhistory.sessions.keys import ALIVE_RECORD, END_RECORD, START_RECORD, VANISHED_RECORD
from rayhistory.sessions.kuberay_keys import is_node_folder
from rayhistory.sessions.records import is_resumed
from rayhistory.storage import ObjectInfo, Store

_CONCURRENT_OBJECTS = 8
_MAX_MISSING_BYTES = 256 << 20
"""Maximum number of missing bytes of a file that is unpacked. No maximum applies if half of the file is stored."""
_RECORDS = (END_RECORD, VANISHED_RECORD, ALIVE_RECORD, START_RECORD)
"""Records that are copied last, in this order."""
_TIMED_RECORDS: dict[str, type[StartRecord] | type[EndRecord]] = {START_RECORD: StartRecord, END_RECORD: EndRecord}

Progress = Callable[[int, int], None]


class CopyResult(msgspec.Struct):
    objects: int = 0
    size: int = 0
    skipped: int = 0
    """Number of objects that were not copied, because the target already had them."""
    damaged: int = 0
    """Number of unreadable ranges in packs. In plain files, a filler replaces them."""
    left_out: int = 0
    """Number of files that were not copied, because too many of their bytes are missing in the packs."""


class SessionCopy:
    """Copies one session. `progress` is called with the copied and the total number of bytes."""

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
        self._existing: dict[str, ObjectInfo] = {}
        self._total = self._done = 0
        self._result = CopyResult()

    async def run(self, owners: list[Owner], *, vanished_ms: int | None = None, plain: bool = False) -> CopyResult:
        """Copy the session.

        `vanished_ms` is the last heartbeat of a vanished session. The copy stores it in a record, because its objects
        have new modification times. With `plain`, packs become whole files.
        """
        await self._refuse_if_removed()
        prefixes = await session_prefixes(self._source, self._from, self._ref, owners)
        excluded = [self._from.index_prefix(self._ref)] if plain or self._from.root != self._to.root else []
        excluded += [self._from.packs_prefix(self._ref)] if plain else []
        data = [
            info
            for info in await list_objects(self._source, [prefix for prefix in prefixes.data if prefix not in excluded])
            if not self._from.is_index_lease(self._ref, info.key)  # a lease is valid for one store
        ]
        records = _without_void_end(await list_objects(self._source, prefixes.records))
        targets = [self._from.moved(prefix, self._to) for prefix in (*prefixes.records, *prefixes.data)]
        self._existing = {info.key: info for info in await list_objects(self._target, targets)}
        self._total = sum(info.size for info in (*data, *records))
        manifests = [info for info in data if self._from.is_index_manifest(info.key)]
        await for_each(set(data).difference(manifests), self._copy, _CONCURRENT_OBJECTS)
        if plain:
            await self._unpack({info.key: info.size for info in data})
        await for_each(manifests, self._copy, _CONCURRENT_OBJECTS)
        if vanished_ms is not None:
            record = msgspec.json.encode(VanishedRecord(vanished_ms))
            await self._transfer.put(self._to.vanished_key(self._ref), record)
        else:
            await self._delete_outdated(self._to.vanished_key(self._ref), records)
        await self._delete_outdated(self._to.end_key(self._ref), records)
        # Always written again, because its modification time is the heartbeat.
        self._existing.pop(self._to.alive_key(self._ref), None)
        for info in sorted(records, key=_record_order):
            await self._copy_record(info)
        for key in prefixes.metadata:
            await self._copy_if_present(key)
        return self._result

    async def _refuse_if_removed(self) -> None:
        try:
            await self._target.head(self._to.tombstone_key(self._ref))
        except ObjectNotFound:
            return
        raise UsageError(
            f"{self._ref.path} is being removed from {self._target.url}: run `rayhistory retention` to complete the "
            "removal, then try again"
        )

    async def _delete_outdated(self, key: str, records: list[ObjectInfo]) -> None:
        """Delete an end or vanished record of an earlier copy if the source no longer has it."""
        if key in self._existing and key not in {self._from.moved(info.key, self._to) for info in records}:
            await self._target.delete(key)

    async def _copy(self, info: ObjectInfo) -> None:
        key = self._from.moved(info.key, self._to)
        try:
            is_new = await self._transfer.copy(info, key, self._existing.get(key))
        except ObjectNotFound:
            if not info.key.startswith(self._from.index_prefix(self._ref) + "/"):
                raise
            return  # a newer generation of the index replaced it
        self._count(info.size, is_new=is_new)

    async def _copy_record(self, info: ObjectInfo) -> None:
        """Copy a record.

        In start and end records, store the modification time of the source, because the copied object has a new one.
        """
        kind = _TIMED_RECORDS.get(info.key.rpartition("/")[2])
        data = await self._source.get_range(info.key, 0, MAX_RECORD_BYTES) if kind else b""
        record = read_record(data, kind) if kind else None
        modified_ms = int(info.modified * 1000)
        if isinstance(record, StartRecord):
            await self._put_first_stored(min(record.stored_ms or modified_ms, modified_ms))
        if record is None or record.stored_ms is not None:
            await self._copy(info)
            return
        record.stored_ms = modified_ms
        key, timed = self._from.moved(info.key, self._to), msgspec.json.encode(record)
        is_new = key not in self._existing or await self._target.get(key) != timed
        if is_new:
            await self._transfer.put(key, timed)
        self._count(info.size, is_new=is_new)

    async def _put_first_stored(self, stored_ms: int) -> None:
        """Write the time that determines the position of the copy in lists of the target's sessions."""
        key = self._to.first_stored_key(self._ref, stored_ms)
        if key not in self._existing:
            await self._target.put(key, b"")

    async def _copy_if_present(self, key: str) -> None:
        try:
            info = await self._source.head(key)
        except ObjectNotFound:
            return
        await self._copy(info)

    def _count(self, size: int, *, is_new: bool) -> None:
        self._result.objects += 1
        self._result.size += size
        self._result.skipped += not is_new
        self._done += size
        self._progress(self._done, self._total)

    async def _unpack(self, object_sizes: dict[str, int]) -> None:
        """Write each packed log as a whole file, unless a plain file of at least that size exists."""
        for node in (await self._source.list_folder(self._from.packs_prefix(self._ref))).folders:
            if not is_node_folder(node):
                continue
            reader = PackReader(self._source, self._from.node_packs_prefix(self._ref, node))
            await reader.refresh()
            names = [
                name
                for name, stream in reader.files.items()
                if object_sizes.get(self._from.log_key(self._ref, node, name), -1) < stream.size
                and await self._is_mostly_stored(reader, stream)
            ]
            self._total += sum(reader.files[name].size for name in names)
            for name in names:
                await self._unpack_log(reader, node, name)
            for stream in reader.event_streams.values():
                if await self._is_mostly_stored(reader, stream):
                    await self._unpack_events(reader, node, stream, object_sizes)
            self._result.damaged += reader.damaged

    async def _is_mostly_stored(self, reader: PackReader, stream: Stream) -> bool:
        """Return whether the packs contain enough bytes of a stream to write it as a file. If not, add 1 to `left_out`.

        Missing bytes are replaced by a filler. A damaged pack may claim any size, so the filler must be limited.
        """
        missing = await reader.missing_bytes(stream)
        mostly_stored = missing <= max(_MAX_MISSING_BYTES, stream.size - missing)
        self._result.left_out += not mostly_stored
        return mostly_stored

    async def _unpack_log(self, reader: PackReader, node: str, name: str) -> None:
        stream = reader.files[name]
        key = self._to.log_key(self._ref, node, name)

        async def read(start: int, end: int) -> bytes:
            return await reader.read_stream(stream, start, end)

        is_new = await self._transfer.put_ranges(key, stream.size, read, self._existing.get(key))
        self._count(stream.size, is_new=is_new)

    async def _unpack_events(self, reader: PackReader, node: str, stream: Stream, object_sizes: dict[str, int]) -> None:
        """Write the packed events of a vanished node as the objects that its collector would have written.

        Existing objects are not overwritten, because they are complete, and packs may have only their beginning.
        """
        created_ns = stream.name.partition(".")[0]
        if not (created_ns.isdecimal() and len(created_ns) <= 20):
            raise StoreError(
                f"{self._ref.path}: damaged pack: its event stream {stream.name!r} is not named after a time"
            )
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            directory = PrivateDirectory(Path(folder))
            segment = Segment(directory, f"{created_ns}.wal", self._ref.session, int(created_ns), node)
            with segment.path.open("wb") as file:
                for start in range(0, stream.size, CHUNK_BYTES):
                    chunk = await reader.read_stream(stream, start, start + CHUNK_BYTES)
                    await asyncio.to_thread(file.write, chunk)
            objects, _ = await asyncio.to_thread(split_segment, segment, directory, compressed=True)
            for each in objects:
                source_key = partial(self._from.events_key, self._ref, node, each.category, segment.created_ns)
                if source_key(compressed=True) in object_sizes or source_key(compressed=False) in object_sizes:
                    continue
                key = self._to.events_key(self._ref, node, each.category, segment.created_ns, compressed=True)
                await self._transfer.put(key, await asyncio.to_thread(each.path.read_bytes))
                self._count(each.size, is_new=True)
            directory.close()


def _without_void_end(records: list[ObjectInfo]) -> list[ObjectInfo]:
    """Drop the end record of a session that was resumed later.

    In the source, the modification time of this record shows that it is void. A copy of the record has a new time.
    """
    modified = {info.key.rpartition("/")[2]: info.modified for info in records}
    if not is_resumed(modified.get(ALIVE_RECORD), modified.get(END_RECORD)):
        return records
    return [info for info in records if not info.key.endswith(f"/{END_RECORD}")]


def _record_order(info: ObjectInfo) -> int:
    name = info.key.rpartition("/")[2]
    return _RECORDS.index(name) if name in _RECORDS else -1


async def is_same_store(source: tuple[Store, Layout], target: tuple[Store, Layout]) -> bool:
    """Return whether two stores are the same: write a probe object to the target and look for it in the source.

    The write also fails early if the target is not writable, and creates a missing bucket.
    """
    key = f"{target[1].scratch_prefix()}/{secrets.token_hex(8)}"
    await target[0].put(key, b"")
    try:
        await source[0].head(key)
        return source[1].root == target[1].root
    except ObjectNotFound:
        return False
    finally:
        await target[0].delete(key)
