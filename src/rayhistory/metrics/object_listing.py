"""The stored objects of a session's metrics, as they were listed at one time."""

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import groupby, pairwise

import msgspec

from rayhistory.lru import LruCache

_NEWEST_OBJECTS = 4
_CACHED_SELECTIONS = 16
_END_OF_TIME_MS = 2**62
_OBJECT_MS = 3_600_000
"""An object has the samples of at most an hour."""
_MAX_PAUSE_MS = 300_000
"""A longer time without samples of a node is a gap. Charts draw no lines over such a time, either."""


class MetricQuery(msgspec.Struct, frozen=True):
    """A selection of samples: one node or all nodes, and a time range in ms."""

    node: str | None = None
    start: int = 0
    end: int = _END_OF_TIME_MS


class MetricsObject(msgspec.Struct, frozen=True):
    node: str
    first_ms: int
    key: str
    size: int
    modified: float


class MetricsGap(msgspec.Struct, frozen=True):
    """A range of time, in ms, for which samples of a node could not be read, or are not stored."""

    node: str
    from_ms: int
    to_ms: int
    is_stored: bool = True


def newest_of_nodes(objects: Iterable[MetricsObject]) -> set[MetricsObject]:
    """Return the last object of each node, which its collector may still overwrite."""
    newest: dict[str, MetricsObject] = {}
    for each in sorted(objects, key=lambda each: each.first_ms):
        newest[each.node] = each
    return set(newest.values())


class ListedObjects(msgspec.Struct, frozen=True):
    """The objects of a query, each with the start of the next object of its node."""

    objects: list[tuple[MetricsObject, int]]
    version: int
    """A number that changes when the objects change."""
    pauses: list[MetricsGap]
    """Times between two objects of a node for which there is no object."""


class ObjectListing:
    """Objects of one listing. The many queries of a page select the same ones, so selections are cached."""

    def __init__(self, objects: list[MetricsObject]) -> None:
        self.objects = objects
        self._selected: LruCache[MetricQuery, ListedObjects] = LruCache(_CACHED_SELECTIONS)
        self._uncovered: LruCache[tuple[MetricQuery, str], list[tuple[MetricsObject, int]]] = LruCache(
            _CACHED_SELECTIONS
        )

    @cached_property
    def first_ms(self) -> int:
        return min((each.first_ms for each in self.objects), default=0)

    @cached_property
    def newest(self) -> tuple[MetricsObject, ...]:
        """Some objects with the last samples of the session."""
        ordered = sorted(self.objects, key=lambda each: (each.modified, each.first_ms))
        return tuple(ordered[-_NEWEST_OBJECTS:])

    @cached_property
    def _with_end(self) -> list[tuple[MetricsObject, int]]:
        return list(_ends(self.objects))

    def between(self, query: MetricQuery) -> ListedObjects:
        found = self._selected.get(query)
        if found is None:
            objects = [
                (each, end)
                for each, end in self._with_end
                if query.node in (None, each.node) and each.first_ms <= query.end and end >= query.start
            ]
            found = ListedObjects(objects, hash(tuple(each for each, _ in objects)), list(_pauses(objects, query)))
            self._selected.put(query, found)
        return found

    def uncovered(
        self, query: MetricQuery, build: str, covered: Collection[tuple[str, int]]
    ) -> list[tuple[MetricsObject, int]]:
        """Return the objects of a query that a build of columns does not cover."""
        found = self._uncovered.get((query, build))
        if found is None:
            found = [(each, end) for each, end in self.between(query).objects if (each.key, each.size) not in covered]
            self._uncovered.put((query, build), found)
        return found


def _pauses(objects: Iterable[tuple[MetricsObject, int]], query: MetricQuery) -> Iterator[MetricsGap]:
    """Yield times without any object of a node: its collector did not run, or an object was removed."""
    for each, following_ms in objects:
        start = each.first_ms + _OBJECT_MS
        is_pause = following_ms != _END_OF_TIME_MS and following_ms > start + _MAX_PAUSE_MS
        if is_pause and start <= query.end and following_ms >= query.start:
            yield MetricsGap(each.node, start, min(following_ms, query.end), is_stored=False)


def _ends(objects: Iterable[MetricsObject]) -> Iterator[tuple[MetricsObject, int]]:
    """Yield each object with the start of the next object of its node."""
    for _, group in groupby(sorted(objects, key=lambda each: (each.node, each.first_ms)), lambda each: each.node):
        of_node = list(group)
        yield from ((each, following.first_ms) for each, following in pairwise(of_node))
        yield of_node[-1], _END_OF_TIME_MS
