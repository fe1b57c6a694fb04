"""Following log files as they grow, are rotated, cut, copied, moved and removed.

A file is known by its inode and, because inodes are used again, by its first and last bytes as far as they were
shipped. All bytes are read once; nothing is held between rounds but what is needed to know a file again.
"""

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from isal.isal_zlib import crc32

from rayhistory.collector.walk import MOST_FILES, Entry, Walked, open_inside, walk
from rayhistory.layout.packs import GONE, LOG, PRESENT, Stream

log = logging.getLogger(__name__)

PIECE = 512 << 10
_HEAD = 256
_TAIL = 64
_LINE_END = 64 << 10  # how far from a piece's end a newline is looked for
_MOST_CUT = 8  # streams of one name that are kept after its file was cut
_MOST_GONE = 1000  # and after it was removed: that is how rotation ends, unless a name is made anew for ever
_MOST_COMPARED = 64  # files that vanish at once are many only when a directory does
_COMPARED_WHOLE = 64 << 20
_SHARE = 4 << 20
_DUMP_AGE = 60.0
_DUMP = re.compile(r"(?:.*/)?debug_state\w*\.txt\Z")
"""Written anew every few seconds: only its last state is of use, and it need not be the very last."""


class _MovedAway(Exception):
    """What may be a file's copy had another name when it was to be read: the next scan knows more."""


class File(msgspec.Struct):
    """A stream, and what was last seen of its file."""

    stream: Stream
    size: int = 0
    highest: int = 0
    """The largest size that was ever seen of it."""
    modified_ns: int = 0
    looked_at_ns: int = -1
    """Modification time up to which all of it has been shipped."""
    round: int = 0
    began: int = 0
    """The round in which it was first seen; 0 when the store had told of it."""
    shipped: float = float("-inf")
    other: bool = False
    """It was found to hold something else: the next scan sees what has become of it."""

    @property
    def is_dump(self) -> bool:
        return _DUMP.match(self.stream.name) is not None

    @property
    def waiting(self) -> int:
        return max(0, self.size - self.stream.size)


