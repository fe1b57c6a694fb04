"""Upload the open spool segment with the packs, so that a vanished node loses only seconds of events.

The open segment is a stream in the packs, like a log file. Once the segment's events are stored as objects, the stream
is dropped. If the node vanishes before that, the fold reads the events from the packs. Events that are in both places
are identical.
"""

from collections.abc import Iterator

from rayhistory.collector.logs.tailer import Tailer
from rayhistory.collector.logs.tracked_file import CHUNK_BYTES
from rayhistory.collector.spool.block import Damage, read_members_between
from rayhistory.collector.spool.spool import Spool
from rayhistory.packs.pack_format import EVENTS, Stream

_SUFFIX = ".wal"


class EventStreams:
    """The spool segments of one session, as streams of its packs. Not thread-safe."""

    def __init__(self, spool: Spool, session: str) -> None:
        self.has_more = False
        """True if the last read left bytes that existed when the flush started."""
        self._spool = spool
        self._session = session
        self._segment_ns = self._flush_end = 0

    def forget_stored(self, tailer: Tailer) -> None:
        """Drop streams whose events are stored as objects.

        Also let the ledger forget the segments whose streams the previous call dropped: since then, a pack without
        these streams was stored.
        """
        stored, streams = self._spool.uploaded_segments(self._session), _streams_by_segment(tailer)
        self._spool.forget_uploaded(self._session, stored - streams.keys())
        for segment in stored & streams.keys():
            tailer.forget_stream(streams[segment])

    def read(self, tailer: Tailer, max_bytes: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield new bytes of the open segment, as whole gzip members, so that a reader can continue after each."""
        segment = self._spool.open_segment(self._session)
        is_rotated = self.has_more and segment is not None and segment.created_ns != self._segment_ns
        if segment is None or not segment.size or is_rotated:  # a closed segment is uploaded as objects
            self.has_more = False
            return
        if not self.has_more:
            self._segment_ns, self._flush_end = segment.created_ns, segment.size
        self.has_more = False
        stream = _streams_by_segment(tailer).get(segment.created_ns)
        stream = stream or tailer.add_stream(f"{segment.created_ns}{_SUFFIX}", EVENTS)
        try:
            file = segment.open()
        except FileNotFoundError:  # renamed for its node id, or already in the store
            return
        with file:
            begin = end = stream.size
            for member in read_members_between(file, begin, self._flush_end, Damage(), with_data=False):
                end = member.start + member.size
                if end - begin >= max_bytes:
                    break
            file.seek(begin)
            while data := file.read(min(CHUNK_BYTES, end - stream.size)):
                start = stream.size
                stream.size += len(data)
                tailer.changed.add(stream.id)
                yield stream.id, start, data
        self.has_more = begin < stream.size < self._flush_end


def _streams_by_segment(tailer: Tailer) -> dict[int, Stream]:
    streams = [stream for stream in tailer.streams.values() if stream.kind == EVENTS]
    return {int(stream.name.removesuffix(_SUFFIX)): stream for stream in streams}
