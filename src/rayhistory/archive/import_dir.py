"""Import one of Ray's session directories into the store.

Logs, including Ray's event logs, are stored as whole files, as in KubeRay. Export files, which describe tasks, actors,
nodes and jobs, are stored as a collector stores them.
"""

import asyncio
import gzip
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rayhistory.archive.registration import IMPORTED, SessionOrigin, register_session
from rayhistory.archive.session_objects import for_each
from rayhistory.archive.transfer import Transfer
from rayhistory.collector.logs.walk import FileEntry, walk
from rayhistory.collector.session.export_file_reader import EXPORT_FILE, export_record, name_without_rotation
from rayhistory.collector.session.node_id import UNKNOWN_NODE_ID, find_node_id
from rayhistory.collector.session.ray_discovery import RayletState, raylet_state
from rayhistory.errors import StoreError, UsageError
from rayhistory.sessions import Layout, NodeSeal, SessionRef
from rayhistory.sessions.keys import DASHBOARD_RESPONSES
from rayhistory.sessions.ref import is_session_name, session_start_time
from rayhistory.storage import Store
from rayhistory.storage.local import LocalStore

_CONCURRENT_FILES = 4
_MAX_TIME_ZONE_OFFSET_MS = 15 * 3_600_000
_MAX_LINE_BYTES = 16 << 20


class ImportResult(msgspec.Struct):
    node: str
    files: int = 0
    size: int = 0
    records: int = 0
    bad_lines: int = 0
    skipped: list[str] = []
    """Files that were not imported, because their names are not valid keys."""


def check_directory(text: str) -> Path:
    """Return the directory. Raise UsageError unless it is a session directory and its Ray has stopped."""
    directory = Path(text).expanduser().resolve()
    if not directory.is_dir():
        raise UsageError(f"no such directory: {text}")
    if not is_session_name(directory.name):
        raise UsageError(
            f"{text} is not a session directory of Ray: its name must be like session_2026-11-15_19-18-08_…"
        )
    if not (directory / "logs").is_dir():
        raise UsageError(f"{text} is not a session directory of Ray: it has no logs directory")
    if raylet_state(directory) is not RayletState.GONE:
        raise UsageError(
            f"Ray is still running in {text}: import the directory when Ray has stopped, or run a collector"
        )
    return directory


async def import_directory(
    directory: Path, store: Store, layout: Layout, ref: SessionRef, progress: Callable[[int, int], None]
) -> ImportResult:
    """Store the logs and export files, then register the session. Files that the store already has are skipped."""
    logs = (directory / "logs").resolve()
    walked = await asyncio.to_thread(walk, str(logs))
    entries = walked.entries if walked else []
    node = await asyncio.to_thread(find_node_id, directory)
    result = ImportResult(node or UNKNOWN_NODE_ID)
    times = [entry.modified_ns // 10**6 for entry in entries]
    started_ms = _started_ms(directory, times)
    total = sum(entry.size for entry in entries)
    existing = {info.key: info async for info in store.list_all(layout.logs_prefix(ref, result.node))}
    with tempfile.TemporaryDirectory(prefix="rayhistory-import-") as scratch:
        source = LocalStore(logs)
        transfer = Transfer(source, store, Path(scratch))

        async def store_file(entry: FileEntry) -> None:
            key = layout.log_key(ref, result.node, entry.name)
            try:
                info = await source.head(entry.name)
            except StoreError:
                result.skipped.append(entry.name)
                return
            await transfer.copy(info, key, existing.get(key))
            result.files += 1
            result.size += info.size
            progress(result.size, total)

        await for_each(entries, store_file, _CONCURRENT_FILES)
        path = Path(scratch) / "records"
        result.records, result.bad_lines = await asyncio.to_thread(_write_records, logs, path, ref.session, result.node)
        if result.records:
            key = layout.events_key(ref, result.node, DASHBOARD_RESPONSES, started_ms * 10**6, compressed=True)
            await store.put(key, path)
    origin = SessionOrigin(started_ms, max([started_ms, *times]), IMPORTED, result.node)
    seal = NodeSeal(result.node, origin.ended_ms, result.records + result.bad_lines, result.records, result.bad_lines)
    seal.left_behind = result.skipped[:100]
    await register_session(store, layout, ref, origin, [seal])
    return result


def _started_ms(directory: Path, times: list[int]) -> int:
    """Return the start of the session: the time of the oldest file, unless it contradicts the directory's name.

    The name has the start in an unknown time zone. A copied directory may have only newer files.
    """
    parsed = session_start_time(directory.name)
    named = int(parsed.timestamp() * 1000) if parsed else 0
    oldest = min([*times, *(int(path.lstat().st_mtime * 1000) for path in directory.iterdir())], default=named)
    return oldest if not named or abs(oldest - named) < _MAX_TIME_ZONE_OFFSET_MS else named


def _write_records(logs: Path, path: Path, session: str, node: str) -> tuple[int, int]:
    """Write the lines of export files as records. Return the numbers of records and of unreadable lines."""
    records = bad = 0
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as out:  # reproducible bytes
        for found in sorted(logs.joinpath("export_events").glob("*")):
            if not EXPORT_FILE.match(found.name) or found.is_symlink() or not found.is_file():
                continue
            for line, time in _lines(found):
                if time is None:
                    bad += 1
                    continue
                records += 1
                out.write(export_record(session, node, name_without_rotation(found.name), line, time))
    return records, bad


def _lines(file: Path) -> Iterator[tuple[bytes, str | None]]:
    """Yield each line with a unique, ascending timestamp, or with None if it is not an export record.

    Export records have whole seconds. Microseconds number the lines within a second.
    """
    last, number = None, 0
    with file.open("rb") as stream:
        while line := stream.readline(_MAX_LINE_BYTES):
            if not line.strip():
                continue
            try:
                second = int(msgspec.json.decode(line, type=_ExportLine).timestamp)
                next_number = number + 1 if second == last else 0
                time = _timestamp(second, next_number)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError, OSError):
                yield line, None
                continue
            last, number = second, next_number
            yield line.strip(), time


class _ExportLine(msgspec.Struct):
    timestamp: float


def _timestamp(second: int, number: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{min(number, 999_999):06d}Z"
