"""Remember on this node's disk where each series of packs was continued last.

A restarted collector continues a series at a number above all listed packs. Some stores list new objects late: a second
restart would then choose the same numbers as the first, and readers would take an older pack for the newest.
"""

import logging
import threading

import msgspec

from rayhistory.collector.spool.private_directory import PrivateDirectory

log = logging.getLogger(__name__)

_FILE = "series-starts.json"
_MAX_FILE_BYTES = 1 << 20
_MAX_SERIES = 1000
_SKIPPED_NUMBERS = 100  # so many packs of an earlier collector may be missing from a listing


class SeriesStarts:
    """The series starts of one collector, in its spool's directory; thread-safe."""

    def __init__(self, directory: PrivateDirectory) -> None:
        self._directory = directory
        self._lock = threading.Lock()

    def skip_used(self, prefix: str, newest_listed: int) -> int:
        """Return the pack number after which a series continues; -1 for a new series.

        Numbers are skipped that an earlier collector may have used for packs that are not listed yet.
        """
        with self._lock:
            starts = self._read()
            newest = max(newest_listed, starts.pop(prefix, -1))
            if newest >= 0:
                newest += _SKIPPED_NUMBERS
            self._write({**starts, prefix: newest + 1})
            return newest

    def _read(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._directory.read(_FILE, _MAX_FILE_BYTES), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write(self, starts: dict[str, int]) -> None:
        newest = dict(list(starts.items())[-_MAX_SERIES:])
        try:
            self._directory.make()
            self._directory.write(_FILE, msgspec.json.encode(newest))
        except OSError as error:
            log.warning(
                "cannot save the number of the next log pack, a restarted collector may reuse it",
                extra={"reason": str(error)},
            )
