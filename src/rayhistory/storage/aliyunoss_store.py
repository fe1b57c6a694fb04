"""Aliyun OSS as a store. Its client blocks, so it runs in a few threads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from rayhistory.errors import ObjectNotFound, StoreDenied, StoreError, StoreThrottled, StoreUnavailable
from rayhistory.storage.create_once import WRITER, create_once
from rayhistory.storage.object_keys import checked_key
from rayhistory.storage.response_errors import RangeBeyondEnd, location, response_error
from rayhistory.storage.store import PART_BYTES, Listing, ObjectInfo, normalize_etag

T = TypeVar("T")

_PARTS_IN_FLIGHT = 2
_MAX_PARTS = 9_000
_THREADS = 8
_MAX_LARGE_UPLOADS = 2


class AliyunOssStore:
    def __init__(self, client: Any, sdk: Any, bucket: str) -> None:
        self._client = client
        self._sdk = sdk
        self._bucket = bucket
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="oss")
        self._large_uploads = asyncio.Semaphore(_MAX_LARGE_UPLOADS)

    @property
    def url(self) -> str:
        return f"oss://{self._bucket}"

    async def put(self, key: str, data: bytes | Path) -> None:
        checked_key(key)
        request = self._sdk.PutObjectRequest(bucket=self._bucket, key=key)
        if not isinstance(data, Path):
            request.body = data
            await self._run(key, lambda: self._client.put_object(request))
            return
        try:
            size = (await asyncio.to_thread(data.stat)).st_size
        except FileNotFoundError:
            raise ObjectNotFound(f"file {data} not found") from None
        if size <= PART_BYTES:
            await self.put(key, await asyncio.to_thread(data.read_bytes))
            return
        part = max(PART_BYTES, size // _MAX_PARTS + 1)
        uploader = self._client.uploader(part_size=part, parallel_num=_PARTS_IN_FLIGHT)
        async with self._large_uploads:
            await self._run(key, lambda: uploader.upload_file(request, str(data)))

    async def create(self, key: str, data: bytes) -> None:
        checked_key(key)

        async def create(signature: str) -> None:
            request = self._sdk.PutObjectRequest(
                bucket=self._bucket, key=key, body=data, forbid_overwrite=True, metadata={WRITER: signature}
            )
            await self._run(key, lambda: self._client.put_object(request))

        await create_once(key, create, lambda: self._writer_of(key))

    async def get(self, key: str) -> bytes:
        return await self._read(checked_key(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if end <= start:
            await self.head(key)
            return b""
        # Without "standard", OSS returns the whole object for a range that it cannot satisfy.
        try:
            return await self._read(
                checked_key(key), range_header=f"bytes={start}-{end - 1}", range_behavior="standard"
            )
        except RangeBeyondEnd:
            return b""

    async def head(self, key: str) -> ObjectInfo:
        response = await self._head(key)
        return ObjectInfo(
            key, response.content_length, response.last_modified.timestamp(), normalize_etag(response.etag)
        )

    async def delete(self, key: str) -> None:
        request = self._sdk.DeleteObjectRequest(bucket=self._bucket, key=checked_key(key))
        await self._run(key, lambda: self._client.delete_object(request))

    async def delete_many(self, keys: Sequence[str]) -> None:
        objects = [self._sdk.DeleteObject(key=checked_key(key)) for key in keys]
        request = self._sdk.DeleteMultipleObjectsRequest(bucket=self._bucket, objects=objects, quiet=True)
        await self._run(keys[0], lambda: self._client.delete_multiple_objects(request))

    async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for page in self._pages(prefix, start_after=start_after or None):
            for info in _infos(page):
                if info.key > start_after:
                    yield info

    async def list_folder(self, prefix: str) -> Listing:
        folders, objects = [], []
        async for page in self._pages(prefix, delimiter="/"):
            folders += [found.prefix.rstrip("/").rpartition("/")[2] for found in page.common_prefixes or []]
            objects += list(_infos(page))
        return Listing(sorted(folders), objects)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _read(self, key: str, **options: str) -> bytes:
        def read() -> bytes:
            request = self._sdk.GetObjectRequest(bucket=self._bucket, key=key, **options)
            with self._client.get_object(request).body as body:
                content: bytes = body.content
                return content

        return await self._run(key, read)

    async def _head(self, key: str) -> Any:
        request = self._sdk.HeadObjectRequest(bucket=self._bucket, key=checked_key(key))
        return await self._run(key, lambda: self._client.head_object(request))

    async def _writer_of(self, key: str) -> str:
        return str(((await self._head(key)).metadata or {}).get(WRITER, ""))

    async def _pages(self, prefix: str, **options: str | None) -> AsyncIterator[Any]:
        prefix = prefix.strip("/")
        token = None
        while True:
            request = self._sdk.ListObjectsV2Request(
                bucket=self._bucket,
                prefix=f"{prefix}/" if prefix else None,
                max_keys=1000,
                continuation_token=token,
                **options,
            )
            page = await self._run(prefix, lambda request=request: self._client.list_objects_v2(request))  # type: ignore[misc]
            yield page
            token = page.next_continuation_token
            if not page.is_truncated or not token:
                return

    async def _run(self, key: str, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work)
        except self._sdk.exceptions.BaseError as error:
            raise self._translated(_innermost(error), key) from None
        except OSError as error:  # errors of requests while it reads a body
            raise StoreUnavailable(f"{location(self.url, key)}: {_one_line(error)}") from None

    def _translated(self, error: Exception, key: str) -> Exception:
        exceptions = self._sdk.exceptions
        where = location(self.url, key)
        if isinstance(error, exceptions.CredentialsBaseError | exceptions.ParamNullOrEmptyError):
            return StoreDenied(f"{where}: no credentials available ({_one_line(error)})")
        if not isinstance(error, exceptions.ServiceError):
            return StoreUnavailable(f"{where}: {_one_line(error)}")
        status, code = error.status_code, error.code or ""
        text = f"{status} {code} {error.message or ''}".strip()
        if "QpsLimit" in code or "TrafficRateLimit" in code:
            return StoreThrottled(f"{where}: store is overloaded ({text})")
        if status == 409 and code != "FileAlreadyExists":  # such as a write at the same time, or an immutable object
            return StoreUnavailable(f"{where}: {text}")
        found = response_error(status, code, key=key, what=self.url, text=text)
        return found or StoreError(f"{where}: {text}")


def _infos(page: Any) -> list[ObjectInfo]:
    """Return the objects of a page without KubeRay's empty folder markers."""
    return [
        ObjectInfo(found.key, found.size, found.last_modified.timestamp(), normalize_etag(found.etag))
        for found in page.contents or []
        if not found.key.endswith("/")
    ]


def _innermost(error: Any) -> Exception:
    while hasattr(error, "unwrap") and isinstance(error.unwrap(), Exception):
        error = error.unwrap()
    found: Exception = error
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
