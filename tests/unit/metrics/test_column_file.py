"""Volumes of columns: what is written is read, and damage is an error."""

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rayhistory.metrics.column_file import (
    Chunk,
    VolumeWriter,
    blocks_of,
    decode_directory,
    decode_labels,
    decode_values,
    encode_directory,
    volumes,
)
from rayhistory.metrics.sample_tiles import SampleTile, TileClocks, TileId, TileMetric, make_tile
from rayhistory.metrics.samples import MetricsDamaged
from support.stored_metrics import START_MS, samples


def tile(hour: int = 0) -> SampleTile:
    stored = [
        ("a", samples({("cpu", (("ip", "1"),)): [1.0, 2.0], ("mem", ()): [3.0, 4.0]}, START_MS + hour, dropped=3)),
        ("b", samples({("cpu", (("ip", "2"), ("<b>", "\u2028"))): [5.0]}, START_MS + hour)),
    ]
    return make_tile(TileId(hour, 0, 0), stored)


def written(directory: Path, *tiles: SampleTile) -> dict[str, bytes]:
    writer = VolumeWriter(directory, "000001")
    for each in tiles:
        writer.add(each)
    return {name: path.read_bytes() for name, path in writer.finish([("key", 7)]).items()}


def read(files: dict[str, bytes], clocks: TileClocks, chunk: Chunk, columns: tuple[int, int]) -> TileMetric:
    """Decode some samples of a chunk, from only the frames that have them."""
    labels, values = (files[f"000001-{kind}"] for kind in ("labels", "values"))
    width = clocks.times.shape[1]
    found = np.full((2, columns[1] - columns[0]), np.nan)
    blocks = [values[slice(*chunk.values[number])] for number in blocks_of(width, chunk, columns)]
    decode_values(width, chunk, columns, blocks, found)
    return TileMetric(*decode_labels(clocks, chunk, labels[slice(*chunk.labels)]), found)


def test_tiles_are_read_as_written(tmp_path: Path) -> None:
    files = written(tmp_path, tile(0), tile(1))
    assert sorted(files) == ["000001-directory", "000001-labels", "000001-values"]
    directory = decode_directory(files["000001-directory"])
    assert directory.objects == [("key", 7)]
    assert [each.dropped for each in directory.tiles] == [3, 3]
    for chunk, original in zip(directory.metrics["cpu"], (tile(0), tile(1)), strict=True):
        clocks = directory.clocks()[chunk.tile]
        assert clocks.times.tolist() == original.clocks.times.tolist()
        metric = read(files, clocks, chunk, (0, 2))
        assert list(metric.labels) == list(original.metrics["cpu"].labels)
        assert metric.clock.tolist() == [0, 1]
        np.testing.assert_equal(metric.values, original.metrics["cpu"].values)


def test_frames_of_a_metric_are_neighbours(tmp_path: Path) -> None:
    """One request reads all of them."""
    metrics = decode_directory(written(tmp_path, tile(0), tile(1))["000001-directory"]).metrics
    first, second = metrics["cpu"]
    assert (first.values[-1][1], first.labels[1]) == (second.values[0][0], second.labels[0])


def test_blocks_of_the_same_minutes_are_neighbours(tmp_path: Path) -> None:
    """A short chart of all nodes reads one range of bytes."""
    rows = np.ones((300, 80))
    tiles = [
        make_tile(
            TileId(0, 0, group), [(node, samples({("cpu", (("n", f"{n}"),)): list(row) for n, row in enumerate(rows)}))]
        )
        for group, node in enumerate("ab")
    ]
    one, other = decode_directory(written(tmp_path, *tiles)["000001-directory"]).metrics["cpu"]
    spans = [span for pair in zip(one.values, other.values, strict=True) for span in pair]
    assert len(spans) == 4
    assert all(before[1] == after[0] for before, after in pairwise(spans))


@pytest.mark.parametrize("width", [39, 40, 200, 241])
def test_any_range_of_samples_is_read_from_its_blocks(tmp_path: Path, width: int) -> None:
    rows = np.arange(2 * 4 * width, dtype=float).reshape(2, -1)  # one series per row, as long as four hours
    wide = make_tile(TileId(0, 0, 0), [("a", samples({("cpu", (("n", str(n)),)): rows[n].tolist() for n in (0, 1)}))])
    files = written(tmp_path, wide)
    directory = decode_directory(files["000001-directory"])
    (chunk,), (clocks,) = directory.metrics["cpu"], directory.clocks()
    for columns in ((0, 4 * width), (0, 1), (width - 1, width + 1), (2 * width, 4 * width), (3, 3)):
        np.testing.assert_equal(read(files, clocks, chunk, columns).values, rows[:, slice(*columns)])


def test_no_scratch_file_is_left(tmp_path: Path) -> None:
    written(tmp_path, tile())
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("data", [b"", b"\x28\xb5\x2f\xfd", bytes(100)])
def test_damaged_directory_is_an_error(data: bytes) -> None:
    with pytest.raises(MetricsDamaged):
        decode_directory(data)


def test_directory_with_a_chunk_of_no_tile_is_an_error(tmp_path: Path) -> None:
    directory = decode_directory(written(tmp_path, tile())["000001-directory"])
    directory.metrics["cpu"] = [Chunk(9, 1, (0, 1), ((0, 1),))]
    with pytest.raises(MetricsDamaged, match="tile that does not exist"):
        decode_directory(encode_directory(directory))


@pytest.mark.parametrize("rows", [1, 3, 10**9])
def test_other_number_of_rows_is_an_error(tmp_path: Path, rows: int) -> None:
    files = written(tmp_path, tile())
    directory = decode_directory(files["000001-directory"])
    chunk = msgspec.structs.replace(directory.metrics["cpu"][0], rows=rows)
    with pytest.raises(MetricsDamaged):
        read(files, directory.clocks()[0], chunk, (0, 2))


def test_volumes_are_found_by_their_directories() -> None:
    assert list(volumes(["000002-directory", "000001-values", "000001-directory", "x"])) == ["000001", "000002"]
