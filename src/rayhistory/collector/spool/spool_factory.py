"""Create the spool and its quarantine from the settings. They share one disk budget."""

from rayhistory.collector.spool.quarantine import QUARANTINE_DIR, Quarantine
from rayhistory.collector.spool.spool import Spool
from rayhistory.collector.spool.spool_location import first_release_directory, spool_directory
from rayhistory.collector.telemetry import Telemetry
from rayhistory.settings import Settings

_MB = 10**6
_QUARANTINE_SHARE_DIVISOR = 8


def make_spool(settings: Settings, cluster: str, *, compressed: bool) -> Spool:
    directory, old_directory = spool_directory(settings, cluster), first_release_directory(settings, cluster)
    return Spool(
        directory,
        budget=_budget(settings) - _quarantine_budget(settings),
        segment_size=settings.event_max_file_size_mb * _MB,
        segment_age=settings.event_rotation_interval,
        uncompressed=not compressed,
        mask_env_vars=settings.mask_env_vars,
        predecessor=old_directory if old_directory.path != directory.path else None,
    )


def make_quarantine(settings: Settings, spool: Spool, telemetry: Telemetry) -> Quarantine:
    return Quarantine(spool.directory.folder(QUARANTINE_DIR), telemetry, _quarantine_budget(settings))


def _budget(settings: Settings) -> int:
    return settings.event_max_disk_mb * _MB


def _quarantine_budget(settings: Settings) -> int:
    return _budget(settings) // _QUARANTINE_SHARE_DIVISOR
