"""Archives of Parquet files as Arrow tables."""

import io
import zipfile

import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.api.arrow_files import read_archive


def archive_of(*files: bytes, superseded: bytes | None = None) -> io.BytesIO:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number, data in enumerate(files):
            archive.writestr(f"{number}.parquet", data)
        if superseded is not None:
            archive.writestr("superseded.parquet", superseded)
    return packed


def parquet(numbers: list[int]) -> bytes:
    file = io.BytesIO()
    polars.DataFrame({"n": numbers, "text": [str(number) for number in numbers]}).write_parquet(file)
    return file.getvalue()


def test_rows_of_all_files_are_one_table() -> None:
    found = read_archive(archive_of(parquet([1, 2]), parquet([]), parquet([3])))
    assert found is not None
    assert found["n"].to_pylist() == [1, 2, 3]
    assert found.column_names == ["n", "text"]


@given(
    files=st.lists(st.integers(0, 140_000), min_size=1, max_size=3),
    dropped=st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 150_000) | st.integers(65_530, 65_540))),
)
@settings(max_examples=10, deadline=None)
def test_superseded_rows_are_left_out_in_any_batch_of_any_file(
    files: list[int], dropped: list[tuple[int, int]]
) -> None:
    rows = [range(number * 1_000_000, number * 1_000_000 + count) for number, count in enumerate(files)]
    listed = superseded_rows(dropped)
    found = read_archive(archive_of(*map(numbers, rows), superseded=listed))
    assert found is not None
    gone = {number * 1_000_000 + row for number, row in dropped}
    assert found["n"].to_pylist() == [each for part in rows for each in part if each not in gone]


def numbers(values: range) -> bytes:
    file = io.BytesIO()
    polars.DataFrame({"n": polars.int_range(values.start, values.stop, eager=True)}).write_parquet(file)
    return file.getvalue()


def superseded_rows(dropped: list[tuple[int, int]]) -> bytes:
    file = io.BytesIO()
    columns = {"file": [number for number, _ in dropped], "row": [row for _, row in dropped]}
    polars.DataFrame(columns, schema={"file": polars.Int32, "row": polars.Int64}).write_parquet(file)
    return file.getvalue()


@pytest.mark.parametrize(
    "damage", ["not an archive", "cut", "changed", "no files", "other list of superseded rows", "other columns"]
)
def test_damaged_archive_has_no_table(damage: str) -> None:
    whole = archive_of(parquet(list(range(1000)))).getvalue()
    damaged = {
        "not an archive": io.BytesIO(b"<html>"),
        "cut": io.BytesIO(whole[:-30]),
        "changed": io.BytesIO(whole[:100] + b"\xff" * 50 + whole[150:]),
        "no files": archive_of(),
        "other list of superseded rows": archive_of(parquet([1]), superseded=parquet([1])),
        "other columns": archive_of(parquet([1]), _other_columns()),
    }
    assert read_archive(damaged[damage]) is None


def _other_columns() -> bytes:
    file = io.BytesIO()
    polars.DataFrame({"m": ["x"]}).write_parquet(file)
    return file.getvalue()
