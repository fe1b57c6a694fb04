"""What a Ray node says of itself to Prometheus: asked for over loopback, and read line by line.

A node of many workers says megabytes, most of which is the same again. So a series is known by its text as it stands
in the line, nothing of which is taken apart here.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

import msgspec

MOST_SERIES = 10_000
_MOST_NAMES = 4 * 2**20
_LONGEST_LINE = 64 * 2**10
_LARGEST_BODY = 64 * 2**20
_LARGEST_HEAD = 16 * 2**10
_CHUNK = 64 * 2**10

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,15})\r\n", re.IGNORECASE)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class ScrapeError(Exception):
    """The reason is a word or two."""


class Scrape(msgspec.Struct):
    """One look: the value of each series, whose key is its name and labels as they were written."""

    values: dict[bytes, float] = {}
    types: dict[str, str] = {}
    dropped: int = 0
    """Series beyond the bounds, and lines that are none."""
    weight: int = 0

    def read(self, line: bytes, skip: tuple[bytes, ...]) -> None:
        if line.startswith(skip) or not line or line.isspace():
            return
        if line.startswith(b"#"):
            self._read_comment(line)
            return
        end = line.rfind(b"}") + 1
        series, rest = (line[:end], line[end:].split()) if end else (line.split(None, 1)[0], line.split()[1:])
        try:
            value = float(rest[0])
        except (IndexError, ValueError):
            self.dropped += 1
            return
        if series not in self.values:
            if len(self.values) >= MOST_SERIES or self.weight + len(series) > _MOST_NAMES:
                self.dropped += 1
                return
            self.weight += len(series)
        self.values[series] = value

    def _read_comment(self, line: bytes) -> None:
        words = line.decode(errors="replace").split()
        if len(words) == 4 and words[1] == "TYPE" and len(self.types) < MOST_SERIES and len(line) < 1024:
            self.types[words[2]] = words[3]


async def scrape(port: int, skip: tuple[bytes, ...], seconds: float) -> Scrape:
    """`skip` are beginnings of names that are not kept. Raises ScrapeError; half an answer is none."""
    found = Scrape()
    rest = b""
    try:
        async with asyncio.timeout(seconds), contextlib.aclosing(_body("localhost", port)) as body:
            async for chunk in body:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    found.read(line, skip)
                if len(rest) > _LONGEST_LINE:
                    raise ScrapeError("line too long")
    except TimeoutError:
        raise ScrapeError("no answer in time") from None
    except OSError:
        raise ScrapeError("no connection") from None
    found.read(rest, skip)
    return found


async def _body(host: str, port: int) -> AsyncGenerator[bytes, None]:
    """As HTTP/1.0: the body ends with the connection, and comes neither compressed nor in chunks."""
    reader, writer = await asyncio.open_connection(host, port, limit=_LARGEST_HEAD)
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n")
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise ScrapeError("not HTTP") from None
        status, length = _STATUS.match(head), _LENGTH.search(head)
        if status is None or status[1] != b"200":
            raise ScrapeError(f"status {status[1].decode()}" if status else "not HTTP")
        size = 0
        while chunk := await reader.read(_CHUNK):
            size += len(chunk)
            if size > _LARGEST_BODY:
                raise ScrapeError("too large")
            yield chunk
        if length and size < int(length[1]):
            raise ScrapeError("cut short")
    finally:
        writer.close()


def take_apart(series: bytes) -> tuple[str, dict[str, str]] | None:
    """Name and labels of a series; None for what is not one."""
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
        labels[match[1]] = _ESCAPE.sub(_unescaped, match[2])
        position = match.end()
    return name, labels


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
