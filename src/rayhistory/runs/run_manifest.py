"""The manifest of the run table: the list of its parts.

It is written last, by conditional create, and never overwritten.
"""

from datetime import UTC, datetime
from typing import Annotated

import msgspec

from rayhistory.errors import ObjectExists, ObjectNotFound
from rayhistory.runs.session_summary import SessionSummary
from rayhistory.sessions import Layout, read_record
from rayhistory.sessions.records import Count
from rayhistory.sessions.ref import is_safe_component, session_start_time
from rayhistory.storage import Store

FORMAT = 1
FENCES = 64
"""Number of manifests that are kept, so that a process that was suspended cannot reuse an old number."""
_MAX_MANIFEST_BYTES = 8 << 20
_MAX_GENERATIONS = 16
UNKNOWN_DAY = "1970-01-01"


class RunPart(msgspec.Struct, frozen=True):
    """One part of the run table: a Parquet file."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    period: Annotated[str, msgspec.Meta(pattern="^[0-9]{4}-[0-9]{2}(-[0-9]{2})?$")]
    """The day on which its sessions started (UTC), or the month."""
    rows: Count
    size: Count
    details_at: Count = 0
    details_size: Count = 0
    """Size of the details in the file, which lists do not read. 0 if unknown."""


class RunManifest(msgspec.Struct, frozen=True):
    format: int = FORMAT
    generation: int = 0
    parts: list[RunPart] = []
    """Parts of the table. Rows of later parts replace rows of earlier parts."""
    quarantined: Count = 0
    """Number of objects that were moved to quarantine since the table was created."""


def day_of(summary: SessionSummary) -> str:
    """Return the day on which a session started, from its records or its name."""
    named = session_start_time(summary.session)
    started = summary.started_ms / 1000 if summary.started_ms else named.timestamp() if named else 0.0
    try:
        return datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN_DAY


async def read_run_manifest(store: Store, layout: Layout) -> RunManifest:
    """Return the newest readable manifest; an empty one if there is none."""
    for generation in (await list_generations(store, layout))[:_MAX_GENERATIONS]:
        try:
            data = await store.get_range(layout.runs_manifest_key(generation), 0, _MAX_MANIFEST_BYTES)
        except ObjectNotFound:
            continue
        manifest = parse_run_manifest(data)
        if manifest is not None and manifest.generation == generation:
            return manifest
    return RunManifest()


def parse_run_manifest(data: bytes) -> RunManifest | None:
    """Parse a manifest; None if it is malformed. Names of parts are checked, because they become paths."""
    manifest = read_record(data, RunManifest)
    if (
        manifest is None
        or manifest.format != FORMAT
        or not all(is_safe_component(part.name) for part in manifest.parts)
    ):
        return None
    return manifest


async def list_generations(store: Store, layout: Layout) -> list[int]:
    """Return the generations in the store, the newest first."""
    listing = await store.list_folder(layout.runs_prefix())
    numbers = (layout.parse_manifest_key(info.key) for info in listing.objects)
    return sorted((number for number in numbers if number is not None), reverse=True)


async def publish_run_manifest(store: Store, layout: Layout, manifest: RunManifest) -> bool:
    """Publish a manifest. Return False if another process was faster."""
    try:
        await store.create(layout.runs_manifest_key(manifest.generation), msgspec.json.encode(manifest))
    except ObjectExists:
        return False
    return (await list_generations(store, layout))[0] == manifest.generation
