"""Events on their way with the packs, as long as they are in no object of their own.

The segment of the spool that is being written is a stream like that of a log file: what is on disk of it, as it is
there. When it has become objects that the store confirmed, the stream is forgotten. A node that vanishes in between
has left it in the packs, where the fold finds it; what is in both is the same.
"""

from collections.abc import Iterator

from rayhistory.collector.block import Damage, members_between
from rayhistory.collector.spool import Spool
from rayhistory.collector.tail import PIECE, Tailer
from rayhistory.layout.packs import EVENTS, Stream

_SUFFIX = ".wal"


class EventStreams:
    """Of one session; not for two threads at once."""

    def __init__(self, spool: Spool, session: str) -> None:
        self.behind = False
        """There is more than was read, of what there was when reading began."""
        self._spool = spool
        self._session = session
        self._segment = self._until = 0

    def forget_stored(self, tailer: Tailer) -> None:
        """The pack before this one is in the store, and with it what was forgotten then."""
        stored, streams = self._spool.stored(self._session), _streams(tailer)
        self._spool.settle(self._session, stored - streams.keys())
        for segment in stored & streams.keys():
            tailer.forget(streams[segment])

    def read(self, tailer: Tailer, most: int) -> Iterator[tuple[int, int, bytes]]:
        """New bytes of the open segment: whole members, so that a reader can begin where it ended the last time."""
        segment = self._spool.open_segment(self._session)
        rotated = self.behind and segment is not None and segment.created_ns != self._segment
        if segment is None or not segment.size or rotated:  # the rest is in an object of its own, or soon will be
            self.behind = False
            return
        if not self.behind:
            self._segment, self._until = segment.created_ns, segment.size
        self.behind = False
        stream = _streams(tailer).get(segment.created_ns) or tailer.begin(f"{segment.created_ns}{_SUFFIX}", EVENTS)
        try:
            file = segment.path.open("rb")
        except FileNotFoundError:  # it is getting its node's name, or is in the store
            return
        with file:
            begin = end = stream.size
            for member in members_between(file, begin, self._until, Damage(), data=False):
                end = member.start + member.size
                if end - begin >= most:
                    break
            file.seek(begin)
            while data := file.read(min(PIECE, end - stream.size)):
                start = stream.size
                stream.size += len(data)
                tailer.changed.add(stream.id)
                yield stream.id, start, data
        self.behind = begin < stream.size < self._until


def _streams(tailer: Tailer) -> dict[int, Stream]:
    """By the segment that each was made of."""
    streams = [stream for stream in tailer.streams.values() if stream.kind == EVENTS]
    return {int(stream.name.removesuffix(_SUFFIX)): stream for stream in streams}
