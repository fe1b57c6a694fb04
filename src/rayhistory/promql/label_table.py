"""Labels of many series, stored by column: for each label name, the distinct values and the value of each series.

A selector finds thousands of series with the same label names and mostly the same values. Columns can be filtered and
grouped without a loop over series. As a sequence, a table yields the labels of each series.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from rayhistory.promql.arrays import Mask, Rows
from rayhistory.promql.labels import METRIC_NAME, Labels

Codes: TypeAlias = NDArray[np.int32]
_MAX_KEY = 2**62


class LabelColumn:
    """The values of one label: the distinct texts, and for each series the position of its text.

    A missing label is "".
    """

    __slots__ = ("codes", "texts")

    def __init__(self, texts: Sequence[str], codes: Codes) -> None:
        self.texts = texts
        self.codes = codes

    def take(self, rows: Rows | Mask) -> "LabelColumn":
        return LabelColumn(self.texts, self.codes[rows])


class LabelTable(Sequence[Labels]):
    def __init__(self, columns: dict[str, LabelColumn], size: int) -> None:
        self.columns = dict(sorted(columns.items()))
        self._size = size

    @classmethod
    def of(cls, labels: Iterable[Labels]) -> "LabelTable":
        rows = list(labels)
        texts: dict[str, dict[str, int]] = {}
        codes: dict[str, Codes] = {}
        for number, each in enumerate(rows):
            for name, value in each:
                known = texts.get(name)
                if known is None:
                    known = texts[name] = {"": 0}
                    codes[name] = np.zeros(len(rows), dtype=np.int32)
                codes[name][number] = known.setdefault(value, len(known))
        return cls({name: LabelColumn(list(texts[name]), codes[name]) for name in texts}, len(rows))

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, position: int) -> Labels: ...
    @overload
    def __getitem__(self, position: slice) -> "LabelTable": ...
    def __getitem__(self, position: int | slice) -> "Labels | LabelTable":
        if isinstance(position, slice):
            return self.take(np.arange(self._size)[position])
        pairs = ((name, column.texts[column.codes[position]]) for name, column in self.columns.items())
        return tuple(pair for pair in pairs if pair[1])

    def __iter__(self) -> Iterator[Labels]:
        names = list(self.columns)
        texts = [[column.texts[code] for code in column.codes.tolist()] for column in self.columns.values()]
        if not names:
            yield from ((),) * self._size
        for values in zip(*texts, strict=True):
            yield tuple(pair for pair in zip(names, values, strict=True) if pair[1])

    def take(self, rows: Rows | Mask) -> "LabelTable":
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return LabelTable(columns, int(np.count_nonzero(rows)) if rows.dtype == bool else len(rows))

    def without(self, names: Iterable[str]) -> "LabelTable":
        dropped = frozenset(names)
        return LabelTable({n: column for n, column in self.columns.items() if n not in dropped}, self._size)

    def only(self, names: Iterable[str]) -> "LabelTable":
        return LabelTable({name: self.columns[name] for name in names if name in self.columns}, self._size)

    def with_label(self, name: str, texts: Sequence[str], codes: Codes) -> "LabelTable":
        return LabelTable({**self.columns, name: LabelColumn(texts, codes)}, self._size)

    def where(self, name: str, predicate: Callable[[str], bool]) -> Mask:
        """Return which series have a matching value. The predicate is called once per distinct text."""
        column = self.columns.get(name)
        if column is None:
            return np.full(self._size, predicate(""))
        used = np.flatnonzero(np.bincount(column.codes, minlength=len(column.texts)))
        matching = np.zeros(len(column.texts), dtype=bool)
        matching[used] = [predicate(column.texts[code]) for code in used.tolist()]
        return matching[column.codes]

    def values_of(self, name: str) -> set[str]:
        """Return the distinct values of a label."""
        column = self.columns.get(name)
        return {column.texts[code] for code in np.flatnonzero(np.bincount(column.codes)).tolist()} if column else set()

    def groups(self) -> tuple["LabelTable", Rows]:
        """Return the distinct label sets in order of first occurrence, and for each series the position of its label
        set.
        """
        keys = np.zeros(self._size, dtype=np.int64)
        radix = 1
        for column in self.columns.values():
            if radix * len(column.texts) > _MAX_KEY:
                keys, radix = _renumbered(keys)
            keys = keys * len(column.texts) + column.codes
            radix *= len(column.texts)
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        position = np.empty(len(order), dtype=np.intp)
        position[order] = np.arange(len(order))
        return self.take(first[order]), position[inverse]

    def sorted_rows(self) -> Rows:
        """Return the positions of the series in the order of their labels, as `sorted` would without a table."""
        keys = list[Codes]()
        ends = np.ones(self._size, dtype=bool)
        for column in reversed(self.columns.values()):
            used, inverse = np.unique(column.codes, return_inverse=True)
            texts = [column.texts[code] for code in used.tolist()]
            order = {text: number for number, text in enumerate(sorted(filter(None, texts)), start=1)}
            ranks = np.array([order.get(text, 0) for text in texts], dtype=np.int32)[inverse]
            is_missing = ranks == 0
            # The next label of a series without this one has a later name, unless the series has no more labels.
            keys.append(np.where(is_missing & ~ends, len(order) + 1, ranks).astype(np.int32))
            ends &= is_missing
        return np.lexsort(keys) if keys else np.arange(self._size)

    def are_unique(self) -> bool:
        return len(self.groups()[0]) == self._size


def _renumbered(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    unique, inverse = np.unique(keys, return_inverse=True)
    return inverse.astype(np.int64), len(unique)


def concatenate_tables(tables: Sequence[LabelTable]) -> LabelTable:
    if len(tables) == 1:
        return tables[0]
    columns = {
        name: _joined([each.columns.get(name) for each in tables], [len(each) for each in tables])
        for name in {name: None for each in tables for name in each.columns}
    }
    return LabelTable(columns, sum(map(len, tables)))


def _joined(columns: Sequence[LabelColumn | None], sizes: Sequence[int]) -> LabelColumn:
    numbers: dict[str, int] = {"": 0}
    parts = []
    translations: dict[int, Codes] = {}
    for column, size in zip(columns, sizes, strict=True):
        if column is None:
            parts.append(np.zeros(size, dtype=np.int32))
            continue
        translation = translations.get(id(column.texts))
        if translation is None:
            found = [numbers.setdefault(text, len(numbers)) for text in column.texts]
            translation = translations[id(column.texts)] = np.array(found, dtype=np.int32)
        parts.append(translation[column.codes])
    return LabelColumn(list(numbers), np.concatenate(parts))


def without_names(labels: Sequence[Labels]) -> Sequence[Labels]:
    """Return the labels without the metric's name."""
    if isinstance(labels, LabelTable):
        return labels.without([METRIC_NAME])
    return [tuple(pair for pair in each if pair[0] != METRIC_NAME) for each in labels]
