"""Archives of sessions, also from strangers."""

import zipfile
from pathlib import Path

import pytest

from rayhistory.bundle.session_zip import extract_zip, write_zip
from rayhistory.errors import UsageError


def test_extracted_files_equal_the_written_ones(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a" / "b").mkdir(parents=True)
    target.mkdir()
    (source / "a" / "b" / "c.json").write_bytes(b"1")
    (source / "a" / "d@1:2").write_bytes(b"2" * 100_000)
    assert write_zip(source, tmp_path / "run.zip") == 2
    extract_zip(tmp_path / "run.zip", target)
    assert (target / "a" / "b" / "c.json").read_bytes() == b"1"
    assert (target / "a" / "d@1:2").read_bytes() == b"2" * 100_000


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside", "a\\..\\outside", "a\\b"])
def test_file_with_an_unsafe_path_is_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        archive.writestr("inside", b"1")
        archive.writestr(name, b"2")
    with pytest.raises(UsageError, match="unsafe path"):
        extract_zip(tmp_path / "run.zip", target)
    assert not list(target.iterdir())


def test_damaged_missing_and_other_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_bytes(b"not a zip archive")
    with pytest.raises(UsageError, match=r"text\.zip is not a readable zip archive"):
        extract_zip(tmp_path / "text.zip", tmp_path)
    with pytest.raises(UsageError, match="cannot read"):
        extract_zip(tmp_path / "nothing.zip", tmp_path)


def test_archive_that_claims_more_than_the_disk_has_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        archive.writestr("large", b"1")
        archive.infolist()[0].file_size = 1 << 60
    with pytest.raises(UsageError, match="MiB and a reserve of 256 MiB, but only"):
        extract_zip(tmp_path / "run.zip", tmp_path)
