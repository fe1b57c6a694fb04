"""Metrics samples of a session, ordered by metric, so that a chart reads only the bytes of its own metrics.

They are stored as volumes, which are sets of three files. `<n>-labels` has one zstd frame for each metric and tile (one
hour of some nodes). `<n>-values` has one frame for each block, which is some minutes of a metric in a tile: a short
chart does not decompress the whole hour. The frames of a metric are adjacent. `<n>-directory` has the times of all
tiles, and the location of each frame. All three are untrusted.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise, zip_longest
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import zstandard

from rayhistory.metrics.sample_tiles import SampleTile, TileClocks, TileMetric
from rayhistory.metrics.samples import MetricsDamaged
from rayhistory.promql.arrays import Floats, Rows
from rayhistory.promql.label_table import LabelColumn, LabelTable

LABELS, VALUES, DIRECTORY = "labels", "values", "directory"
MAX_DIRECTORY_BYTES = 256 << 20
_MAX_FRAME_BYTES = 256 << 20
_LEVEL = 3
_FORMAT = 2
BLOCK_COLUMNS = 40
"""Minimum number of samples of a block: ten minutes at 15 s. Smaller blocks compress worse."""
_MIN_BLOCK_BYTES = 64 << 10
_THREAD = threading.local()

Span = tuple[int, int]
"""Start and end of a range of bytes, or of columns (samples)."""


class _StoredClocks(msgspec.Struct, array_like=True):
    hour: int
    nodes: list[str]
    addresses: list[str]
    times: bytes
    dropped: int


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """The series of a metric in one tile."""

    tile: int
    rows: int
    labels: Span
    values: tuple[Span, ...]
    """The frames of its blocks, earliest samples first."""


class _StoredLabels(msgspec.Struct, array_like=True):
    clock: bytes
    columns: list[tuple[str, list[str], bytes]]


class ColumnDirectory(msgspec.Struct):
    tiles: list[_StoredClocks]
    metrics: dict[str, list[Chunk]]
    types: dict[str, str]
    objects: list[tuple[str, int]]
    """Keys and sizes of the stored objects that the volume covers."""
    format: int = _FORMAT

    def clocks(self) -> list[TileClocks]:
        return [_clocks(each) for each in self.tiles]


def encode_directory(directory: ColumnDirectory) -> bytes:
    return _compress(msgspec.msgpack.encode(directory))


def decode_directory(data: bytes) -> ColumnDirectory:
    found: ColumnDirectory = _decode(data, MAX_DIRECTORY_BYTES, ColumnDirectory)
    if found.format != _FORMAT:
        raise MetricsDamaged(f"stored metrics columns have format {found.format}, but this version reads {_FORMAT}")
    for chunk in (each for chunks in found.metrics.values() for each in chunks):
        if not (0 <= chunk.tile < len(found.tiles) and chunk.rows >= 0 and chunk.values):
            raise MetricsDamaged("stored metrics columns are damaged: a chunk refers to a tile that does not exist")
    return found


def _clocks(stored: _StoredClocks) -> TileClocks:
    times = np.frombuffer(stored.times, dtype="<i8")
    count = len(stored.nodes)
    if len(stored.addresses) != count or (times.size % count if count else times.size):
        raise MetricsDamaged("stored metrics columns are damaged: a tile has a wrong number of times")
    return TileClocks(stored.hour, stored.nodes, stored.addresses, times.reshape(count, -1))


def decode_labels(clocks: TileClocks, chunk: Chunk, data: bytes) -> tuple[LabelTable, Rows]:
    """Return the labels of each series, and the row of its times."""
    stored = _decode(data, _MAX_FRAME_BYTES, _StoredLabels)
    clock = _codes(stored.clock, chunk.rows, len(clocks.nodes)).astype(np.intp)
    columns = {name: LabelColumn(texts, _codes(codes, chunk.rows, len(texts))) for name, texts, codes in stored.columns}
    return LabelTable(columns, chunk.rows), clock


def block_edges(width: int, count: int) -> list[int]:
    """Return the first column of each block, and the end of the last one."""
    size = -(-width // count)
    return [min(width, number * size) for number in range(count + 1)]


def blocks_of(width: int, chunk: Chunk, columns: Span) -> list[int]:
    """Return the blocks of a chunk that have some of the columns."""
    edges = pairwise(block_edges(width, len(chunk.values)))
    return [number for number, (start, end) in enumerate(edges) if start < columns[1] and end > columns[0]]


def decode_values(
    width: int, chunk: Chunk, columns: Span, frames: Sequence[bytes | memoryview], target: Floats
) -> None:
    """Decode the frames of `blocks_of` into the first columns of an array. The chunk is `width` samples wide."""
    edges = block_edges(width, len(chunk.values))
    first, end = columns
    for number, data in zip(blocks_of(width, chunk, columns), frames, strict=True):
        start, stop = edges[number], edges[number + 1]
        raw = np.frombuffer(_decompress(data, _MAX_FRAME_BYTES), dtype="<f8")
        if raw.size != chunk.rows * (stop - start):
            raise MetricsDamaged("stored metrics columns are damaged: a metric has a wrong number of values")
        inside = slice(max(start, first), min(stop, end))
        block = raw.reshape(chunk.rows, stop - start)
        target[:, inside.start - first : inside.stop - first] = block[:, inside.start - start : inside.stop - start]


def _codes(data: bytes, count: int, limit: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    codes = np.frombuffer(data, dtype="<i4")
    if codes.size != count or (count and not (int(codes.min()) >= 0 and int(codes.max()) < limit)):
        raise MetricsDamaged("stored metrics columns are damaged: invalid label codes")
    return codes


def _decode(data: bytes, max_bytes: int, kind: "type[Any]") -> Any:
    try:
        return msgspec.msgpack.decode(_decompress(data, max_bytes), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MetricsDamaged(f"stored metrics columns are damaged: {error}") from None


def _decompress(data: bytes | memoryview, max_bytes: int) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= max_bytes:
            raise MetricsDamaged(f"stored metrics columns have an unknown size, or are larger than {max_bytes} bytes")
        return _decompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise MetricsDamaged(f"stored metrics columns are damaged: {error}") from None


def _decompressor() -> zstandard.ZstdDecompressor:
    """Return the decompressor of this thread. To create one takes longer than to decompress a small frame."""
    if not hasattr(_THREAD, "decompressor"):
        _THREAD.decompressor = zstandard.ZstdDecompressor()
    found: zstandard.ZstdDecompressor = _THREAD.decompressor
    return found


def _compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True).compress(data)


class VolumeWriter:
    """Writes a volume, one tile after another. Frames are collected in a file, and ordered by metric at the end."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix
        self._tiles: list[_StoredClocks] = []
        self._frames: dict[str, list[Chunk]] = {}
        """Chunks by metric, with places in the scratch file."""
        self._types: dict[str, str] = {}
        self._scratch = (directory / "frames").open("w+b")

    def add(self, tile: SampleTile) -> None:
        clocks = tile.clocks
        times = np.ascontiguousarray(clocks.times, dtype="<i8").tobytes()
        number = len(self._tiles)
        self._tiles.append(_StoredClocks(clocks.hour, clocks.nodes, clocks.addresses, times, tile.dropped))
        self._types |= tile.types
        for name, metric in tile.metrics.items():
            labels = self._append(_compress(msgspec.msgpack.encode(_stored_labels(metric))))
            values = tuple(self._append(_compress(block)) for block in _blocks(metric.values))
            self._frames.setdefault(name, []).append(Chunk(number, len(metric.labels), labels, values))

    def _append(self, frame: bytes) -> Span:
        start = self._scratch.tell()
        self._scratch.write(frame)
        return start, start + len(frame)

    def finish(self, objects: Iterable[tuple[str, int]]) -> dict[str, Path]:
        """Return the files of the volume by name."""
        names = {kind: f"{self._prefix}-{kind}" for kind in (LABELS, VALUES, DIRECTORY)}
        metrics: dict[str, list[Chunk]] = {}
        with (
            (self._directory / names[LABELS]).open("wb") as labels,
            (self._directory / names[VALUES]).open("wb") as values,
        ):
            for name in sorted(self._frames):
                blocks = self._moved_blocks(self._frames[name], values)
                metrics[name] = [
                    Chunk(each.tile, each.rows, self._moved(each.labels, labels), tuple(spans))
                    for each, spans in zip(self._frames[name], blocks, strict=True)
                ]
        self._scratch.close()
        (self._directory / "frames").unlink()
        directory = ColumnDirectory(self._tiles, metrics, self._types, sorted(objects))
        (self._directory / names[DIRECTORY]).write_bytes(encode_directory(directory))
        return {name: self._directory / name for name in names.values()}

    def _moved_blocks(self, chunks: list[Chunk], target: IO[bytes]) -> list[list[Span]]:
        """Put blocks of the same minutes side by side, so that a query of all nodes reads one range of bytes."""
        moved: list[list[Span]] = [[] for _ in chunks]
        numbered = enumerate(chunks)
        for _, of_hour in groupby(numbered, key=lambda each: self._tiles[each[1].tile].hour):
            for blocks in zip_longest(*([(number, span) for span in each.values] for number, each in of_hour)):
                for number, span in filter(None, blocks):
                    moved[number].append(self._moved(span, target))
        return moved

    def _moved(self, span: Span, target: IO[bytes]) -> Span:
        self._scratch.seek(span[0])
        start = target.tell()
        target.write(self._scratch.read(span[1] - span[0]))
        return start, target.tell()


def _blocks(values: Floats) -> Iterator[bytes]:
    """Yield the bytes of each block. Small metrics have only one."""
    width = values.shape[1]
    count = max(1, min(width // BLOCK_COLUMNS, values.nbytes // _MIN_BLOCK_BYTES))
    for start, end in pairwise(block_edges(width, count)):
        yield np.ascontiguousarray(values[:, start:end], dtype="<f8").tobytes()


def _stored_labels(metric: TileMetric) -> _StoredLabels:
    columns = [
        (name, list(column.texts), np.ascontiguousarray(column.codes, dtype="<i4").tobytes())
        for name, column in metric.labels.columns.items()
    ]
    return _StoredLabels(metric.clock.astype("<i4").tobytes(), columns)


def volumes(names: Iterable[str]) -> Iterator[str]:
    """Given the file names of several volumes, yield the prefix of each volume, in ascending order."""
    return iter(sorted(name.removesuffix(f"-{DIRECTORY}") for name in names if name.endswith(f"-{DIRECTORY}")))
