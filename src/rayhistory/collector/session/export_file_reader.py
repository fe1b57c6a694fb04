"""Read Ray's export files: submitted jobs, Train runs and datasets, if Ray is configured to export them.

New lines become records beside the dashboard responses. The position in a file is saved after its lines are in the
spool. After a crash, some lines may be read again; they get the same id.
"""

import asyncio
import base64
import hashlib
import heapq
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from isal.isal_zlib import crc32

from rayhistory.collector.session.ray_files import READ_BYTES, open_regular_file, scan_folder
from rayhistory.collector.spool.block import Block
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.spool import Spool, SpoolError
from rayhistory.collector.telemetry import Telemetry
from rayhistory.sessions.keys import DASHBOARD_RESPONSES

log = logging.getLogger(__name__)

EXPORT_FILE = re.compile(r"event_EXPORT_[A-Za-z0-9_.-]*\.log(\.\d+)?\Z|event_EXPORT_[A-Za-z0-9_.-]*\.\d+\.log\Z")
_FOLDER = "logs/export_events"
_INTERVAL_S = 2.0
_HEAD_BYTES = 256
_MAX_LINE_BYTES = 16 << 20
_MAX_POSITION_FILES = 8
_MAX_FILES = 10_000


class _Position(msgspec.Struct):
    name: str
    offset: int = 0
    head_size: int = 0
    head_crc: int = 0
    """CRC of the file's first bytes, because inodes are reused."""


class ExportFileReader:
    """Reads the export files in `directory`.

    `state` is the directory with the saved positions, one file per session.
    """

    def __init__(
        self, session: str, directory: Path, state: PrivateDirectory, spool: Spool, telemetry: Telemetry
    ) -> None:
        self._session = session
        self._directory = directory
        self._state = state
        self._state_name = f"{session}.json"
        self._spool = spool
        self._telemetry = telemetry
        self._positions: dict[str, _Position] | None = None

    async def run(self) -> None:
        while True:
            await self.read_new_lines()
            await asyncio.sleep(_INTERVAL_S)

    async def read_new_lines(self) -> None:
        while new := await asyncio.to_thread(self._read):
            lines = [line for _, _, records in new for line in records]
            if lines:
                try:
                    await self._spool.append({self._session: [Block(DASHBOARD_RESPONSES, len(lines), b"".join(lines))]})
                except SpoolError:
                    return  # retry later: the files stay
                self._telemetry.export_lines.inc(len(lines))
            await asyncio.to_thread(self._save_positions, [(key, position) for key, position, _ in new])

    def _read(self) -> list[tuple[str, _Position, list[bytes]]]:
        """Return key, new position and new records of each file that has grown."""
        if self._positions is None:
            self._positions = self._load_positions()
        new = []
        for name, status in _export_files(self._directory):
            key = f"{status.st_dev}:{status.st_ino}"  # stays the same when the file is rotated
            try:
                position, data = _read_from(self._directory, name, self._positions.get(key) or _Position(name))
            except OSError:
                continue  # Ray deletes the oldest files
            if data:
                new.append((key, position, list(self._records(name, data))))
        return new

    def _records(self, name: str, data: bytes) -> Iterator[bytes]:
        name = name_without_rotation(name)
        node = self._spool.node_of(self._session) or ""
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                fields = msgspec.json.decode(line.decode())
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                fields = None
            if isinstance(fields, dict):
                yield export_record(self._session, node, name, line, _format_time(fields.get("timestamp")))
            else:
                self._telemetry.quarantined.labels("export_line").inc()
                self._telemetry.quarantined_count += 1

    # Positions

    def _load_positions(self) -> dict[str, _Position]:
        try:
            return msgspec.json.decode(self._state.read(self._state_name), type=dict[str, _Position])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}  # read everything again: the ids of stored lines do not change

    def _save_positions(self, new: list[tuple[str, _Position]]) -> None:
        assert self._positions is not None  # noqa: S101 - `_read` has loaded them
        self._positions.update(new)
        existing = {f"{status.st_dev}:{status.st_ino}" for _, status in _export_files(self._directory)}
        self._positions = {key: position for key, position in self._positions.items() if key in existing}
        try:
            self._state.make()
            self._state.write(self._state_name, msgspec.json.encode(self._positions))
            for oldest in [name for name in self._state.names() if name.endswith(".json")][:-_MAX_POSITION_FILES]:
                self._state.unlink(oldest)
        except OSError as error:
            log.warning(
                "cannot save read positions of export files, events may be stored twice", extra={"reason": str(error)}
            )


def _export_files(directory: Path) -> list[tuple[str, os.stat_result]]:
    files = scan_folder(directory, _FOLDER, EXPORT_FILE)
    return heapq.nsmallest(_MAX_FILES, ((name, status) for name, status in files if stat.S_ISREG(status.st_mode)))


def _read_from(directory: Path, name: str, position: _Position) -> tuple[_Position, bytes]:
    """Read the next lines, and return them with the new position.

    Read from the start if the file was truncated or replaced.
    """
    with open_regular_file(directory, f"{_FOLDER}/{name}") as file:
        head = file.read(_HEAD_BYTES)
        is_same = crc32(head[: position.head_size]) == position.head_crc
        start = position.offset if is_same and position.offset <= os.fstat(file.fileno()).st_size else 0
        file.seek(start)
        data = _read_whole_lines(file)
    end = start + len(data)
    return _Position(name, end, len(head[:end]), crc32(head[:end])), data


def _read_whole_lines(file: BinaryIO) -> bytes:
    """Read whole lines, up to a limit. An unfinished line is left for later, unless it is too long."""
    data = file.read(READ_BYTES)
    while data and b"\n" not in data and len(data) < _MAX_LINE_BYTES:
        more = file.read(READ_BYTES)
        if not more:
            return b""
        data += more
    return data[: data.rfind(b"\n") + 1] or data


def name_without_rotation(name: str) -> str:
    """Return a file name without its rotation number, so that records do not depend on it."""
    return re.sub(r"\.log\.\d+\Z|\.\d+\.log\Z", ".log", name)


def export_record(session: str, node: str, name: str, line: bytes, timestamp: str) -> bytes:
    """Encode a line as an event of type EXPORT_RECORD. The same line always gets the same id."""
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


def _format_time(seconds: Any) -> str:
    """Return the time of the line, or the current time if it has none."""
    try:
        return f"{datetime.fromtimestamp(float(seconds), UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    except (TypeError, ValueError, OverflowError, OSError):
        return f"{datetime.fromtimestamp(time.time(), UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
