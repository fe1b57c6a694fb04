"""S3, GCS and Azure Blob through obstore: one implementation, configured by each backend.

obstore retries with backoff and jitter. Timeouts apply to the time without progress, not to a whole request, because a
large object may take long on a slow connection.
"""

import asyncio
import atexit
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, TypeVar

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from rayhistory.errors import (
    BucketNotFound,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from rayhistory.storage.bulk_delete import delete_one_by_one
from rayhistory.storage.cloud_errors import OBSTORE_ERRORS, translated
from rayhistory.storage.create_once import WRITER, create_once
from rayhistory.storage.object_keys import checked_key
from rayhistory.storage.response_errors import RangeBeyondEnd
from rayhistory.storage.store import PART_BYTES, Listing, ObjectInfo, normalize_etag

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig

T = TypeVar("T")
Client: TypeAlias = S3Store | GCSStore | AzureStore
CreateBucket: TypeAlias = Callable[[], Awaitable[None]]

STALL_TIMEOUT = timedelta(seconds=60)
"""Maximum time without progress. The response to an upload arrives only after a whole part."""

_PARTS_IN_FLIGHT = 2
_READ_BYTES = 2**20
_MAX_PARTS = 9_000  # S3 accepts 10,000; larger objects get larger parts
_MAX_REQUESTS = 16
_MAX_SMALL_REQUESTS = 64
"""Maximum number of small requests in flight. Listings and requests for a few kilobytes mostly wait for the store."""
_SMALL_BYTES = 256 << 10
_MAX_LARGE_UPLOADS = 2
_NEW_BUCKET_PAUSES_S = (0.1, 0.5, 2.0)
"""Pauses between attempts to write to a new bucket, because servers may report it as missing for some time."""


# obstore's threads release a response shortly after it was returned. If Python exits at that time, the process aborts
# (https://github.com/PyO3/pyo3-async-runtimes/issues/40): one in five short runs without this pause, none with it.
atexit.register(time.sleep, 0.1)


def client_options(*, allow_http: bool) -> "ClientConfig":
    return {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": STALL_TIMEOUT,
        "timeout": timedelta(days=1),  # obstore's default of 30 s would limit the whole object
        "pool_idle_timeout": timedelta(seconds=60),
        "user_agent": "rayhistory",
    }


def retry_config() -> "RetryConfig":
    """Return settings with which a request is retried for about ten seconds.

    Callers that can wait longer, such as the collector, call again.
    """
    return {
        "max_retries": 5,
        "retry_timeout": timedelta(seconds=120),
        "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=10), "base": 2.5},
    }


class CloudStore:
    """A bucket of S3, GCS or Azure Blob. Creates the bucket at the first write if `create_bucket` is given."""

    def __init__(self, client: Client, url: str, create_bucket: CreateBucket | None = None) -> None:
        self._client = client
        self._url = url
        self._create_bucket = create_bucket
        self._bucket_creation = asyncio.Lock()
        self._bucket_creations = 0
        self._requests = asyncio.Semaphore(_MAX_REQUESTS)
        self._small_requests = asyncio.Semaphore(_MAX_SMALL_REQUESTS)
        self._large_uploads = asyncio.Semaphore(_MAX_LARGE_UPLOADS)

    @property
    def url(self) -> str:
        return self._url

    async def put(self, key: str, data: bytes | Path) -> None:
        checked_key(key)
        size = await asyncio.to_thread(_file_size, data) if isinstance(data, Path) else len(data)
        if size <= PART_BYTES:
            await self._put(key, data, lambda: self._put_whole(key, data), small=size <= _SMALL_BYTES)
            return
        async with self._large_uploads:
            await self._put(key, data, lambda: self._put_in_parts(key, data, max(PART_BYTES, size // _MAX_PARTS + 1)))

    async def create(self, key: str, data: bytes) -> None:
        checked_key(key)

        async def create(signature: str) -> None:
            await self._with_bucket(lambda: self._create(key, data, signature))

        await create_once(key, create, lambda: self._writer_of(key))

    async def get(self, key: str) -> bytes:
        async def read() -> bytes:
            response = await obstore.get_async(self._client, key)
            return bytes(await response.bytes_async())

        return await self._call(key, "get", read)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if end <= start:
            await self.head(key)
            return b""

        async def read() -> bytes:
            return bytes(await obstore.get_range_async(self._client, key, start=start, end=end))

        try:
            return await self._call(key, "get", read, small=end - start <= _SMALL_BYTES)
        except RangeBeyondEnd:
            return b""

    async def head(self, key: str) -> ObjectInfo:
        return _info(await self._call(key, "head", lambda: obstore.head_async(self._client, key), small=True))

    async def delete(self, key: str) -> None:
        try:
            await self._call(key, "delete", lambda: obstore.delete_async(self._client, key), small=True)
        except ObjectNotFound:
            return

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Delete in bulk, or one by one if that fails.

        GCS and Azure report missing keys, and some servers have no bulk delete.
        """
        for key in keys:
            checked_key(key)
        try:
            await self._call(keys[0], "delete", lambda: obstore.delete_async(self._client, list(keys)))
        except StoreDenied:
            raise
        except StoreError:
            await delete_one_by_one(self, keys)

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """List all objects. The next page is fetched while the current one is processed."""
        pages = obstore.list(self._client, prefix.strip("/") or None, offset=start_after or None, chunk_size=1000)
        pending: ObjectInfo | None = None
        upcoming = asyncio.ensure_future(self._call(prefix, "list", pages.__anext__, small=True))
        try:
            while page := await upcoming:
                upcoming = asyncio.ensure_future(self._call(prefix, "list", pages.__anext__, small=True))
                for found in page:
                    info = _info(found)
                    if pending is not None and not _is_folder_marker(pending, info):
                        yield pending
                    pending = info if info.key > start_after else None
        except StopAsyncIteration:
            pass
        except ObjectNotFound:
            raise BucketNotFound(f"{self._url}: bucket not found") from None
        finally:
            upcoming.cancel()
        if pending is not None:
            yield pending

    async def list_folder(self, prefix: str) -> Listing:
        prefix = prefix.strip("/")
        try:
            found = await self._call(
                prefix, "list", lambda: obstore.list_with_delimiter_async(self._client, prefix or None), small=True
            )
        except ObjectNotFound:
            raise BucketNotFound(f"{self._url}: bucket not found") from None
        folders = [folder.rpartition("/")[2] for folder in found["common_prefixes"]]
        infos = [_info(meta) for meta in found["objects"]]
        return Listing(sorted(folders), sorted((info for info in infos if info.key != prefix), key=lambda i: i.key))

    async def close(self) -> None:
        pass

    async def _put_whole(self, key: str, data: bytes | Path) -> None:
        await obstore.put_async(self._client, key, data, use_multipart=False)

    async def _put_in_parts(self, key: str, data: bytes | Path, part: int) -> None:
        """Upload in parts, because obstore's own `put` of a file needs more memory."""
        writer = obstore.open_writer_async(self._client, key, buffer_size=part, max_concurrency=_PARTS_IN_FLIGHT)
        loop = asyncio.get_running_loop()
        # One thread instead of the loop's pool: each thread keeps its own memory arena.
        with ThreadPoolExecutor(1, "upload") as thread, _opened(data) as source:
            while block := await loop.run_in_executor(thread, source.read, _READ_BYTES):
                await writer.write(block)
        await writer.close()  # the object appears only now; an earlier failure leaves the previous one

    async def _put(
        self, key: str, data: bytes | Path, write: Callable[[], Awaitable[None]], *, small: bool = False
    ) -> None:
        async def written() -> None:
            try:
                await self._call(key, "put", write, small=small)
            except ObjectExists as error:  # 409: a concurrent write of the same key
                raise StoreUnavailable(f"{self._url}: {key} was written by several processes at once") from error
            except ObjectNotFound:
                if isinstance(data, Path) and not await asyncio.to_thread(data.exists):
                    raise
                raise BucketNotFound(f"{self._url}: bucket not found") from None

        await self._with_bucket(written)

    async def _create(self, key: str, data: bytes, signature: str) -> None:
        async def write() -> None:
            await obstore.put_async(
                self._client, key, data, mode="create", use_multipart=False, attributes={WRITER: signature}
            )

        try:
            await self._call(key, "create", write)
        except ObjectNotFound:
            raise BucketNotFound(f"{self._url}: bucket not found") from None

    async def _writer_of(self, key: str) -> str:
        async def read() -> str:
            response = await obstore.get_async(self._client, key, options={"head": True})
            return str(response.attributes.get(WRITER, ""))

        return await self._call(key, "head", read)

    async def _with_bucket(self, write: Callable[[], Awaitable[None]]) -> None:
        creations = self._bucket_creations
        try:
            await write()
        except BucketNotFound:
            if self._create_bucket is None:
                raise
            async with self._bucket_creation:
                if self._bucket_creations == creations:  # otherwise, another write has created it meanwhile
                    await self._create_bucket()
                    self._bucket_creations += 1
            for pause in _NEW_BUCKET_PAUSES_S:
                try:
                    return await write()
                except BucketNotFound:
                    await asyncio.sleep(pause)
            await write()

    async def _call(self, key: str, what: str, work: Callable[[], Awaitable[T]], *, small: bool = False) -> T:
        if what != "list":
            checked_key(key)
        async with self._small_requests if small else self._requests:
            try:
                return await work()
            except OBSTORE_ERRORS as error:
                raise translated(error, key, f"{self._url} ({what})") from None


def _opened(data: bytes | Path) -> BinaryIO:
    return io.BytesIO(data) if isinstance(data, bytes) else data.open("rb")


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise ObjectNotFound(f"file {path} not found") from None


def _info(meta: "ObjectMeta") -> ObjectInfo:
    tag = normalize_etag(meta["e_tag"])
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp(), tag)


def _is_folder_marker(info: ObjectInfo, following: ObjectInfo) -> bool:
    """Return whether an object is a folder marker.

    KubeRay writes empty objects `folder/`, which are listed as `folder`.
    """
    return info.size == 0 and following.key.startswith(info.key + "/")
