"""Bytes of an event object to rows.

A block of lines is decoded at once on the fast path. If anything in it does not fit, its lines are taken one by one,
each is mended if it can be, and what cannot be read at all is counted. Nothing here raises on bad input.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec

from rayhistory.events import rows, wire
from rayhistory.events.rows import Rows
from rayhistory.events.times import parse_ns

_LINES = msgspec.json.Decoder(wire.Event, strict=False)
_ODD = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, AttributeError)
"""What the parts of an event that are kept as they came can raise when they are looked into."""
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


class EventDecoder:
    """Turns the contents of one object (`source`) into rows and counts what was wrong with it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.rows = Rows()
        self.events = 0
        self._gaps: Counter[tuple[str, str]] = Counter()
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    def feed(self, block: bytes) -> None:
        """Whole lines of JSON, or one JSON array of events."""
        if block[:64].lstrip()[:1] == b"[":
            self._feed_array(block)
            return
        try:
            events = _LINES.decode_lines(block)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            for line in block.split(b"\n"):
                if line.strip():
                    self._feed_one(line)
        else:
            for event in events:
                self._take(event)

    def set_aside(self, kind: str, detail: str = "", count: int = 1) -> None:
        self._gaps[kind, detail[:200]] += count

    def finish(self) -> Rows:
        """The rows, with one row per kind of gap and the times of the first and the last sign of life."""
        for (kind, detail), count in self._gaps.items():
            self.rows.add("gaps", (self.source, kind, detail, count))
        if self._first_ns is not None:
            self.rows.add("life_signs", (self.source, self._first_ns, self._last_ns))
        return self.rows

    def _feed_array(self, block: bytes) -> None:
        try:
            events = _ARRAY.decode(block)
        except (msgspec.DecodeError, RecursionError) as error:
            self.set_aside("unreadable array of events", str(error))
            return
        for event in events:
            self._feed_one(bytes(event))

    def _feed_one(self, line: bytes) -> None:
        try:
            event = wire.DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            mended = self._mend(line)
            if mended is None:
                return
            event = mended
        self._take(event)

    def _mend(self, line: bytes) -> wire.Event | None:
        try:
            document = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.set_aside("unreadable line")
            return None
        except RecursionError:
            self.set_aside("event nested too deeply")
            return None
        if not isinstance(document, dict):
            self.set_aside("line that is not an event")
            return None
        unknown: set[str] = set()
        event = wire.tolerant(document, unknown)
        for name in unknown:
            self.set_aside("unknown field", name)
        return event

    def _take(self, event: wire.Event) -> None:
        self.events += 1
        ns = parse_ns(event.timestamp)
        if ns is None:
            self.set_aside("event without a readable time")
        else:
            if self._first_ns is None or ns < self._first_ns:
                self._first_ns = ns
            if self._last_ns is None or ns > self._last_ns:
                self._last_ns = ns
        try:
            problem = rows.add_event(self.rows, event, ns or 0)
        except _ODD as error:
            problem = "event that cannot be read", f"{event.event_type}: {error!r}"
        if problem:
            self.set_aside(*problem)


def whole_lines(chunks: Iterator[bytes], block_size: int = 1 << 20) -> Iterator[bytes]:
    """Blocks of whole lines from pieces cut anywhere. A JSON array comes as one block, whatever its size."""
    pending = b""
    array: bool | None = None
    for chunk in chunks:
        pending += chunk
        if array is None and pending.strip():
            array = pending.lstrip()[:1] == b"["
        if array or len(pending) < block_size:
            continue
        cut = pending.rfind(b"\n") + 1
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending.strip():
        yield pending
