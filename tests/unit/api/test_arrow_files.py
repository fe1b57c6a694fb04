"""Archives of Parquet files as Arrow tables."""

import io
import zipfile

import polars
import pytest

from rayhistory.api.arrow_files import read_archive


def archive_of(*files: bytes) -> io.BytesIO:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number, data in enumerate(files):
            archive.writestr(f"{number}.parquet", data)
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


@pytest.mark.parametrize("damage", ["not an archive", "cut", "changed", "no files", "other columns"])
def test_damaged_archive_has_no_table(damage: str) -> None:
    whole = archive_of(parquet(list(range(1000)))).getvalue()
    damaged = {
        "not an archive": io.BytesIO(b"<html>"),
        "cut": io.BytesIO(whole[:-30]),
        "changed": io.BytesIO(whole[:100] + b"\xff" * 50 + whole[150:]),
        "no files": archive_of(),
        "other columns": archive_of(parquet([1]), _other_columns()),
    }
    assert read_archive(damaged[damage]) is None


def _other_columns() -> bytes:
    file = io.BytesIO()
    polars.DataFrame({"m": ["x"]}).write_parquet(file)
    return file.getvalue()
