"""A session's objects in a zip archive, as in a store."""

import shutil
import zipfile
from pathlib import Path, PurePosixPath

from rayhistory.errors import UsageError

_MAX_FILES = 1_000_000
_FREE_SPACE_BYTES = 256 << 20
"""Disk space to leave free."""


def write_zip(folder: Path, file: Path) -> int:
    """Write all files of a directory, and return their number. They are not compressed, because most already are."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for path in paths:
            archive.write(path, path.relative_to(folder).as_posix())
    return len(paths)


def extract_zip(file: Path, folder: Path) -> None:
    """Extract an untrusted archive: only files below the directory, and only if they fit on the disk."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            _check(file, members, folder)
            for member in members:
                _extract(archive, member, folder)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UsageError(f"{file} is not a readable zip archive: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from None


def _check(file: Path, members: list[zipfile.ZipInfo], folder: Path) -> None:
    if len(members) > _MAX_FILES:
        raise UsageError(f"{file} has {len(members):,} files: at most {_MAX_FILES:,} are supported")
    for member in members:
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts or "\\" in member.filename or "\0" in member.filename:
            raise UsageError(
                f"{file} is not safe to unpack: it has a file with an unsafe path, {member.filename[:200]!r}"
            )
    size, free = sum(member.file_size for member in members), shutil.disk_usage(folder).free
    if size + _FREE_SPACE_BYTES > free:
        raise UsageError(
            f"{file} needs {size >> 20:,} MiB and a reserve of {_FREE_SPACE_BYTES >> 20} MiB, "
            f"but only {free >> 20:,} MiB are free in {folder}"
        )


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """Extract one file. A link in an archive becomes a file with the text of the link."""
    path = folder.joinpath(*PurePosixPath(member.filename).parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, path.open("xb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
