"""Bytes of an event object to rows.

A block of lines is decoded at once on the fast path. If anything in it does not fit, its lines are taken one by one,
each is mended if it can be, and what cannot be read at all is counted. Nothing here raises on bad input.
"""

from collections import Counter, defaultdict

import msgspec

from rayhistory.events import rows, wire
from rayhistory.events.columns import Problem, Rows
from rayhistory.events.tables import REPEATED
from rayhistory.events.times import parse_all

_LINES = msgspec.json.Decoder(wire.Event, strict=False)
_ODD = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, AttributeError)
"""What the parts of an event that are kept as they came can raise when they are looked into."""
_MOST_IDS = 200_000
_MOST_DETAILS = 200
"""Of one kind of gap in one object; what else there is of the kind is counted, and not told one by one."""
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


class EventDecoder:
    """Turns the contents of one object (`source`) into rows and counts what was wrong with it."""

    def __init__(self, source: str, rows: Rows) -> None:
        self.source = source
        self.rows = rows
        self._gaps: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._ids: set[str] = set()
        self._first_ns: int | None = None
        self._last_ns: int | None = None

    def feed(self, block: bytes) -> int:
        """Takes whole lines of JSON; returns how many events there were."""
        try:
            events = _LINES.decode_lines(block)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events = [event for line in block.split(b"\n") if line.strip() and (event := self._read(line))]
        return self._take(events)

    def feed_array(self, block: bytes) -> int:
        """The same for one JSON array of events."""
        try:
            events = _ARRAY.decode(block)
        except (msgspec.DecodeError, RecursionError) as error:
            self.set_aside("unreadable array of events", str(error))
            return 0
        return self._take([event for raw in events if (event := self._read(bytes(raw)))])

    def set_aside(self, kind: str, detail: str = "", count: int = 1) -> None:
        details = self._gaps[kind]
        detail = detail[:200]
        details[detail if detail in details or len(details) < _MOST_DETAILS else ""] += count

    def finish(self) -> None:
        """Adds one row per gap, and the times of the first and the last sign of life."""
        self._set_aside_all(self.rows.odd())
        for kind, details in self._gaps.items():
            for detail, count in details.items():
                self.rows.add("gaps", (self.source, kind, detail, count))
        if self._first_ns is not None:
            self.rows.add("life_signs", (self.source, self._first_ns, self._last_ns))

    def _read(self, line: bytes) -> wire.Event | None:
        try:
            return wire.DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._mend(line)

    def _mend(self, line: bytes) -> wire.Event | None:
        unknown: set[str] = set()
        try:
            document = msgspec.json.decode(line)
            if isinstance(document, dict):
                event = wire.tolerant(document, unknown)
                self._set_aside_all([("unknown field", name) for name in unknown])
                return event
            self.set_aside("line that is not an event")
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.set_aside("unreadable line")
        except RecursionError:
            self.set_aside("event nested too deeply")
        except _ODD as error:
            self.set_aside("event that cannot be read", repr(error))
        return None

    def _take(self, events: list[wire.Event]) -> int:
        self._count_repeated(events)
        times = parse_all([event.timestamp for event in events])
        if None in times:
            self.set_aside("event without a readable time", count=times.count(None))
        known = [ns for ns in times if ns is not None]
        if known:
            first, last = min(known), max(known)
            self._first_ns = min(first, self._first_ns or first)
            self._last_ns = max(last, self._last_ns or last)
        try:
            problems = rows.add_events(self.rows, events, times)
        except _ODD:  # one of them: rows that are there already do no harm a second time
            self.rows.odd()
            problems = [problem for pair in zip(events, times, strict=True) for problem in self._add_one(*pair)]
        self._set_aside_all(problems + self.rows.odd())
        return len(events)

    def _set_aside_all(self, problems: list[Problem]) -> None:
        for (kind, detail), count in Counter(problems).items():
            self.set_aside(kind, detail, count)

    def _count_repeated(self, events: list[wire.Event]) -> None:
        """Ray sends a batch again when it has got no answer: that does no harm, and comes soon after."""
        named = [event.event_id for event in events if event.event_id]
        before = len(self._ids)
        self._ids.update(named)
        repeated = before + len(named) - len(self._ids)
        if repeated:
            self.set_aside(REPEATED, count=repeated)
        if len(self._ids) > _MOST_IDS:
            self._ids.clear()

    def _add_one(self, event: wire.Event, ns: int | None) -> list[Problem]:
        try:
            return rows.add_events(self.rows, [event], [ns])
        except _ODD as error:
            return [("event that cannot be read", f"{event.event_type}: {error!r}")]
