"""Scrape a node's Prometheus metrics over loopback, and parse them line by line.

A node with many workers exposes megabytes per scrape, mostly the same series. So a series is keyed by its text in the
line, and its labels are not parsed here.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

import msgspec

from rayhistory.metrics.samples import MAX_SERIES

MAX_NAME_BYTES = 4 * 2**20
_MAX_LINE_BYTES = 64 * 2**10
_MAX_BODY_BYTES = 64 * 2**20
_MAX_HEADER_BYTES = 16 * 2**10
_CHUNK_BYTES = 64 * 2**10

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,15})\r\n", re.IGNORECASE)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class ScrapeError(Exception):
    """A scrape failed; the message is a short reason, also used as a metric label."""


class Scrape(msgspec.Struct):
    """The result of one scrape: the value of each series, keyed by its name and labels as written."""

    values: dict[bytes, float] = {}
    types: dict[str, str] = {}
    dropped: int = 0
    """Number of series over a limit, and of malformed lines."""
    names_size: int = 0

    def add_line(self, line: bytes, skip: tuple[bytes, ...]) -> None:
        if line.startswith(skip) or not line or line.isspace():
            return
        if line.startswith(b"#"):
            self._add_comment(line)
            return
        end = line.rfind(b"}") + 1
        series, rest = (line[:end], line[end:].split()) if end else (line.split(None, 1)[0], line.split()[1:])
        try:
            value = float(rest[0])
        except (IndexError, ValueError):
            self.dropped += 1
            return
        if series not in self.values:
            if len(self.values) >= MAX_SERIES or self.names_size + len(series) > MAX_NAME_BYTES:
                self.dropped += 1
                return
            self.names_size += len(series)
        self.values[series] = value

    def _add_comment(self, line: bytes) -> None:
        words = line.decode(errors="replace").split()
        if len(words) == 4 and words[1] == "TYPE" and len(self.types) < MAX_SERIES and len(line) < 1024:
            self.types[words[2]] = words[3]


async def scrape(port: int, skip: tuple[bytes, ...], timeout_s: float) -> Scrape:
    """Scrape a local port, without metrics whose names start with `skip`.

    Raise ScrapeError if the body is incomplete.
    """
    result = Scrape()
    rest = b""
    try:
        async with asyncio.timeout(timeout_s), contextlib.aclosing(_body("localhost", port)) as body:
            async for chunk in body:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    result.add_line(line, skip)
                if len(rest) > _MAX_LINE_BYTES:
                    raise ScrapeError("line too long")
    except TimeoutError:
        raise ScrapeError("timeout") from None
    except OSError:
        raise ScrapeError("no connection") from None
    result.add_line(rest, skip)
    return result


async def _body(host: str, port: int) -> AsyncGenerator[bytes, None]:
    """Yield the body of an HTTP/1.0 request.

    Such a response ends with the connection, and is not compressed or chunked.
    """
    reader, writer = await asyncio.open_connection(host, port, limit=_MAX_HEADER_BYTES)
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n")
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise ScrapeError("not HTTP") from None
        status, length = _STATUS.match(head), _CONTENT_LENGTH.search(head)
        if status is None or status[1] != b"200":
            raise ScrapeError(f"status {status[1].decode()}" if status else "not HTTP")
        size = 0
        while chunk := await reader.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > _MAX_BODY_BYTES:
                raise ScrapeError("too large")
            yield chunk
        if length and size < int(length[1]):
            raise ScrapeError("truncated")
    finally:
        writer.close()


def parse_series(series: bytes) -> tuple[str, dict[str, str]] | None:
    """Parse a series into its name and labels; None if it is malformed."""
    try:
        text = series.decode()
    except UnicodeDecodeError:
        return None
    name, brace, rest = text.partition("{")
    name = name.rstrip()
    if not _NAME.fullmatch(name):
        return None
    labels: dict[str, str] = {}
    position, end = 0, len(rest) - 1
    while brace and position < end:
        match = _LABEL.match(rest, position, end)
        if match is None:
            return None
        labels[match[1]] = _ESCAPE.sub(_unescape, match[2])
        position = match.end()
    return name, labels


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
