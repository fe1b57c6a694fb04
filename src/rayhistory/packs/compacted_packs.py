"""Find and read packs that compaction has moved into larger objects.

    …/<node>/compacted/<first>-<last>-<size>-<token>.packs    the bytes of old packs, one after the other
    …/<node>/compacted/<first>-<last>-<size>-<token>.json     the position record: where each pack starts

A pack keeps its name, in directories and in the memory of a running collector; only its bytes are elsewhere. The
position record is written after the object, and makes it visible; then the packs are deleted. So a pack is always in
at least one place, and a reader that does not find it looks for position records. `<first>` and `<last>` are numbers of
packs.
"""

import asyncio
import re
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from rayhistory.errors import ObjectNotFound
from rayhistory.packs.pack_format import is_pack, parse_pack_name

COMPACTED_FOLDER = "compacted"
OBJECT_SUFFIX, RECORD_SUFFIX = ".packs", ".json"
MAX_COMPACTED_BYTES = 64 << 20
MAX_COMPACTED_PACKS = 20_000
_MAX_RECORD_BYTES = 4 << 20
_MAX_RECORDS = 10_000
_MAX_PACKS_IN_MEMORY = 300_000
_MAX_TIMES = 3_000_000
_NAME = re.compile(r"([0-9]{12})-([0-9]{12})-([0-9]{1,12})-([0-9a-f]{8})\Z")


class MovedPack(msgspec.Struct, array_like=True, frozen=True):
    name: str
    offset: int
    """Offset of the pack in the object."""
    modified_ms: int
    """Time when the pack itself was stored, by the store's clock."""


class CompactionRecord(msgspec.Struct):
    packs: list[MovedPack]
    format: int = 1


class CompactedName(NamedTuple):
    """The common name of an object and its record."""

    first: int
    last: int
    size: int
    token: str

    def __str__(self) -> str:
        return f"{COMPACTED_FOLDER}/{self.first:012d}-{self.last:012d}-{self.size}-{self.token}"


def parse_compacted_name(key: str, suffix: str) -> CompactedName | None:
    folder, _, name = key.rpartition("/")
    match = _NAME.match(name.removesuffix(suffix)) if name.endswith(suffix) else None
    if match is None or folder.rpartition("/")[2] != COMPACTED_FOLDER:
        return None
    return CompactedName(int(match[1]), int(match[2]), int(match[3]), match[4])


def parse_compaction_record(data: bytes, name: CompactedName) -> list[MovedPack]:
    """Return the packs that are inside the object. Records are untrusted, so entries outside of it are ignored."""
    try:
        record = msgspec.json.decode(data, type=CompactionRecord) if len(data) <= _MAX_RECORD_BYTES else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        record = None
    packs = record.packs[:MAX_COMPACTED_PACKS] if record else []
    return [pack for pack in packs if _is_inside(pack, name)]


def _is_inside(moved: MovedPack, name: CompactedName) -> bool:
    pack = parse_pack_name(moved.name) if is_pack(moved.name) else None
    if pack is None or not name.first <= pack.number <= name.last:
        return False
    return 0 <= moved.offset <= name.size - pack.size


class _ListedKey(Protocol):
    @property
    def key(self) -> str: ...


class _Listed(Protocol):
    @property
    def objects(self) -> Iterable[_ListedKey]: ...


class ObjectReads(Protocol):
    """The store operations that are needed to read compacted packs."""

    async def get_range(self, key: str, start: int, end: int) -> bytes: ...

    async def list_folder(self, prefix: str) -> _Listed: ...


class PackObjects:
    """The bytes of one node's packs, compacted or not."""

    def __init__(self, store: ObjectReads, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._records: dict[CompactedName, dict[str, MovedPack]] = {}
        """The packs of each record. Empty until the record is read."""
        self._lost: set[CompactedName] = set()
        """Records whose object was not found."""
        self._listed_at = float("-inf")
        self._lock = asyncio.Lock()

    @property
    def moved_packs(self) -> int:
        """Number of compacted packs whose records are in memory."""
        return sum(map(len, self._records.values()))

    async def get_range(self, pack: str, start: int, end: int) -> bytes:
        """Return bytes of a pack. Raise ObjectNotFound if it exists nowhere."""
        if not self._known(pack):
            began = time.monotonic()
            try:
                return await self._store.get_range(f"{self._prefix}/{pack}", start, end)
            except ObjectNotFound:
                await self._find(pack, began)
        while known := self._known(pack):
            name, moved = known[0]
            began = time.monotonic()
            try:
                key = f"{self._prefix}/{name}{OBJECT_SUFFIX}"
                return await self._store.get_range(key, moved.offset + start, moved.offset + end)
            except ObjectNotFound:  # moved again, into a larger object, or lost
                self._lost.add(name)
                await self._find(pack, began)
        raise ObjectNotFound(f"object {self._prefix}/{pack} not found")

    async def times(self) -> dict[int, int]:
        """Return the time when each compacted pack was stored, in ms, by pack number."""
        async with self._lock:
            await self._list()
        times: dict[int, int] = {}
        for name in list(self._records):
            await self._read(name)
            for each in self._records.get(name, {}).values():
                if (pack := parse_pack_name(each.name)) and len(times) < _MAX_TIMES:
                    times[pack.number] = each.modified_ms
        return times

    def _known(self, pack: str) -> list[tuple[CompactedName, MovedPack]]:
        return [(name, packs[pack]) for name, packs in self._records.items() if pack in packs]

    async def _find(self, pack: str, since: float) -> None:
        """Read the records that may have the pack.

        Their listing must be newer than the read that did not find the pack.
        """
        parsed = parse_pack_name(pack)
        if parsed is None:
            return
        async with self._lock:
            if self._listed_at < since:
                await self._list()
        for name in [each for each in self._records if each.first <= parsed.number <= each.last]:
            await self._read(name)
            if pack in self._records.get(name, {}):
                return  # reading others might drop this one

    async def _list(self) -> None:
        began = time.monotonic()
        listing = await self._store.list_folder(f"{self._prefix}/{COMPACTED_FOLDER}")
        names = (parse_compacted_name(info.key, RECORD_SUFFIX) for info in listing.objects)
        found = [name for name in names if name is not None and name not in self._lost][:_MAX_RECORDS]
        self._records = {name: self._records.get(name, {}) for name in found}
        self._listed_at = began

    async def _read(self, name: CompactedName) -> None:
        if self._records.get(name):
            return
        try:
            data = await self._store.get_range(f"{self._prefix}/{name}{RECORD_SUFFIX}", 0, _MAX_RECORD_BYTES + 1)
        except ObjectNotFound:
            self._records.pop(name, None)
            return
        packs = await asyncio.to_thread(parse_compaction_record, data, name)
        self._records[name] = {pack.name: pack for pack in packs}
        for other in list(self._records):
            if other != name and self.moved_packs > _MAX_PACKS_IN_MEMORY:
                self._records[other] = {}  # read again when one of its packs is needed
