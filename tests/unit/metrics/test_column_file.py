"""Volumes of columns: what is written is read, and damage is an error."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from rayhistory.metrics.column_file import (
    Chunk,
    VolumeWriter,
    decode_directory,
    decode_metric,
    encode_directory,
    volumes,
)
from rayhistory.metrics.sample_tiles import SampleTile, TileId, make_tile
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


def test_tiles_are_read_as_written(tmp_path: Path) -> None:
    files = written(tmp_path, tile(0), tile(1))
    assert sorted(files) == ["000001-directory", "000001-labels", "000001-values"]
    directory = decode_directory(files["000001-directory"])
    assert directory.objects == [("key", 7)]
    assert [each.dropped for each in directory.tiles] == [3, 3]
    for chunk, original in zip(directory.metrics["cpu"], (tile(0), tile(1)), strict=True):
        clocks = directory.clocks()[chunk.tile]
        assert clocks.times.tolist() == original.clocks.times.tolist()
        labels, values = (files[f"000001-{kind}"] for kind in ("labels", "values"))
        metric = decode_metric(clocks, chunk, labels[slice(*chunk.labels)], values[slice(*chunk.values)])
        assert list(metric.labels) == list(original.metrics["cpu"].labels)
        assert metric.clock.tolist() == [0, 1]
        np.testing.assert_equal(metric.values, original.metrics["cpu"].values)


def test_frames_of_a_metric_are_neighbours(tmp_path: Path) -> None:
    """One request reads all of them."""
    metrics = decode_directory(written(tmp_path, tile(0), tile(1))["000001-directory"]).metrics
    first, second = metrics["cpu"]
    assert (first.values[1], first.labels[1]) == (second.values[0], second.labels[0])


def test_no_scratch_file_is_left(tmp_path: Path) -> None:
    written(tmp_path, tile())
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("data", [b"", b"\x28\xb5\x2f\xfd", bytes(100)])
def test_damaged_directory_is_an_error(data: bytes) -> None:
    with pytest.raises(MetricsDamaged):
        decode_directory(data)


def test_directory_with_a_chunk_of_no_tile_is_an_error(tmp_path: Path) -> None:
    directory = decode_directory(written(tmp_path, tile())["000001-directory"])
    directory.metrics["cpu"] = [Chunk(9, 1, (0, 1), (0, 1))]
    with pytest.raises(MetricsDamaged, match="tile that does not exist"):
        decode_directory(encode_directory(directory))


@pytest.mark.parametrize("rows", [1, 3, 10**9])
def test_other_number_of_rows_is_an_error(tmp_path: Path, rows: int) -> None:
    files = written(tmp_path, tile())
    directory = decode_directory(files["000001-directory"])
    chunk = msgspec.structs.replace(directory.metrics["cpu"][0], rows=rows)
    labels, values = files["000001-labels"][slice(*chunk.labels)], files["000001-values"][slice(*chunk.values)]
    with pytest.raises(MetricsDamaged):
        decode_metric(directory.clocks()[0], chunk, labels, values)


def test_volumes_are_found_by_their_directories() -> None:
    assert list(volumes(["000002-directory", "000001-values", "000001-directory", "x"])) == ["000001", "000002"]
