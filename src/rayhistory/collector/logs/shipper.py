"""The interface of log shippers, which upload logs, and the choice of one by `--log-layout`."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rayhistory.collector.logs.event_streams import EventStreams
from rayhistory.collector.logs.pack_shipper import PackShipper
from rayhistory.collector.logs.plain_shipper import PlainShipper
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.telemetry import Telemetry
from rayhistory.settings import Settings
from rayhistory.storage import Store


class Shipper(Protocol):
    def follow(self, directory: Path) -> None:
        """Start to upload the logs in this directory."""

    async def run(self) -> None:
        """Upload logs while the session runs; never return."""

    async def finish(self) -> None:
        """Upload the rest. While the store is unavailable, retry until cancelled."""

    def unshipped(self) -> list[str]:
        """List files whose current content is not in the store."""

    def lag(self) -> float:
        """Return the seconds that the current upload has taken so far."""


class CombinedShipper:
    """Upload packs while the session runs, and plain files up to a size limit at its end."""

    def __init__(self, packs: PackShipper, plain: PlainShipper) -> None:
        self._packs = packs
        self._plain = plain

    def follow(self, directory: Path) -> None:
        self._packs.follow(directory)
        self._plain.follow(directory)

    async def run(self) -> None:
        await self._packs.run()

    async def finish(self) -> None:
        await self._packs.finish()
        await self._plain.finish()

    def unshipped(self) -> list[str]:
        return sorted({*self._packs.unshipped(), *self._plain.unshipped()})

    def lag(self) -> float:
        return self._packs.lag()


def make_shipper(
    directory: Path | None,
    settings: Settings,
    store: Store,
    telemetry: Telemetry,
    *,
    starts: SeriesStarts,
    packs_prefix: Callable[[], str],
    key_of: Callable[[str], str],
    events: EventStreams | None = None,
) -> Shipper:
    interval = settings.log_interval
    if settings.log_layout == "plain":
        return PlainShipper(directory, store, key_of, telemetry, interval=interval)
    packs = PackShipper(directory, store, packs_prefix, telemetry, starts=starts, interval=interval, events=events)
    if settings.log_layout == "packs":
        return packs
    max_bytes = settings.log_plain_limit
    plain = PlainShipper(directory, store, key_of, telemetry, interval=interval, max_file_bytes=max_bytes)
    return CombinedShipper(packs, plain)
