"""Leaving out samples between steps does not change the result of a query."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from rayhistory.metrics.column_file import VolumeWriter
from rayhistory.metrics.column_reader import ColumnReader
from rayhistory.metrics.sample_querier import SampleQuerier
from rayhistory.metrics.sample_tiles import HOUR_MS, SampleTile, TileId, make_tile
from rayhistory.metrics.samples import SampledSeries, Samples
from rayhistory.metrics.step_samples import StepSamples, connected, step_positions
from rayhistory.promql.arrays import Times
from rayhistory.promql.engine import evaluate, grid, metrics_at_steps
from rayhistory.promql.values import Vector
from rayhistory.sessions import SessionRef
from support.stored_metrics import REF

STEP_MS = 15_000
START_MS = 1_794_769_200_000
HOURS, NODES = 5, 3


def node_samples(generator: np.random.Generator, hour: int, node: int) -> Samples:
    """An hour of samples with gaps, missing values, and a series that not every hour has."""
    kept = generator.random(240) > 0.1
    times = (START_MS + hour * HOUR_MS + STEP_MS * np.flatnonzero(kept) + 137 * node).tolist()
    names = ["load", "other"] if (hour + node) % 3 else ["load"]
    series = []
    for name in names:
        values = generator.integers(0, 9, len(times)).astype(float)
        values[generator.random(len(times)) < 0.1] = np.nan
        series.append(SampledSeries(name, {"ip": f"10.0.0.{node}"}, values.tobytes()))
    return Samples(times, series)


class StoredFiles:
    """Columns in two tiles per hour, as of a session with many nodes."""

    build = "1"

    def __init__(self, directory: Path) -> None:
        writer, generator = VolumeWriter(directory, "000001"), np.random.default_rng(7)
        for hour in range(HOURS):
            objects = [(str(node) * 56, node_samples(generator, hour, node)) for node in range(NODES)]
            writer.add(make_tile(TileId(hour, 0, 0), objects[:2]))
            writer.add(make_tile(TileId(hour, 0, 1), objects[2:]))
        self._paths = writer.finish([])
        self.files = {name: path.stat().st_size for name, path in self._paths.items()}
        self.read_bytes = 0

    async def open(self, ref: SessionRef) -> "StoredFiles":
        return self

    async def read(self, name: str, start: int, end: int) -> bytes:
        self.read_bytes += end - start
        return self._paths[name].read_bytes()[start:end]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredFiles:
    return StoredFiles(tmp_path_factory.mktemp("columns"))


def tiles(reader: ColumnReader, steps: StepSamples | None) -> list[SampleTile]:
    async def read() -> list[SampleTile]:
        columns = await reader.open(REF)
        assert columns
        return await reader.tiles(columns, (0, START_MS + 24 * HOUR_MS), ["load", "other"], steps)

    return asyncio.run(read())


def rows(query: str, times: Times, found: list[SampleTile]) -> list[tuple[object, list[float]]]:
    value = evaluate(query, times, SampleQuerier(REF, found, int(times[-1]))).value
    assert isinstance(value, Vector)
    values = np.where(value.present, value.values, -1.0).tolist()
    return sorted(zip(map(tuple, value.labels), values, strict=True))


@pytest.mark.parametrize("query", ["load", "sum(load) by (ip)", "timestamp(load)", "load + on (ip) other"])
@pytest.mark.parametrize("step_ms", [120_000, 300_000, 1_000_000])
def test_result_is_the_same_as_with_all_samples(stored: StoredFiles, query: str, step_ms: int) -> None:
    times = grid(START_MS + 100_000, START_MS + (HOURS - 1) * HOUR_MS + 200_000, step_ms)
    thinned = tiles(ColumnReader(stored), StepSamples(times, metrics_at_steps(query)))
    whole = tiles(ColumnReader(stored), None)
    assert rows(query, times, thinned) == rows(query, times, whole)
    assert loaded(thinned) < loaded(whole)


def loaded(found: list[SampleTile]) -> int:
    return sum(metric.values.size for tile in found for metric in tile.metrics.values())


def test_short_steps_keep_all_samples(stored: StoredFiles) -> None:
    times = grid(START_MS, START_MS + HOURS * HOUR_MS, STEP_MS)
    found = tiles(ColumnReader(stored), StepSamples(times, frozenset(["load"])))
    assert loaded(found) == loaded(tiles(ColumnReader(stored), None))


def test_second_query_with_the_same_steps_reads_nothing(stored: StoredFiles) -> None:
    reader, steps = ColumnReader(stored), StepSamples(grid(START_MS, START_MS + 4 * HOUR_MS, 600_000), frozenset())
    first = tiles(reader, steps)
    before = stored.read_bytes
    assert loaded(tiles(reader, steps)) == loaded(first)
    assert stored.read_bytes == before


def hour_tile(hour: int, **values: list[float]) -> SampleTile:
    clock = [START_MS + hour * HOUR_MS + STEP_MS * number for number in range(40)]
    series = [SampledSeries("up", {"s": name}, np.resize(each, 40).tobytes()) for name, each in values.items()]
    return make_tile(TileId(hour, 0, 0), [("n", Samples(clock, series))])


def test_hours_with_the_same_series_become_one_tile() -> None:
    first, second = hour_tile(0, a=[1.0]), hour_tile(1, a=[2.0])
    metric, following = first.metrics["up"], second.metrics["up"]
    following.labels, following.clock = metric.labels, metric.clock
    ((clocks, joined),) = connected([(first.clocks, metric), (second.clocks, following)])
    assert clocks.times.shape == joined.values.shape == (1, 80)
    assert connected([(second.clocks, following), (first.clocks, metric)])[0][1].values.shape == (1, 40)


def test_tile_without_a_step_is_kept_whole() -> None:
    clocks = hour_tile(0, a=[1.0]).clocks
    assert step_positions(clocks, np.array([START_MS - 1], dtype=np.int64)) is None
