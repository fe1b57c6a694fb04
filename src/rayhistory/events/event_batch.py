"""Convert events of many small objects together, because each conversion has a fixed cost of a hundred events."""

from collections.abc import Sequence
from typing import Protocol

from rayhistory.events.event_rows import add_events
from rayhistory.events.event_types import Event
from rayhistory.events.row_buffer import MALFORMED_ERRORS, RowBuffer

MIN_BYTES = 1 << 19
"""Bytes of text whose events are converted together: about 500 events. Larger chunks are converted alone."""


class Decoder(Protocol):
    """The decoder of one object. It counts the anomalies of the object."""

    def convert(self, events: Sequence[Event], times: Sequence[int | None]) -> None:
        """Add the rows of events, and count their anomalies."""

    def write_gaps(self) -> None:
        """Add one row per gap of the object."""


class EventBatch:
    """Events that wait for their conversion. Call `flush` after the last object."""

    def __init__(self, rows: RowBuffer, min_bytes: int = MIN_BYTES) -> None:
        self.rows = rows
        self._min_bytes = min_bytes
        self._parts: list[tuple[Decoder, Sequence[Event], Sequence[int | None]]] = []
        self._bytes = 0
        self._finished: list[Decoder] = []
        """Decoders of objects that were read completely."""

    def add(self, decoder: Decoder, events: Sequence[Event], times: Sequence[int | None], size: int) -> None:
        """Add events that were decoded from `size` bytes."""
        self._parts.append((decoder, events, times))
        self._bytes += size
        if self._bytes >= self._min_bytes:
            self.flush()

    def finish(self, decoder: Decoder) -> None:
        """Write the gaps of an object, after the conversion of its events."""
        self._finished.append(decoder)
        if not self._parts:
            self.flush()

    def flush(self) -> None:
        """Convert all events, and write the gaps of objects that were read completely."""
        parts, self._parts, self._bytes = self._parts, [], 0
        if len(parts) == 1 or not self._convert_together(parts):
            for decoder, events, times in parts:
                decoder.convert(events, times)
        finished, self._finished = self._finished, []
        for decoder in finished:
            decoder.write_gaps()

    def _convert_together(self, parts: list[tuple[Decoder, Sequence[Event], Sequence[int | None]]]) -> bool:
        """Add the rows of all events. Return False if there are anomalies: whose they are is not known.

        Then each object is converted again. Rows that were added already are merged with themselves.
        """
        events = [event for _, each, _ in parts for event in each]
        times = [ns for _, _, each in parts for ns in each]
        try:
            anomalies = add_events(self.rows, events, times)
        except MALFORMED_ERRORS:
            self.rows.take_anomalies()
            return False
        return not (self.rows.take_anomalies() or anomalies)
