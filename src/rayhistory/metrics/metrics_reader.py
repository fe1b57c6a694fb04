"""Samples of metrics, as nodes left them in the store: found by node and time, and read as one."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any

import msgspec

from rayhistory.errors import ObjectNotFound, UsageError
from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.metrics import LARGEST, DamagedMetrics, Samples, decode, family
from rayhistory.layout.packread import Kept
from rayhistory.storage import Store

_LARGEST = 64 * 2**20
_MOST_POINTS = 1_000_000
_AT_ONCE = 16
_FOREVER = 2**62


class Wanted(msgspec.Struct, frozen=True):
    """Which samples: of a node or of all, and from when to when in ms."""

    node: str | None = None
    start: int = 0
    end: int = _FOREVER


class _File(msgspec.Struct, frozen=True):
    node: str
    first_ms: int
    key: str
    size: int
    modified: float


class Found(msgspec.Struct):
    """What was read, and what could not be."""

    samples: list[tuple[str, Samples]]
    damaged: int

    def names(self) -> dict[str, Any]:
        """Every name, of what type it is, and on how many nodes it was."""
        types: dict[str, str] = {}
        nodes: dict[str, set[str]] = {}
        for node, samples in self.samples:
            for series in samples.series:
                nodes.setdefault(series.name, set()).add(node)
                types[series.name] = samples.types.get(family(series.name, samples.types), "untyped")
        names = [{"name": name, "type": types[name], "nodes": len(on)} for name, on in sorted(nodes.items())]
        return {"metrics": names, **self._honestly()}

    def points(self, name: str, labels: dict[str, str], wanted: Wanted, step_ms: int) -> dict[str, Any]:
        """The series of a name that have these labels; of each step, the last point."""
        series: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, tuple[int, float]]] = {}
        kind, total = "untyped", 0
        for node, samples in self.samples:
            for each in samples.series:
                if each.name != name or not labels.items() <= each.labels.items():
                    continue
                kind = samples.types.get(family(name, samples.types), kind)
                points = series.setdefault((node, tuple(sorted(each.labels.items()))), {})
                total -= len(points)
                points.update((at // step_ms, (at, value)) for at, value in each.points(samples.times)
                              if wanted.start <= at <= wanted.end)  # fmt: skip
                total += len(points)
                if total > _MOST_POINTS:
                    raise UsageError(f"more than {_MOST_POINTS} points: narrow it with node, from, to, step or a label")
        found = [
            {"node": node, "labels": dict(pairs), "points": [points[step] for step in sorted(points)]}
            for (node, pairs), points in sorted(series.items())
            if points
        ]
        return {"name": name, "type": kind, "series": found, **self._honestly()}

    def _honestly(self) -> dict[str, int]:
        dropped = max((samples.dropped for _, samples in self.samples), default=0)
        return {"series_dropped": dropped, "files_damaged": self.damaged}


class MetricFiles:
    def __init__(self, store: Store, layout: Layout, memory: Kept[Samples]) -> None:
        self._store = store
        self._layout = layout
        self._memory = memory

    async def read(self, ref: SessionRef, wanted: Wanted) -> Found:
        files = [file async for file in self._files(ref) if wanted.node in (None, file.node)]
        chosen = [file for file, end in _spans(files) if file.first_ms <= wanted.end and end >= wanted.start]
        if sum(file.size for file in chosen) > _LARGEST:
            raise UsageError(
                f"the metrics of {len(chosen)} files are too much at once: narrow it with node, from or to"
            )
        turns = asyncio.Semaphore(_AT_ONCE)
        read = await asyncio.gather(*(self._read(file, turns) for file in chosen))
        samples = [(file.node, one) for file, one in zip(chosen, read, strict=True) if one]
        return Found(samples, len(chosen) - len(samples))

    async def _files(self, ref: SessionRef) -> AsyncIterator[_File]:
        async for info in self._store.list_all(self._layout.metrics_prefix(ref)):
            if place := self._layout.parse_metrics_key(ref, info.key):
                yield _File(*place, info.key, info.size, info.modified)

    async def _read(self, file: _File, turns: asyncio.Semaphore) -> Samples | None:
        """None for one that is damaged, or was removed since."""
        if known := self._memory.get(file):
            return known
        async with turns:
            try:
                data = await self._store.get_range(file.key, 0, LARGEST)
                samples = await asyncio.to_thread(decode, data)
            except (DamagedMetrics, ObjectNotFound):
                return None
        self._memory.keep(file, samples, sum(len(each.values) + 500 for each in samples.series))
        return samples


def _spans(files: Iterable[_File]) -> Iterator[tuple[_File, int]]:
    """Each file with the time at which the next of its node begins."""
    for _, of_node in groupby(sorted(files, key=lambda file: (file.node, file.first_ms)), lambda file: file.node):
        one_by_one = list(of_node)
        yield from ((file, following.first_ms) for file, following in pairwise(one_by_one))
        yield one_by_one[-1], _FOREVER
