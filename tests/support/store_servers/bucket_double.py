"""An in-memory bucket with the common subset of S3, the GCS XML API and OSS.

Subclasses add the differences: authentication, conditional writes and header names.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape


class StoredObject(NamedTuple):
    data: bytes
    modified: float
    meta: dict[str, str]
    generation: int

    @property
    def etag(self) -> str:
        return f'"{md5(self.data, usedforsecurity=False).hexdigest()}"'


class ErrorReply(Exception):
    def __init__(self, status: int, code: str, message: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.headers = status, code, message or code, headers or {}


class Bucket(BaseHTTPRequestHandler):
    """Handles one request; the state is in the server."""

    protocol_version = "HTTP/1.1"
    meta_prefix: ClassVar[str]
    server: "Double"

    def check(self) -> None:
        """Raise an ErrorReply for a request without permission."""

    def check_write(self, existing: StoredObject | None) -> None:
        """Raise an ErrorReply if the condition of a write is false."""

    def extra_headers(self, stored: StoredObject) -> dict[str, str]:
        return {}

    def do_GET(self) -> None:
        self._handle()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.bucket, _, self.key = unquote(parts.path).lstrip("/").partition("/")
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append((self.command, self.path))
        try:
            self._check_request()
            with self.server.lock:
                self._dispatch(self.server.buckets[self.bucket])
        except ErrorReply as reply:
            text = f"<Error><Code>{reply.code}</Code><Message>{escape(reply.message)}</Message></Error>"
            self._reply(reply.status, text.encode(), reply.headers | {"content-type": "application/xml"})

    def _check_request(self) -> None:
        if self.server.faults:
            raise self.server.faults.pop(0)
        self.check()
        if self.bucket not in self.server.buckets:
            raise ErrorReply(404, "NoSuchBucket")

    def _dispatch(self, objects: dict[str, StoredObject]) -> None:
        uploads = self.server.uploads
        if not self.key:
            self._reply(200, self._listing(objects).encode(), {"content-type": "application/xml"})
        elif self.command == "POST" and "uploads" in self.query:
            name = f"upload-{len(uploads)}"
            uploads[name] = {}
            self._xml("InitiateMultipartUploadResult", UploadId=name, Bucket=self.bucket, Key=self.key)
        elif self.command == "POST" and "uploadId" in self.query:
            parts = uploads.pop(self.query["uploadId"])
            numbers = [int(e.text or 0) for e in ET.fromstring(self.body).iter() if e.tag.endswith("PartNumber")]  # noqa: S314
            self._store(objects, b"".join(parts[number] for number in numbers))
            self._xml("CompleteMultipartUploadResult", ETag=objects[self.key].etag, Bucket=self.bucket, Key=self.key)
        elif self.command == "PUT" and "uploadId" in self.query:
            uploads[self.query["uploadId"]][int(self.query["partNumber"])] = self.body
            self._reply(200, b"", {"etag": f'"{md5(self.body, usedforsecurity=False).hexdigest()}"'})
        elif self.command == "PUT":
            self.check_write(objects.get(self.key))
            self._store(objects, self.body)
            self._reply(200, b"", {"etag": objects[self.key].etag, **self.extra_headers(objects[self.key])})
        elif self.command == "DELETE":
            self._delete(objects)
        else:
            self._read(objects)

    def _store(self, objects: dict[str, StoredObject], data: bytes) -> None:
        meta = {k.lower(): v for k, v in self.headers.items() if k.lower().startswith(self.meta_prefix)}
        self.server.generation += 1
        objects[self.key] = StoredObject(data, time.time(), meta, self.server.generation)

    def _delete(self, objects: dict[str, StoredObject]) -> None:
        objects.pop(self.key, None)
        self._reply(204, b"", {})

    def _read(self, objects: dict[str, StoredObject]) -> None:
        stored = objects.get(self.key)
        if stored is None:
            raise ErrorReply(404, "NoSuchKey")
        headers = {
            "etag": stored.etag,
            "last-modified": formatdate(stored.modified, usegmt=True),
            **stored.meta,
            **self.extra_headers(stored),
        }
        if wanted := self.headers.get("range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(stored.data)) + 1, len(stored.data))
            if start >= len(stored.data):
                raise ErrorReply(416, "InvalidRange")
            headers["content-range"] = f"bytes {start}-{end - 1}/{len(stored.data)}"
            self._reply(206, stored.data[start:end], headers)
        else:
            self._reply(200, stored.data, headers)

    def _listing(self, objects: dict[str, StoredObject]) -> str:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        url = quote if self.query.get("encoding-type") == "url" else escape
        max_keys = int(self.query.get("max-keys") or 1000)
        entries: dict[str, str] = {}
        for key in sorted(objects, key=str.encode):
            rest = key.removeprefix(prefix)
            folder = prefix + rest.split(delimiter)[0] + delimiter if delimiter and delimiter in rest else ""
            if not key.startswith(prefix) or (folder or key) <= after:
                continue
            entries[folder or key] = self._listing_entry(url(folder or key), None if folder else objects[key])
            if len(entries) > max_keys:
                break
        shown = list(entries)[:max_keys]
        truncated = len(entries) > max_keys
        token = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if truncated else ""
        encoding = "<EncodingType>url</EncodingType>" if url is quote else ""
        return (
            f"<ListBucketResult><Name>{self.bucket}</Name><Prefix>{url(prefix)}</Prefix>{encoding}"
            f"<KeyCount>{len(shown)}</KeyCount><MaxKeys>{max_keys}</MaxKeys>{token}"
            f"<IsTruncated>{str(truncated).lower()}</IsTruncated>{''.join(entries[name] for name in shown)}"
            "</ListBucketResult>"
        )

    def _listing_entry(self, name: str, stored: StoredObject | None) -> str:
        if stored is None:
            return f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"
        when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
        return (
            f"<Contents><Key>{name}</Key><LastModified>{when}</LastModified><ETag>{escape(stored.etag)}</ETag>"
            f"<Size>{len(stored.data)}</Size><StorageClass>Standard</StorageClass></Contents>"
        )

    def _xml(self, root: str, **fields: str) -> None:
        inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
        self._reply(200, f"<{root}>{inner}</{root}>".encode(), {"content-type": "application/xml"})

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Double(ThreadingHTTPServer):
    """A server of buckets, whose API is that of its handler."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], buckets: tuple[str, ...] = ()) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.buckets: dict[str, dict[str, StoredObject]] = {name: {} for name in buckets}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[tuple[str, str]] = []
        self.faults: list[ErrorReply] = []
        """Error replies to the next requests."""
        self.generation = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(double: Double) -> Iterator[Double]:
    thread = threading.Thread(target=double.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        double.shutdown()
        double.server_close()
        thread.join()
