"""The search index as a product of a session's index. It is built after the tables, and extended by new log lines."""

import ctypes
import sys

from rayhistory.index.products.product import BuiltProduct, PreviousProduct, ProductContext
from rayhistory.logs.source import CombinedLogs, PackLogs, object_logs
from rayhistory.search.index_builder import build_shards, new_units
from rayhistory.search.scan_plan import UNIT_BYTES
from rayhistory.search.shard_format import MAX_GROUPS, PREAMBLE_BYTES, IndexedUnit, decode_header, header_bytes

NAME = "search"
_MAX_SHARDS_PER_FULL = 8
"""Maximum number of shards, as a multiple of the full shards that would suffice. If there are more, all are rebuilt."""
_MIN_SHARDS = 24
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class SearchProduct:
    name = NAME
    version = 5

    def build(self, context: ProductContext) -> BuiltProduct:
        keep_freed_memory()
        ref, layout = context.ref, context.layout
        logs = CombinedLogs(*object_logs(context.store, layout, ref), PackLogs(context.store, layout, ref))
        indexed = _indexed_units(context.previous)
        units = context.run(new_units(logs, [unit for some in indexed.values() for unit in some]))
        raw = sum(unit.end - unit.start for some in (*indexed.values(), units) for unit in some)
        if has_too_many_shards(len(indexed), raw):
            indexed, units = {}, context.run(new_units(logs, []))
            raw = sum(unit.end - unit.start for unit in units)
        number = 1 + max((int(name.partition("-")[0]) for name in indexed), default=0)
        files = context.run(
            build_shards(
                logs, units, context.scratch, prefix=f"{number:06d}",
                report=lambda progress: context.report(progress, "indexing logs for search"),
            )
        )  # fmt: skip
        return BuiltProduct(files, {"indexed_bytes": raw}, tuple(indexed))


def has_too_many_shards(shards: int, size: int) -> bool:
    """Return True if there are so many shards for `size` bytes of logs that they should be built again as full ones.

    Shards of small files are full with an eighth of the bytes.
    """
    return shards > max(_MIN_SHARDS, _MAX_SHARDS_PER_FULL * (size // (MAX_GROUPS * UNIT_BYTES)))


def keep_freed_memory() -> None:
    """Make glibc reuse freed memory instead of asking the system, which saves a quarter of a build's time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def _indexed_units(previous: PreviousProduct | None) -> dict[str, list[IndexedUnit]]:
    """Return the units of each shard of the last build."""
    found: dict[str, list[IndexedUnit]] = {}
    for name in previous.manifest.files if previous else ():
        assert previous  # noqa: S101
        with previous.fetch(name).open("rb") as file:
            preamble = file.read(PREAMBLE_BYTES)
            found[name] = decode_header(file.read(header_bytes(preamble.ljust(PREAMBLE_BYTES)))).units
    return found


PRODUCT = SearchProduct()
