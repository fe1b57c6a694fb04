"""Stored samples of made-up nodes, without a collector."""

from array import array
from pathlib import Path

from rayhistory.metrics.samples import SampledSeries, Samples, encode
from rayhistory.sessions import Layout, SessionRef
from rayhistory.settings import Settings, resolve

REF = SessionRef("default", "test", "session_2026-11-15_19-18-08_055078_15551")
START_MS = 1_794_770_000_000

Columns = dict[tuple[str, tuple[tuple[str, str], ...]], list[float]]


def samples(columns: Columns, start_ms: int = START_MS, step_ms: int = 15_000, dropped: int = 0) -> Samples:
    """One sample per step; all columns have the same length."""
    count = len(next(iter(columns.values())))
    series = [
        SampledSeries(name, dict(labels), array("d", values).tobytes()) for (name, labels), values in columns.items()
    ]
    return Samples([start_ms + step_ms * number for number in range(count)], series, {}, dropped)


def store_session(directory: Path) -> None:
    metadata = directory / Layout().metadata_key(REF)
    metadata.parent.mkdir(parents=True)
    metadata.touch()


def store_object(
    directory: Path, node: str, stored: Samples | bytes, first_ms: int = START_MS, ref: SessionRef = REF
) -> None:
    path = directory / Layout().metrics_key(ref, node, first_ms)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stored if isinstance(stored, bytes) else encode(stored))


def server_settings(directory: Path) -> Settings:
    flags = {
        "setting_local_storage_dir": str(directory / "store"),
        "setting_cache_dir": str(directory / "cache"),
        "setting_index_ahead": "false",
    }
    return resolve("historyserver", flags, {})[0]
