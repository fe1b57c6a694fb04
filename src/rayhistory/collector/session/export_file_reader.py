"""Ray's export files: what it writes about submitted jobs, Train runs and datasets when that is switched on.

They are read as they grow and kept as records beside the dashboard's answers. How far each was read is noted after
its lines are in the spool: a crash between the two reads some lines again, and the same line has the same id.
"""

import asyncio
import base64
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from isal.isal_zlib import crc32

from rayhistory.collector.block import Block
from rayhistory.collector.discovery import opened
from rayhistory.collector.metrics import Metrics
from rayhistory.collector.spool import Spool, SpoolError
from rayhistory.layout.keys import SNAPSHOTS

log = logging.getLogger(__name__)

EXPORT_FILE = re.compile(r"event_EXPORT_[A-Za-z0-9_.-]*\.log(\.\d+)?\Z|event_EXPORT_[A-Za-z0-9_.-]*\.\d+\.log\Z")
_EVERY = 2.0
_HEAD = 256
_READ = 1 << 20
_LONGEST_LINE = 16 << 20
_MOST_SESSIONS = 8


class _Place(msgspec.Struct):
    name: str
    offset: int = 0
    head_size: int = 0
    head_crc: int = 0
    """Of its first bytes: an inode is used again."""


class Exports:
    """`state` is the directory in which positions are kept."""

    def __init__(self, session: str, directory: Path, state: Path, spool: Spool, metrics: Metrics) -> None:
        self._session = session
        self._directory = directory
        self._state = state / f"{session}.json"
        self._spool = spool
        self._metrics = metrics
        self._places: dict[str, _Place] | None = None

    async def run(self) -> None:
        while True:
            await self.take()
            await asyncio.sleep(_EVERY)

    async def take(self) -> None:
        """Everything that has been written since the last time."""
        while found := await asyncio.to_thread(self._read):
            lines = [line for _, _, records in found for line in records]
            if lines:
                try:
                    await self._spool.append({self._session: [Block(SNAPSHOTS, len(lines), b"".join(lines))]})
                except SpoolError:
                    return  # the files are still there: later
                self._metrics.export_lines.inc(len(lines))
            await asyncio.to_thread(self._note, [(key, place) for key, place, _ in found])

    def _read(self) -> list[tuple[str, _Place, list[bytes]]]:
        """For each file that has grown: where its reading will be, and the records of its new lines."""
        if self._places is None:
            self._places = self._load()
        found = []
        for path, status in _files(self._directory):
            key = f"{status.st_dev}:{status.st_ino}"  # a file that is rotated keeps it
            try:
                place, data = _read_on(path, self._places.get(key) or _Place(path.name))
            except OSError:
                continue  # gone since: Ray deletes the oldest
            if data:
                found.append((key, place, list(self._records(path.name, data))))
        return found

    def _records(self, name: str, data: bytes) -> Iterator[bytes]:
        name = plain_name(name)
        node = self._spool.node_of(self._session) or ""
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                fields = msgspec.json.decode(line.decode())
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                fields = None
            if isinstance(fields, dict):
                yield export_record(self._session, node, name, line, _time(fields.get("timestamp")))
            else:
                self._metrics.set_aside.labels("export line").inc()
                self._metrics.bad += 1

    # Positions

    def _load(self) -> dict[str, _Place]:
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=dict[str, _Place])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}  # all is read again, and lines that are kept already are told by their ids

    def _note(self, news: list[tuple[str, _Place]]) -> None:
        assert self._places is not None  # noqa: S101 - `_read` has loaded them
        self._places.update(news)
        there = {f"{status.st_dev}:{status.st_ino}" for _, status in _files(self._directory)}
        self._places = {key: place for key, place in self._places.items() if key in there}
        try:
            self._state.parent.mkdir(exist_ok=True)
            half = self._state.with_suffix(".half")
            half.write_bytes(msgspec.json.encode(self._places))
            half.replace(self._state)
            for old in sorted(self._state.parent.glob("*.json"))[:-_MOST_SESSIONS]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("positions in export files could not be noted", extra={"reason": str(error)})


def _files(directory: Path) -> list[tuple[Path, os.stat_result]]:
    try:
        paths = [path for path in directory.iterdir() if EXPORT_FILE.match(path.name)]
    except OSError:
        return []
    found = []
    for path in sorted(paths):
        try:
            status = path.lstat()
        except OSError:
            continue
        if path.is_file() and not path.is_symlink():
            found.append((path, status))
    return found


def _read_on(path: Path, place: _Place) -> tuple[_Place, bytes]:
    """The next lines, and where they end. A file that was cut, or is another one, is read from its beginning."""
    with opened(path) as file:
        head = file.read(_HEAD)
        same = crc32(head[: place.head_size]) == place.head_crc
        start = place.offset if same and place.offset <= os.fstat(file.fileno()).st_size else 0
        file.seek(start)
        data = _whole_lines(file)
    end = start + len(data)
    return _Place(path.name, end, len(head[:end]), crc32(head[:end])), data


def _whole_lines(file: BinaryIO) -> bytes:
    """Up to a limit; a line without an end is left until it has one, or is too long to wait for."""
    data = file.read(_READ)
    while data and b"\n" not in data and len(data) < _LONGEST_LINE:
        more = file.read(_READ)
        if not more:
            return b""
        data += more
    return data[: data.rfind(b"\n") + 1] or data


def plain_name(name: str) -> str:
    """The name without its rotation, so that the same line has one name."""
    return re.sub(r"\.log\.\d+\Z|\.\d+\.log\Z", ".log", name)


def export_record(session: str, node: str, name: str, line: bytes, timestamp: str) -> bytes:
    """The event of our own as which a line is kept."""
    identity = hashlib.blake2b(name.encode() + b"\0" + line, digest_size=28).digest()
    return (
        msgspec.json.encode(
            {
                "eventId": base64.b64encode(identity).decode(),
                "eventType": "EXPORT_RECORD",
                "sourceType": "RAYHISTORY",
                "timestamp": timestamp,
                "severity": "INFO",
                "message": "",
                "sessionName": session,
                "nodeId": node,
                "exportRecord": {"file": name, "line": msgspec.Raw(msgspec.json.format(line, indent=-1))},
            }
        )
        + b"\n"
    )


def _time(seconds: Any) -> str:
    """The line's own time, where it has one."""
    try:
        return f"{datetime.fromtimestamp(float(seconds), UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    except (TypeError, ValueError, OverflowError, OSError):
        return f"{datetime.fromtimestamp(time.time(), UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
