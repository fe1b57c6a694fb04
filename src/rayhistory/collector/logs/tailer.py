"""Read log files as they grow, and as they are rotated, truncated, copied, moved and removed.

Every byte is read once. Between scans, only the identity of each file is kept in memory.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rayhistory.collector.logs.tracked_file import (
    CHUNK_BYTES,
    StreamAppender,
    TrackedFile,
    contains_stream,
    continues_stream,
    is_unmoved,
    open_if_unmoved,
)
from rayhistory.collector.logs.walk import MAX_FILES, FileEntry, WalkResult, walk
from rayhistory.packs.pack_format import GONE, LOG, PRESENT, Stream

log = logging.getLogger(__name__)

_LINE_SEARCH_BYTES = 64 << 10  # how far from the end of a chunk a newline is searched
_MAX_TRUNCATED_VERSIONS = 8  # streams of one name that are kept after its file was truncated
_MAX_REMOVED_VERSIONS = 1000  # and after it was removed: rotation ends like that, but a name may be reused for ever
_MAX_MISSED_SCANS = 5
_MAX_COPY_SEARCHES = 64  # so many files vanish at once only when a whole directory does
_LARGE_FILE_BYTES = 4 << 20
_STATE_DUMP_INTERVAL_S = 60.0


class _CandidateMoved(Exception):
    """Raised if a possible copy of a file was renamed before it could be read. The next scan handles the copy."""


class Tailer:
    """Track the log files of one directory, which may be set later; not thread-safe."""

    def __init__(self, root: Path | None, streams: dict[int, Stream] | None = None, first_id: int = 0) -> None:
        self.streams = streams if streams is not None else {}
        self.links: dict[str, int] = {}
        self.changed: set[int] = set()
        """Streams whose records changed since the last pack."""
        self.forgotten: set[int] = set()
        self.folders: list[str] = []
        self.root = root
        self.lost_bytes = 0
        """Number of bytes that were removed or truncated before they were read, or dropped with an old file version."""
        self.excess = 0
        """Number of files over the limit."""
        self.needs_rescan = False
        """True if a file was truncated or replaced while it was read."""
        self.next_id = max([first_id, *(number + 1 for number in self.streams)])
        self._scan_number = 0
        self._handled_scan = 0
        """The last scan whose findings have been handled."""
        self._pack_number = 0
        self._files = {number: TrackedFile(stream) for number, stream in self.streams.items() if stream.kind == LOG}
        self._by_key = {file.key: file for file in self._files.values()}
        self._by_name = {file.stream.name: file for file in self._files.values() if file.stream.state == PRESENT}

    # Streams

    def add_stream(self, name: str, kind: int) -> Stream:
        stream = Stream(self.next_id, name, kind)
        self.next_id += 1
        self.streams[stream.id] = stream
        return stream

    def forget_stream(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)
        self.changed.discard(stream.id)
        self.forgotten.add(stream.id)

    # Scan

    def scan(self, pack_number: int) -> None:
        """Update all files from the directory; `pack_number` is the pack that will record the changes."""
        result, excess_before = self._walk(), self.excess
        if result is None:
            return
        self._pack_number = pack_number
        if not self.needs_rescan:
            self._handled_scan = self._scan_number
        self.needs_rescan = False
        replaced = self._update(result)
        seen: set[int] = set()
        while new := {file.stream.id for file in (*replaced, *self._truncated())} - seen:
            seen |= new
            result = self._walk() or result  # a copy is made before the file is truncated, but the walk may miss it
            replaced += self._update(result)
        self.folders = result.folders
        for file in replaced:
            with suppress(_CandidateMoved):
                self._end(file)
        for file in self._truncated():
            with suppress(_CandidateMoved):
                self._restart(file)
        gone = [file for file in self._present() if file.last_round != self._scan_number]
        for file in gone:
            if len(gone) > _MAX_COPY_SEARCHES:
                self._set_gone(file)
                continue
            with suppress(_CandidateMoved):
                self._end(file, new_since=self._handled_scan)
        if replaced or gone:
            self._limit_versions(_MAX_REMOVED_VERSIONS, {file.stream.name for file in (*replaced, *gone)})
        self._limit_files()
        self._update_links(result)
        if self.excess and not excess_before:
            log.warning(
                "too many log files, not uploading the rest", extra={"skipped": self.excess, "limit": MAX_FILES}
            )

    def _walk(self) -> WalkResult | None:
        return walk(str(self.root), MAX_FILES, self._by_key) if self.root else None

    def _update(self, result: WalkResult) -> list[TrackedFile]:
        """Update the status of all files; return files whose inodes now belong to other files."""
        self._scan_number += 1
        self.excess = result.excess
        unmatched = self._update_unmoved(result)
        seen = {entry.key for entry in result.entries}
        return [file for entry in unmatched if (file := self._match(entry, seen))]

    def _truncated(self) -> list[TrackedFile]:
        return [
            file
            for file in self._present()
            if file.last_round == self._scan_number and (file.replaced or file.size < file.stream.size)
        ]

    def _present(self) -> Iterator[TrackedFile]:
        return (file for file in self._files.values() if file.stream.state == PRESENT)

    def _update_unmoved(self, result: WalkResult) -> list[FileEntry]:
        """Update files with the same name and inode as before; return all other entries."""
        unmatched = []
        for entry in result.entries:
            file = self._by_key.get(entry.key)
            if file is None or file.stream.name != entry.name or file.stream.state != PRESENT:
                unmatched.append(entry)
                continue
            file.update(entry, self._scan_number)
        return unmatched

    def _match(self, entry: FileEntry, seen: set[tuple[int, int]]) -> TrackedFile | None:
        """Assign a directory entry to a new file or to a renamed one.

        Return the file that had this inode before, if it is a different file.
        """
        file, replaced = self._by_key.get(entry.key), None
        if file and file.last_round == self._scan_number:
            return None  # a hard link to a file that was already found
        if file is None:
            file = self._by_name.get(entry.name)
            if file and (file.key in seen or not contains_stream(self.root, entry, file.stream, compare_all=True)):
                file = None
        elif (same := contains_stream(self.root, entry, file.stream)) is None:
            file.last_round = self._scan_number
            return None
        elif not same or self._was_removed(file, entry):
            file, replaced = None, file
        if file is None and len(self._by_name) >= MAX_FILES:
            self.excess += 1
            return replaced
        self._set_present(file or self._add_file(entry), entry)
        return replaced

    def _was_removed(self, file: TrackedFile, entry: FileEntry) -> bool:
        """Return whether a file was removed. If so, an entry with its inode is a new file, and not the renamed one.

        One walk can miss a file that is being renamed, but several walks in a row cannot.
        """
        is_renamed = file.stream.name != entry.name
        return is_renamed and file.stream.state == GONE and 0 < file.last_round < self._scan_number - _MAX_MISSED_SCANS

    def _add_file(self, entry: FileEntry) -> TrackedFile:
        stream = self.add_stream(entry.name, LOG)
        stream.device, stream.inode = entry.key
        self._files[stream.id] = file = TrackedFile(stream, first_round=self._scan_number)
        return file

    def _set_present(self, file: TrackedFile, entry: FileEntry) -> None:
        stream = file.stream
        self._unmap(file)
        stream.name, stream.state, (stream.device, stream.inode) = entry.name, PRESENT, entry.key
        file.update(entry, self._scan_number)
        self._by_name[entry.name] = self._by_key[entry.key] = file
        self.changed.add(stream.id)

    def _set_gone(self, file: TrackedFile) -> None:
        stream = file.stream
        if stream.state == GONE:
            return
        if file.unshipped_bytes and not file.is_state_dump:
            self.lost_bytes += file.unshipped_bytes
            log.warning(
                "log file was removed or truncated before its upload, its last bytes are lost",
                extra={"file": stream.name, "bytes": file.unshipped_bytes},
            )
        stream.state, stream.since = GONE, self._pack_number
        self.changed.add(stream.id)
        if self._by_name.get(stream.name) is file:
            del self._by_name[stream.name]
        if not stream.size or file.is_state_dump:
            self._forget_file(file)

    def _forget_file(self, file: TrackedFile) -> None:
        self._files.pop(file.stream.id, None)
        self.forget_stream(file.stream)
        self._unmap(file)

    def _unmap(self, file: TrackedFile) -> None:
        if self._by_name.get(file.stream.name) is file:
            del self._by_name[file.stream.name]
        if self._by_key.get(file.key) is file:
            del self._by_key[file.key]

    def _restart(self, file: TrackedFile) -> TrackedFile:
        """End the stream of a file that was truncated, or whose inode was reused, and start a new one."""
        entry = file.entry()
        file.size = file.stream.size if file.replaced else file.max_size  # growth since then hides the old size
        self._end(file)
        self._limit_versions(_MAX_TRUNCATED_VERSIONS, {entry.name})
        new_file = self._add_file(entry)
        self._set_present(new_file, entry)
        return new_file

    def _end(self, file: TrackedFile, *, new_since: int = -1) -> None:
        """End a stream, or continue it in a copy of its file, because some programs rotate by copy and truncate."""
        stream = file.stream
        copy = None if file.is_state_dump else self._find_copy(file, new_since)
        file.replaced = False
        if copy:
            file.size = stream.size
        self._set_gone(file)
        if copy and copy.stream.size == 0:
            target = copy.entry()
            self._forget_file(copy)
            self._set_present(file, target)
        elif copy:
            self._forget_file(file)

    def _find_copy(self, file: TrackedFile, new_since: int) -> TrackedFile | None:
        """Find the copy that a rotation made of a file.

        Logs of many workers start alike, so equal content is not enough. A copy has the same name plus the suffix of a
        rotation. It was first seen after the scan `new_since`, or contains exactly the uploaded bytes.
        """
        stream = file.stream
        folder, slash, base = stream.name.rpartition("/")
        stem = folder + slash + base.partition(".")[0]
        for other in self._present():
            if other is file or other.last_round != self._scan_number or not 0 < stream.size <= other.size:
                continue
            name = other.stream.name
            added = name[len(stem) :] if name.startswith(stem) else "/"
            if "/" in added or added[:1].isalnum():
                continue
            if not (other.first_round > new_since or other.size == stream.size):
                continue
            entry = other.entry()
            same = contains_stream(self.root, entry, stream, compare_all=True)
            if same:
                return other
            if same is None and not is_unmoved(self.root, entry):
                self.needs_rescan = True
                raise _CandidateMoved
        return None

    def _limit_versions(self, limit: int, names: set[str]) -> None:
        """For each of these names, keep only the newest `limit` streams of removed files, and drop the others."""
        gone: dict[str, list[TrackedFile]] = {}
        for file in self._files.values():
            if file.stream.state == GONE and file.stream.name in names:
                gone.setdefault(file.stream.name, []).append(file)
        for files in gone.values():
            for file in sorted(files, key=lambda each: each.stream.id)[:-limit]:
                self.lost_bytes += file.stream.size
                self._forget_file(file)

    def _limit_files(self) -> None:
        """If there are more than MAX_FILES files, drop removed ones, starting with those that were removed first."""
        excess = len(self._files) - MAX_FILES
        if excess > 0:
            gone = [file for file in self._files.values() if file.stream.state == GONE]
            for file in sorted(gone, key=lambda each: (each.stream.since, each.stream.id))[:excess]:
                self.lost_bytes += file.stream.size
                self._forget_file(file)

    def _update_links(self, result: WalkResult) -> None:
        hard_links = [(entry.name, entry) for entry in result.entries if entry.name not in self._by_name]
        targets = ((name, self._by_key.get(entry.key)) for name, entry in (*hard_links, *result.links))
        links = {name: file.stream.id for name, file in targets if file}
        if links != self.links:
            self.links = links
            self.changed.update(links.values())

    # Read

    def due(self, *, final: bool) -> list[TrackedFile]:
        """List files with new content, small ones before large ones, so that no large file delays all others."""
        now = time.monotonic()
        due = [
            file
            for file in self._present()
            if (file.unshipped_bytes or file.modified_ns != file.shipped_modified_ns)
            and (final or not file.is_state_dump or now - file.shipped_at >= _STATE_DUMP_INTERVAL_S)
        ]
        return sorted(
            due, key=lambda file: (file.unshipped_bytes > _LARGE_FILE_BYTES, file.shipped_at, file.unshipped_bytes)
        )

    def unshipped(self) -> dict[str, int]:
        """Return the number of new bytes of each file that has grown since its last upload."""
        return {file.stream.name: file.unshipped_bytes for file in self._present() if file.unshipped_bytes}

    def read(self, file: TrackedFile, max_bytes: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield new bytes of a file in chunks, as stream, offset and data."""
        with open_if_unmoved(self.root, file.stream.name, file.key) as descriptor:
            if descriptor is None:
                return
            status = os.fstat(descriptor)
            is_rewritten = file.is_state_dump and file.stream.size and file.modified_ns != file.shipped_modified_ns
            file.size, file.modified_ns = status.st_size, status.st_mtime_ns
            if is_rewritten:
                file = self._restart(file)
            elif file.size < file.stream.size or not continues_stream(descriptor, file.stream):
                file.replaced = self.needs_rescan = True
                return
            yield from self._read_open(file, descriptor, max_bytes)

    def _read_open(self, file: TrackedFile, descriptor: int, max_bytes: int) -> Iterator[tuple[int, int, bytes]]:
        stream = file.stream
        appender = StreamAppender(stream, descriptor)
        end = min(file.size, stream.size + max_bytes)
        while stream.size < end:
            data = os.pread(descriptor, min(CHUNK_BYTES, end - stream.size), stream.size)
            if not data:
                return
            if stream.size + len(data) < file.size:
                data = _whole_lines(data)
            start = stream.size
            appender.append(data)
            self.changed.add(stream.id)
            file.shipped_at = time.monotonic()
            yield stream.id, start, data
        if stream.size == file.size:
            file.shipped_modified_ns = file.modified_ns


def _whole_lines(data: bytes) -> bytes:
    """Return the data without an incomplete last line, which the next chunk then contains. A long line is split."""
    end = data.rfind(b"\n", max(0, len(data) - _LINE_SEARCH_BYTES)) + 1
    return data[:end] if end else data