class Tailer:
    """Of one directory, which may become known later; not for two threads at once."""

    def __init__(self, root: Path | None, streams: dict[int, Stream] | None = None, first_id: int = 0) -> None:
        self.streams = streams if streams is not None else {}
        self.links: dict[str, int] = {}
        self.changed: set[int] = set()
        """Streams whose records differ from what was last asked for."""
        self.forgotten: set[int] = set()
        self.folders: list[str] = []
        self.root = root
        self.lost = 0
        """Bytes that were seen, and removed or cut before they were read; or of more versions than are kept."""
        self.beyond = 0
        """Files that are not followed, because there are too many."""
        self.surprised = False
        """A file was found cut while it was read: there is something to find for a scan."""
        self.next_id = max([first_id, *(number + 1 for number in self.streams)])
        self._round = 0
        self._settled = 0
        """The round up to which what was found has been dealt with."""
        self._number = 0
        self._files = {number: File(stream) for number, stream in self.streams.items() if stream.kind == LOG}
        self._by_key = {(file.stream.device, file.stream.inode): file for file in self._files.values()}
        self._by_name = {file.stream.name: file for file in self._files.values() if file.stream.state == PRESENT}

    # Streams

    def begin(self, name: str, kind: int) -> Stream:
        stream = Stream(self.next_id, name, kind)
        self.next_id += 1
        self.streams[stream.id] = stream
        return stream

    def forget(self, stream: Stream) -> None:
        self.streams.pop(stream.id, None)
        self.changed.discard(stream.id)
        self.forgotten.add(stream.id)

    # What there is

    def scan(self, number: int) -> None:
        """Looks at the directory; `number` is that of the pack in which what is found will be told."""
        walked, beyond = self._walk(), self.beyond
        if walked is None:
            return
        self._number = number
        if not self.surprised:
            self._settled = self._round
        self.surprised = False
        replaced = self._look(walked)
        seen: set[int] = set()
        while news := {file.stream.id for file in (*replaced, *self._cut())} - seen:
            seen |= news
            walked = self._walk() or walked  # a copy is older than the cut, but may have been missed
            replaced += self._look(walked)
        self.folders = walked.folders
        for file in replaced:
            with suppress(_MovedAway):
                self._end(file)
        for file in self._cut():
            with suppress(_MovedAway):
                self._begin_anew(file)
        gone = [file for file in self._present() if file.round != self._round]
        for file in gone:
            if len(gone) > _MOST_COMPARED:
                self._is_gone(file)
                continue
            with suppress(_MovedAway):
                self._end(file, since=self._settled)
        if replaced or gone:
            self._keep_last(_MOST_GONE, {file.stream.name for file in (*replaced, *gone)})
        self._keep_to_most()
        self._name_links(walked)
        if self.beyond and not beyond:
            log.warning("there are more log files than are followed", extra={"files_beyond": self.beyond})

    def _walk(self) -> Walked | None:
        return walk(str(self.root), MOST_FILES, self._by_key) if self.root else None

    def _look(self, walked: Walked) -> list[File]:
        """Takes note of all files; gives those whose inodes others have now."""
        self._round += 1
        self.beyond = walked.beyond
        unknown = self._known(walked)
        seen = {entry.key for entry in walked.entries}
        return [file for entry in unknown if (file := self._meet(entry, seen))]

    def _cut(self) -> list[File]:
        return [
            file
            for file in self._present()
            if file.round == self._round and (file.other or file.size < file.stream.size)
        ]

    def _present(self) -> Iterator[File]:
        return (file for file in self._files.values() if file.stream.state == PRESENT)

    def _known(self, walked: Walked) -> list[Entry]:
        """Takes note of the files that are where they were; gives the entries that need a closer look."""
        unknown = []
        for entry in walked.entries:
            file = self._by_key.get(entry.key)
            if file is None or file.stream.name != entry.name or file.stream.state != PRESENT:
                unknown.append(entry)
                continue
            file.round, file.size, file.modified_ns = self._round, entry.size, entry.modified_ns
            file.highest = max(file.highest, file.size)
        return unknown

    def _meet(self, entry: Entry, seen: set[tuple[int, int]]) -> File | None:
        """A file that is new, or has another name; gives the one whose inode it has, if it is not that one."""
        file, replaced = self._by_key.get(entry.key), None
        if file and file.round == self._round:
            return None  # another name of a file that is where it was, or has been met: a hard link
        if file is None:
            file = self._by_name.get(entry.name)
            if file and (self._key(file) in seen or not self._same(entry, file.stream, whole=True)):
                file = None
        elif (same := self._same(entry, file.stream)) is None:
            file.round = self._round
            return None
        elif not same:
            file, replaced = None, file
        if file is None and len(self._by_name) >= MOST_FILES:
            self.beyond += 1
            return replaced
        self._is_at(file or self._new(entry), entry)
        return replaced

    def _key(self, file: File) -> tuple[int, int]:
        return file.stream.device, file.stream.inode

    def _new(self, entry: Entry) -> File:
        stream = self.begin(entry.name, LOG)
        stream.device, stream.inode = entry.key
        self._files[stream.id] = file = File(stream, began=self._round)
        return file

    def _is_at(self, file: File, entry: Entry) -> None:
        stream = file.stream
        if self._by_name.get(stream.name) is file:
            del self._by_name[stream.name]
        if self._by_key.get(self._key(file)) is file:
            del self._by_key[self._key(file)]
        stream.name, stream.state, (stream.device, stream.inode) = entry.name, PRESENT, entry.key
        file.round, file.size, file.modified_ns = self._round, entry.size, entry.modified_ns
        file.highest = max(file.highest, file.size)
        self._by_name[entry.name] = self._by_key[entry.key] = file
        self.changed.add(stream.id)

    def _is_gone(self, file: File) -> None:
        stream = file.stream
        if stream.state == GONE:
            return
        if file.waiting and not file.is_dump:
            self.lost += file.waiting
            log.warning(
                "a log file was removed or cut before it was shipped",
                extra={"file": stream.name, "bytes": file.waiting},
            )
        stream.state, stream.since = GONE, self._number
        self.changed.add(stream.id)
        if self._by_name.get(stream.name) is file:
            del self._by_name[stream.name]
        if not stream.size or file.is_dump:
            self._forget(file)

    def _forget(self, file: File) -> None:
        stream = file.stream
        self._files.pop(stream.id, None)
        self.forget(stream)
        if self._by_key.get(self._key(file)) is file:
            del self._by_key[self._key(file)]
        if self._by_name.get(stream.name) is file:
            del self._by_name[stream.name]

    def _begin_anew(self, file: File) -> File:
        """The file was cut, or another one has its inode: what it held ends here, and a new stream begins."""
        entry = Entry(file.stream.name, self._key(file), file.size, file.modified_ns)
        file.size = file.stream.size if file.other else file.highest  # what grew again has hidden how large it was
        self._end(file)
        self._keep_last(_MOST_CUT, {entry.name})
        fresh = self._new(entry)
        self._is_at(fresh, entry)
        return fresh

    def _end(self, file: File, *, since: int = -1) -> None:
        """What the stream was is over, unless it goes on in a copy: copied away and cut is a way of rotating too."""
        stream = file.stream
        copy = None if file.is_dump else self._copy_of(file, since)
        file.other = False
        if copy:
            file.size = stream.size
        self._is_gone(file)
        if copy and copy.stream.size == 0:
            target = Entry(copy.stream.name, self._key(copy), copy.size, copy.modified_ns)
            self._forget(copy)
            self._is_at(file, target)
        elif copy:
            self._forget(file)

    def _copy_of(self, file: File, since: int) -> File | None:
        """Files of many workers begin alike, and not all are copies. So one has the same name but for what rotation
        adds to it, and is either new since that round or holds exactly what was shipped of the other."""
        stream = file.stream
        folder, slash, base = stream.name.rpartition("/")
        stem = folder + slash + base.partition(".")[0]
        for other in self._present():
            if other is file or other.round != self._round or not 0 < stream.size <= other.size:
                continue
            name = other.stream.name
            added = name[len(stem) :] if name.startswith(stem) else "/"
            if "/" in added or added[:1].isalnum() or not (other.began > since or other.size == stream.size):
                continue
            entry = Entry(name, self._key(other), other.size, other.modified_ns)
            same = self._same(entry, stream, whole=True)
            if same:
                return other
            if same is None and not self._is_there(entry):
                self.surprised = True
                raise _MovedAway
        return None

    def _is_there(self, entry: Entry) -> bool:
        try:
            status = os.stat(f"{self.root}/{entry.name}", follow_symlinks=False)  # noqa: PTH116 - as in `walk`
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == entry.key

    def _keep_last(self, most: int, names: set[str]) -> None:
        """Of streams that are gone, so many of each of these names."""
        gone: dict[str, list[File]] = {}
        for file in self._files.values():
            if file.stream.state == GONE and file.stream.name in names:
                gone.setdefault(file.stream.name, []).append(file)
        for files in gone.values():
            for file in sorted(files, key=lambda each: each.stream.id)[:-most]:
                self.lost += file.stream.size
                self._forget(file)

    def _keep_to_most(self) -> None:
        """Files that are gone make room for others: those that were first to go."""
        excess = len(self._files) - MOST_FILES
        if excess > 0:
            gone = [file for file in self._files.values() if file.stream.state == GONE]
            for file in sorted(gone, key=lambda each: (each.stream.since, each.stream.id))[:excess]:
                self.lost += file.stream.size
                self._forget(file)

    def _name_links(self, walked: Walked) -> None:
        names = [(entry.name, entry) for entry in walked.entries if entry.name not in self._by_name]
        found = ((name, self._by_key.get(entry.key)) for name, entry in (*names, *walked.links))
        links = {name: file.stream.id for name, file in found if file}
        if links != self.links:
            self.links = links
            self.changed.update(links.values())

    # Is it the same file?

    def _same(self, entry: Entry, stream: Stream, *, whole: bool = False) -> bool | None:
        """Whether the file begins with all that was shipped of the stream; None when it has just moved away."""
        if entry.size < stream.size:
            return False
        if stream.size == 0:
            return not whole
        with self._opened(entry.name, entry.key) as descriptor:
            if descriptor is None:
                return None
            if not _continues(descriptor, stream):
                return False
            return not whole or stream.size > _COMPARED_WHOLE or _crc(descriptor, stream.size) == stream.crc

    @contextmanager
    def _opened(self, name: str, key: tuple[int, int]) -> Iterator[int | None]:
        """None when the name does not lead to that file any more: the next scan finds it."""
        if self.root is None:
            yield None
            return
        try:
            descriptor = open_inside(str(self.root), name)
        except OSError:
            yield None
            return
        try:
            status = os.fstat(descriptor)
            yield descriptor if (status.st_dev, status.st_ino) == key else None
        finally:
            os.close(descriptor)

    # What is new

    def due(self, *, final: bool) -> list[File]:
        """Files with something new: small ones before large ones, so that one cannot delay all."""
        now = time.monotonic()
        found = [
            file
            for file in self._present()
            if (file.waiting or file.modified_ns != file.looked_at_ns)
            and (final or not file.is_dump or now - file.shipped >= _DUMP_AGE)
        ]
        return sorted(found, key=lambda file: (file.waiting > _SHARE, file.shipped, file.waiting))

    def waiting(self) -> dict[str, int]:
        """Names of files that have grown since they were shipped, and by how much."""
        return {file.stream.name: file.waiting for file in self._present() if file.waiting}

    def read(self, file: File, most: int) -> Iterator[tuple[int, int, bytes]]:
        """New bytes of a file: stream, offset and data, in pieces."""
        with self._opened(file.stream.name, self._key(file)) as descriptor:
            if descriptor is None:
                return
            status = os.fstat(descriptor)
            stale = file.is_dump and file.stream.size and file.modified_ns != file.looked_at_ns
            file.size, file.modified_ns = status.st_size, status.st_mtime_ns
            if stale:
                file = self._begin_anew(file)
            elif file.size < file.stream.size or not _continues(descriptor, file.stream):
                file.other = self.surprised = True
                return
            yield from self._read_open(file, descriptor, most)

    def _read_open(self, file: File, descriptor: int, most: int) -> Iterator[tuple[int, int, bytes]]:
        stream = file.stream
        head = os.pread(descriptor, stream.head_size, 0)
        last = os.pread(descriptor, min(_TAIL, stream.size), max(0, stream.size - _TAIL))
        until = min(file.size, stream.size + most)
        while stream.size < until:
            data = os.pread(descriptor, min(PIECE, until - stream.size), stream.size)
            if not data:
                return
            if stream.size + len(data) < file.size:
                data = _cut(data)
            start = stream.size
            stream.size += len(data)
            stream.crc = crc32(data, stream.crc)
            if stream.head_size < _HEAD:
                head = (head + data)[:_HEAD]
                stream.head_size, stream.head_crc = len(head), crc32(head)
            last = (last + data[-_TAIL:])[-_TAIL:]
            stream.tail_crc = crc32(last)
            self.changed.add(stream.id)
            file.shipped = time.monotonic()
            yield stream.id, start, data
        if stream.size == file.size:
            file.looked_at_ns = file.modified_ns


def _cut(data: bytes) -> bytes:
    """Without the beginning of a line whose end is in the next piece, if that is short."""
    end = data.rfind(b"\n", max(0, len(data) - _LINE_END)) + 1
    return data[:end] if end else data


def _continues(descriptor: int, stream: Stream) -> bool:
    """Whether the first bytes, and those before the place up to which it was shipped, are as they were."""
    try:
        head = os.pread(descriptor, stream.head_size, 0)
        if len(head) != stream.head_size or crc32(head) != stream.head_crc:
            return False
        last = os.pread(descriptor, min(_TAIL, stream.size), max(0, stream.size - _TAIL))
    except OSError:
        return False
    return crc32(last) == stream.tail_crc


def _crc(descriptor: int, size: int) -> int:
    found = at = 0
    while at < size:
        data = os.pread(descriptor, min(PIECE, size - at), at)
        if not data:
            return -1
        found = crc32(data, found)
        at += len(data)
    return found
