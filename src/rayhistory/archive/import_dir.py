"""A session directory of Ray that was found on a disk, as a session of the store.

Its logs become whole files, as KubeRay keeps them; Ray's event logs are among them. Lines of export files are kept as
a collector keeps them, and say what tasks, actors, nodes and jobs there were.
"""

import asyncio
import gzip
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rayhistory.collector.discovery import Raylet, raylet
from rayhistory.collector.exports import EXPORT_FILE, export_record, plain_name
from rayhistory.collector.leftovers import node_of
from rayhistory.collector.walk import Entry, walk
from rayhistory.errors import StoreError, UsageError
from rayhistory.keeping.objects import each
from rayhistory.keeping.records import IMPORTED, Origin, make_known
from rayhistory.keeping.transfer import Transfer
from rayhistory.layout import Layout, NodeSeal, SessionRef
from rayhistory.layout.keys import SNAPSHOTS
from rayhistory.layout.session import is_session_name, session_time
from rayhistory.storage import Store
from rayhistory.storage.local import LocalStore

_AT_ONCE = 4
_ZONES_MS = 15 * 3_600_000
_LONGEST_LINE = 16 << 20


class Imported(msgspec.Struct):
    """What was found and brought to the store."""

    node: str
    files: int = 0
    size: int = 0
    records: int = 0
    bad_lines: int = 0
    left: list[str] = []
    """Files whose names a store cannot hold."""


def checked_directory(text: str) -> Path:
    """A directory that is a session's, of a Ray that runs no more."""
    directory = Path(text).expanduser().resolve()
    if not directory.is_dir():
        raise UsageError(f"{text}: there is no such directory")
    if not is_session_name(directory.name):
        raise UsageError(f"{text}: not a session directory of Ray, whose names are like session_2026-11-15_19-18-08_…")
    if not (directory / "logs").is_dir():
        raise UsageError(f"{text}: not a session directory of Ray: it has no logs")
    if raylet(directory) is Raylet.ALIVE:
        raise UsageError(f"{text}: this Ray is running; bring it in when it has ended, or run a collector beside it")
    return directory


async def import_directory(
    directory: Path, store: Store, layout: Layout, ref: SessionRef, progress: Callable[[int, int], None]
) -> Imported:
    """Everything in order: what is in the store already is not sent again, and the session is seen at the end."""
    logs = (directory / "logs").resolve()
    walked = await asyncio.to_thread(walk, str(logs))
    entries = walked.entries if walked else []
    done = Imported(await asyncio.to_thread(node_of, directory))
    times = [entry.modified_ns // 10**6 for entry in entries]
    started_ms = _started_ms(directory, times)
    total = sum(entry.size for entry in entries)
    there = {info.key: info async for info in store.list_all(layout.logs_prefix(ref, done.node))}
    with tempfile.TemporaryDirectory(prefix="rayhistory-import-") as scratch:
        source = LocalStore(logs)
        transfer = Transfer(source, store, Path(scratch))

        async def bring(entry: Entry) -> None:
            key = layout.log_key(ref, done.node, entry.name)
            try:
                info = await source.head(entry.name)
            except StoreError:
                done.left.append(entry.name)
                return
            await transfer.copy(info, key, there.get(key))
            done.files += 1
            done.size += info.size
            progress(done.size, total)

        await each(entries, bring, _AT_ONCE)
        path = Path(scratch) / "records"
        done.records, done.bad_lines = await asyncio.to_thread(_write_records, logs, path, ref.session, done.node)
        if done.records:
            key = layout.events_key(ref, done.node, SNAPSHOTS, started_ms * 10**6, compressed=True)
            await store.put(key, path)
    origin = Origin(started_ms, max([started_ms, *times]), IMPORTED, done.node)
    seal = NodeSeal(done.node, origin.ended_ms, done.records + done.bad_lines, done.records, done.bad_lines)
    seal.left_behind = done.left[:100]
    await make_known(store, layout, ref, origin, [seal])
    return done


def _started_ms(directory: Path, times: list[int]) -> int:
    """The time in the name is that of some time zone; the oldest file, if it is not a copy's, tells it in UTC."""
    moment = session_time(directory.name)
    named = int(moment.timestamp() * 1000) if moment else 0
    oldest = min([*times, *(int(path.lstat().st_mtime * 1000) for path in directory.iterdir())], default=named)
    return oldest if not named or abs(oldest - named) < _ZONES_MS else named


def _write_records(logs: Path, path: Path, session: str, node: str) -> tuple[int, int]:
    """Lines of export files as records, and how many were none."""
    records = bad = 0
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as out:  # the same bytes each time
        for found in sorted(logs.joinpath("export_events").glob("*")):
            if not EXPORT_FILE.match(found.name) or found.is_symlink() or not found.is_file():
                continue
            for line, time in _lines(found):
                if time is None:
                    bad += 1
                    continue
                records += 1
                out.write(export_record(session, node, plain_name(found.name), line, time))
    return records, bad


def _lines(file: Path) -> Iterator[tuple[bytes, str | None]]:
    """Lines, each with its time: the second, and the place among those of that second. None for what is no line of an
    export."""
    last, number = None, 0
    with file.open("rb") as opened:
        while line := opened.readline(_LONGEST_LINE):
            if not line.strip():
                continue
            try:
                second = int(msgspec.json.decode(line, type=_Line).timestamp)
                place = number + 1 if second == last else 0
                time = _time(second, place)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError, OSError):
                yield line, None
                continue
            last, number = second, place
            yield line.strip(), time


class _Line(msgspec.Struct):
    timestamp: float


def _time(second: int, number: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{min(number, 999_999):06d}Z"
