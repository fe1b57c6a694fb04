"""A directory as an object store. Keys are paths, and objects are written atomically and synced to disk."""

import asyncio
import errno
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rayhistory.errors import (
    InvalidSetting,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from rayhistory.settings import Settings, default_data_dir
from rayhistory.storage.object_keys import checked_key
from rayhistory.storage.store import Listing, ObjectInfo

T = TypeVar("T")
_PARTIAL_PREFIX = ".half-written-"
_PAGE_SIZE = 1000


def open_local(settings: Settings, *, writable: bool = False) -> "LocalStore":
    directory = Path(settings.local_storage_dir)
    if writable:
        try:
            _make_directory(directory)
        except OSError as error:
            raise InvalidSetting(f"{_setting_of(settings)}: cannot create the directory ({error.strerror})") from None
        if not os.access(directory, os.W_OK | os.X_OK):
            raise InvalidSetting(f"{_setting_of(settings)}: not writable by this user")
    elif not directory.is_dir() and (directory.exists() or str(directory) != default_data_dir()):
        raise InvalidSetting(f"{_setting_of(settings)}: no such directory")
    return LocalStore(directory)


def _setting_of(settings: Settings) -> str:
    """Return the setting that names the directory, as the user gave it."""
    return f"--store={settings.store}" if settings.store else f"LOCAL_STORAGE_DIR={settings.local_storage_dir}"


def open_scratch(settings: Settings, *, writable: bool = False) -> "LocalStore":
    """Open KubeRay's `localtest` backend: a temporary directory shared by all programs of this user."""
    directory = Path(tempfile.gettempdir()) / f"rayhistory-localtest-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return LocalStore(directory)


class LocalStore:
    """A store in a directory. With `cache`, a directory that was deleted is an empty store and not an error."""

    def __init__(self, directory: Path, *, cache: bool = False) -> None:
        self._directory = directory
        self._is_cache = cache
        self._existed = directory.is_dir()
        self._mkdir_lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"file://{self._directory.absolute()}"

    async def put(self, key: str, data: bytes | Path) -> None:
        await self._run(lambda: self._write(key, data, os.replace))

    async def create(self, key: str, data: bytes) -> None:
        await self._run(lambda: self._write(key, data, _link))

    async def get(self, key: str) -> bytes:
        return await self._run(lambda: self._path(key).read_bytes(), key)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._run(lambda: self._read(key, start, end), key)

    async def head(self, key: str) -> ObjectInfo:
        return await self._run(lambda: self._info(key), key)

    async def delete(self, key: str) -> None:
        await self._run(lambda: self._path(key).unlink(missing_ok=True))

    async def delete_many(self, keys: Sequence[str]) -> None:
        def delete() -> None:
            for key in keys:
                self._path(key).unlink(missing_ok=True)

        await self._run(delete)

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        walk = self._walk(prefix.strip("/"))
        while page := await self._run(lambda: list(islice(walk, _PAGE_SIZE))):
            for info in page:
                if info.key > start_after:
                    yield info

    async def list_folder(self, prefix: str) -> Listing:
        return await self._run(lambda: self._folder(prefix.strip("/")))

    async def close(self) -> None:
        pass

    async def _run(self, work: Callable[[], T], key: str = "") -> T:
        return await asyncio.to_thread(self._with_store_errors, work, key or str(self._directory))

    def _with_store_errors(self, work: Callable[[], T], key: str) -> T:
        with _store_errors(key):
            try:
                return work()
            except (FileNotFoundError, ObjectNotFound):
                self._check_exists()
                raise

    def _check_exists(self) -> None:
        """Raise an error if the directory was deleted. A directory that never existed is an empty store."""
        if self._existed and not self._is_cache and not self._directory.is_dir():
            raise StoreUnavailable(f"{self._directory}: the directory was deleted")

    def _path(self, key: str) -> Path:
        """Return an object's path.

        Links are rejected, because a link in the store could expose any file of this machine.
        """
        parts = checked_key(key).split("/")
        path = self._directory.joinpath(*parts)
        if os.path.realpath(path) != str(Path(os.path.realpath(self._directory), *parts)):
            raise StoreError(f"invalid key {key!r}: the path contains a symbolic link")
        return path

    def _write(self, key: str, data: bytes | Path, publish: Callable[[Path, Path], None]) -> None:
        target = self._path(key)
        self._check_exists()
        with self._mkdir_lock:  # a concurrent write must not finish before its new parent directories are synced
            _make_directory(target.parent)
        partial = target.with_name(_PARTIAL_PREFIX + secrets.token_hex(8))
        try:
            with partial.open("wb") as file:
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            publish(partial, target)
            _sync_directory(target.parent)
            self._existed = True
        finally:
            partial.unlink(missing_ok=True)

    def _read(self, key: str, start: int, end: int) -> bytes:
        with self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(max(0, end - start))

    def _info(self, key: str) -> ObjectInfo:
        path = self._path(key)
        if not path.is_file():
            raise ObjectNotFound(f"object {key} not found")
        stat = path.stat()
        return ObjectInfo(key, stat.st_size, stat.st_mtime)

    def _folder(self, prefix: str) -> Listing:
        folders: list[str] = []
        objects: list[ObjectInfo] = []
        for entry in self._entries(prefix):
            if entry.is_dir():
                folders.append(entry.name)
            else:
                objects.extend(_entry_info(prefix, entry))
        return Listing(folders, objects)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        # Keys sort as whole strings: "a.b" before "a/b", so a folder sorts as "name/".
        for entry in sorted(
            self._entries(prefix), key=lambda entry: entry.name + "/" if entry.is_dir() else entry.name
        ):
            if entry.is_dir():
                yield from self._walk(f"{prefix}/{entry.name}" if prefix else entry.name)
            else:
                yield from _entry_info(prefix, entry)

    def _entries(self, prefix: str) -> list[os.DirEntry[str]]:
        """Return the entries of a directory, sorted by name.

        A missing directory is empty, like a prefix without objects.
        """
        path = self._path(prefix) if prefix else self._directory
        try:
            with os.scandir(path) as entries:
                found = [
                    entry for entry in entries if not entry.name.startswith(_PARTIAL_PREFIX) and not entry.is_symlink()
                ]
        except (FileNotFoundError, NotADirectoryError):
            self._check_exists()
            return []
        self._existed = True
        return sorted(found, key=lambda entry: entry.name)


def _entry_info(prefix: str, entry: os.DirEntry[str]) -> Iterator[ObjectInfo]:
    """Yield the object, or nothing if it was deleted while the directory was listed."""
    with suppress(FileNotFoundError):
        stat = entry.stat()
        yield ObjectInfo(f"{prefix}/{entry.name}" if prefix else entry.name, stat.st_size, stat.st_mtime)


def _link(partial: Path, target: Path) -> None:
    """Create the file atomically, and only if the name is free."""
    os.link(partial, target)


def _make_directory(path: Path) -> None:
    """Create a directory and sync it, so that it survives a power loss."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    with suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)


@contextmanager
def _store_errors(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise ObjectNotFound(f"object {key} not found") from None
    except FileExistsError:
        raise ObjectExists(f"object {key} already exists") from None
    except PermissionError as error:
        raise StoreDenied(f"{error.filename or key}: permission denied") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise StoreDenied(f"{error.filename or key}: read-only file system") from error
        if error.errno == errno.ENAMETOOLONG:
            raise StoreError(f"invalid key {key!r}: too long for the file system") from error
        raise StoreUnavailable(f"{key}: {error.strerror or error}") from error
