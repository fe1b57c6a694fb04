"""A query reads only the blocks of its times, and gets the same result as from all samples."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rayhistory.metrics.column_file import VolumeWriter, decode_directory, encode_directory
from rayhistory.metrics.column_reader import ColumnReader
from rayhistory.metrics.column_volume import open_volume
from rayhistory.metrics.sample_querier import SampleQuerier
from rayhistory.metrics.sample_tiles import HOUR_MS, SampleTile, TileId, make_tile
from rayhistory.metrics.samples import MetricsDamaged, SampledSeries, Samples
from rayhistory.metrics.step_samples import StepSamples
from rayhistory.promql.engine import evaluate, grid, metrics_at_steps, required_samples
from rayhistory.promql.values import Vector
from rayhistory.sessions import SessionRef
from support.stored_metrics import REF

STEP_MS = 15_000
START_MS = 1_794_769_200_000
SERIES = 300


def node_samples(hour: int, node: int) -> Samples:
    """An hour of a counter with many series. The nodes started at different minutes."""
    generator = np.random.default_rng([hour, node])
    kept = generator.random(240) > 0.05
    first = START_MS + hour * HOUR_MS + node * 1_000_000
    values = np.cumsum(generator.integers(0, 5, (SERIES, int(kept.sum()))).astype(float), axis=1)
    values[generator.random(values.shape) < 0.02] = np.nan
    series = [SampledSeries("load", {"n": f"{node}-{row}"}, values[row].tobytes()) for row in range(SERIES)]
    return Samples((first + STEP_MS * np.flatnonzero(kept)).tolist(), series)


class StoredFiles:
    """Columns of three nodes in two tiles per hour."""

    build = "1"

    def __init__(self, directory: Path) -> None:
        writer = VolumeWriter(directory, "000001")
        for hour in range(2):
            objects = [(str(node) * 56, node_samples(hour, node)) for node in range(3)]
            writer.add(make_tile(TileId(hour, 0, 0), objects[:2]))
            writer.add(make_tile(TileId(hour, 0, 1), objects[2:]))
        self._paths = writer.finish([])
        self.reads: list[str] = []
        self.files = {name: path.stat().st_size for name, path in self._paths.items()}

    async def open(self, ref: SessionRef) -> "StoredFiles":
        return self

    async def read(self, name: str, start: int, end: int) -> bytes:
        self.reads.append(name)
        return self._paths[name].read_bytes()[start:end]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredFiles:
    return StoredFiles(tmp_path_factory.mktemp("columns"))


def tiles(reader: ColumnReader, span: tuple[int, int], steps: StepSamples | None = None) -> list[SampleTile]:
    async def read() -> list[SampleTile]:
        columns = await reader.open(REF)
        assert columns
        return await reader.tiles(columns, span, ["load"], steps)

    return asyncio.run(read())


def loaded(found: list[SampleTile]) -> int:
    return sum(metric.values.size for tile in found for metric in tile.metrics.values())


@pytest.mark.parametrize("query", ["load", "sum(rate(load[3m]))", "max_over_time(load[20m])", "load offset 5m"])
@pytest.mark.parametrize("minute", [0, 17, 55, 80, 130, 170])
@pytest.mark.parametrize("step_ms", [15_000, 120_000])
def test_result_is_the_same_as_with_all_samples(stored: StoredFiles, query: str, minute: int, step_ms: int) -> None:
    start = START_MS + minute * 60_000 + 7_000
    times = grid(start, start + 600_000, step_ms)
    needed = required_samples(query, int(times[0]), int(times[-1]), step_ms=step_ms)
    span = min(each.start_ms for each in needed), max(each.end_ms for each in needed)
    reader = ColumnReader(stored)
    some = tiles(reader, span, StepSamples(times, metrics_at_steps(query)))
    whole = tiles(reader, (0, 2**60))
    found, expected = (evaluate(query, times, SampleQuerier(REF, each, 2**60)).value for each in (some, whole))
    assert isinstance(found, Vector)
    assert isinstance(expected, Vector)
    by_labels = sorted(range(len(found.labels)), key=lambda row: found.labels[row])
    in_whole = sorted(range(len(expected.labels)), key=lambda row: expected.labels[row])
    assert [found.labels[row] for row in by_labels] == [expected.labels[row] for row in in_whole]
    np.testing.assert_equal(found.present[by_labels], expected.present[in_whole])
    values = (found.values[by_labels][found.present[by_labels]], expected.values[in_whole][expected.present[in_whole]])
    np.testing.assert_allclose(*values, rtol=1e-12)  # sums depend on the order of series
    assert loaded(some) < 0.8 * loaded(whole)


def test_samples_of_the_same_minutes_are_decoded_once(stored: StoredFiles) -> None:
    reader, start = ColumnReader(stored), START_MS + 1_200_000
    (first, *_), (second, *_) = (tiles(reader, (start, start + 300_000 + more)) for more in (0, 20_000))
    assert first.metrics["load"] is second.metrics["load"]


def test_pause_of_all_nodes_has_no_samples(stored: StoredFiles) -> None:
    last = START_MS + 2 * HOUR_MS + 2_000_000
    assert loaded(tiles(ColumnReader(stored), (last, last + 1))) == 0


def test_labels_are_read_without_samples(stored: StoredFiles) -> None:
    """Series that both hours have are returned once."""
    reader, whole = ColumnReader(stored), tiles(ColumnReader(stored), (0, 2**60))

    async def read(span: tuple[int, int]) -> list[SampleTile]:
        columns = await reader.open(REF)
        assert columns
        return await reader.labels(columns, span, None)

    expected = {labels for tile in whole for labels in tile.metrics["load"].labels}
    stored.reads.clear()
    found = [labels for tile in asyncio.run(read((0, 2**60))) if tile.metrics for labels in tile.metrics["load"].labels]
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert set(stored.reads) == {"000001-directory", "000001-labels"}
    assert not any(tile.metrics for tile in asyncio.run(read((0, 1))))


def test_more_blocks_than_samples_are_damage(tmp_path: Path) -> None:
    """Each block takes time in each query, and a directory could list millions."""
    stored = StoredFiles(tmp_path)
    path = tmp_path / "000001-directory"
    directory = decode_directory(path.read_bytes())
    directory.metrics["load"][0] = msgspec.structs.replace(directory.metrics["load"][0], values=((0, 1),) * 241)
    with pytest.raises(MetricsDamaged, match="more blocks than samples"):
        open_volume(stored, "000001", encode_directory(directory))
