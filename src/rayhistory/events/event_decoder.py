"""Decode the bytes of an event object into rows.

A chunk of lines is decoded at once on the fast path. If something in it does not fit, its lines are decoded one by one
and repaired if possible. Unreadable lines are counted. Malformed input never raises an error.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import cast

import msgspec

from rayhistory.events import event_types, lenient
from rayhistory.events.bulk_times import parse_all
from rayhistory.events.event_batch import EventBatch
from rayhistory.events.event_rows import add_events
from rayhistory.events.row_buffer import MALFORMED_ERRORS, Anomaly, RowBuffer
from rayhistory.gaps import GapCode
from rayhistory.utc import MAX_CLOCK_SKEW_S

_EVENT_ID, _TIMESTAMP = attrgetter("event_id"), attrgetter("timestamp")
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_MAX_EVENT_IDS = 200_000
_MAX_DETAILS = 200
"""Maximum number of details per object and kind of gap. Further occurrences are only counted."""
_MAX_DETAIL_LENGTH = 200
_MAX_CLOCK_SKEW_NS = int(MAX_CLOCK_SKEW_S * 1e9)


class EventDecoder:
    """Decodes the contents of one object (`source`) into rows, and counts its gaps.

    `stored_ns` is the time when the object was last written, if known. An event with a later time is from a wrong
    clock. Its time does not count for the first and last event of the session.
    """

    def __init__(
        self, source: str, rows: RowBuffer, stored_ns: int | None = None, batch: EventBatch | None = None
    ) -> None:
        """With a batch, events are converted together with those of other objects, when the batch is flushed."""
        self.source = source
        self.rows = rows
        self._batch = batch or EventBatch(rows, min_bytes=0)
        self._gaps: defaultdict[GapCode, Counter[str]] = defaultdict(Counter)
        self._event_ids: set[str] = set()
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._stored_ns = stored_ns

    def feed(self, chunk: bytes) -> int:
        """Add whole lines of JSON; return the number of events in them."""
        try:
            events = event_types.DECODER.decode_lines(chunk)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            events = [event for line in chunk.split(b"\n") if line.strip() and (event := self._decode(line))]
        return self._add(events, len(chunk))

    def feed_array(self, chunk: bytes) -> int:
        """Add one JSON array of events; return their number."""
        try:
            events = _ARRAY.decode(chunk)
        except (msgspec.DecodeError, RecursionError) as error:
            self.count_gap(GapCode.EVENT_ARRAY_UNREADABLE, str(error))
            return 0
        return self._add([event for raw in events if (event := self._decode(bytes(raw)))], len(chunk))

    def count_gap(self, code: GapCode, detail: str = "", count: int = 1) -> None:
        details = self._gaps[code]
        detail = detail[:_MAX_DETAIL_LENGTH]
        details[detail if detail in details or len(details) < _MAX_DETAILS else ""] += count

    def finish(self) -> None:
        """Add one row per gap, and the times of the first and last event."""
        self._count_anomalies(self.rows.take_anomalies())
        self._batch.finish(self)

    def write_gaps(self) -> None:
        for code, details in self._gaps.items():
            for detail, count in details.items():
                self.rows.add("gaps", source=self.source, kind=code.value, detail=detail, count=count)
        if self._first_ns is not None:
            self.rows.add("life_signs", source=self.source, first_ns=self._first_ns, last_ns=self._last_ns)

    def _decode(self, line: bytes) -> event_types.Event | None:
        try:
            return event_types.DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._decode_leniently(line)

    def _decode_leniently(self, line: bytes) -> event_types.Event | None:
        unknown_fields: set[str] = set()
        try:
            document = msgspec.json.decode(line)
            if isinstance(document, dict):
                event = lenient.convert_event(document, unknown_fields)
                self._count_anomalies([(GapCode.EVENT_FIELD_UNKNOWN, name) for name in unknown_fields])
                return event
            self.count_gap(GapCode.LINE_NOT_AN_EVENT)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.count_gap(GapCode.LINE_UNREADABLE)
        except RecursionError:
            self.count_gap(GapCode.EVENT_NESTED_TOO_DEEPLY)
        except MALFORMED_ERRORS as error:
            self.count_gap(GapCode.EVENT_UNREADABLE, repr(error))
        return None

    def _add(self, events: list[event_types.Event], size: int) -> int:
        self._count_repeated(events)
        times = parse_all(list(map(_TIMESTAMP, events)))
        if not all(times) and None in times:
            self.count_gap(GapCode.EVENT_WITHOUT_TIMESTAMP, count=times.count(None))
            self._add_life_signs([ns for ns in times if ns is not None])
        else:
            self._add_life_signs(cast("Sequence[int]", times))
        self._batch.add(self, events, times, size)
        return len(events)

    def convert(self, events: Sequence[event_types.Event], times: Sequence[int | None]) -> None:
        try:
            anomalies = add_events(self.rows, events, times)
        except MALFORMED_ERRORS:  # raised by one of the events: rows that were added already are merged with themselves
            self.rows.take_anomalies()
            anomalies = [anomaly for pair in zip(events, times, strict=True) for anomaly in self._add_one(*pair)]
        self._count_anomalies(anomalies + self.rows.take_anomalies())

    def _add_life_signs(self, times: Sequence[int]) -> None:
        if not times:
            return
        first, last = min(times), max(times)
        if self._stored_ns is not None and last > self._stored_ns + _MAX_CLOCK_SKEW_NS:
            possible = [ns for ns in times if ns <= self._stored_ns + _MAX_CLOCK_SKEW_NS]
            self.count_gap(GapCode.EVENT_FROM_FUTURE, count=len(times) - len(possible))
            first, last = (first, max(possible)) if possible else (self._stored_ns, self._stored_ns)
        self._first_ns = min(first, self._first_ns or first)
        self._last_ns = max(last, self._last_ns or last)

    def _add_one(self, event: event_types.Event, ns: int | None) -> list[Anomaly]:
        try:
            return add_events(self.rows, [event], [ns])
        except MALFORMED_ERRORS as error:
            return [(GapCode.EVENT_UNREADABLE, f"{event.event_type}: {error!r}")]

    def _count_anomalies(self, anomalies: list[Anomaly]) -> None:
        for (code, detail), count in Counter(anomalies).items():
            self.count_gap(code, detail, count)

    def _count_repeated(self, events: list[event_types.Event]) -> None:
        """Count events of batches that Ray sent again.

        A repeated batch follows soon after the first, so only recent ids are remembered.
        """
        event_ids = list(map(_EVENT_ID, events))
        if not all(event_ids):
            event_ids = list(filter(None, event_ids))
        before = len(self._event_ids)
        self._event_ids.update(event_ids)
        repeated = before + len(event_ids) - len(self._event_ids)
        if repeated:
            self.count_gap(GapCode.EVENTS_REPEATED, count=repeated)
        if len(self._event_ids) > _MAX_EVENT_IDS:
            self._event_ids.clear()
