"""The summary as a product of a session's index. Its build also adds it to the inbox of the run table."""

import asyncio
import secrets
from typing import Any

import msgspec

from rayhistory.diagnosis.diagnosis_product import FILE as DIAGNOSIS_FILE
from rayhistory.diagnosis.diagnosis_product import NAME as DIAGNOSIS
from rayhistory.diagnosis.diagnosis_product import RULES_VERSION, diagnose_session, read_samples
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.errors import IndexDamaged, ObjectNotFound
from rayhistory.index.leases import Leases
from rayhistory.index.products.product import BuiltProduct, ProductContext
from rayhistory.index.products.product_manifest import read_latest_product
from rayhistory.index.query.database import set_limits
from rayhistory.runs.gather_summary import gather_summary
from rayhistory.runs.session_summary import StoredSummary
from rayhistory.runs.summarize import summarize
from rayhistory.sessions import MAX_RECORD_BYTES, SessionRef, StartRecord, read_record

NAME = "summary"
FILE = "summary.json"
_FORMAT_VERSION = 2
_DATABASE_SHARE = 0.75
_DIAGNOSIS_POLL_S, _DIAGNOSIS_POLLS = 0.5, 60


class SummaryProduct:
    """Builds `summary.json`."""

    name = NAME
    version = _FORMAT_VERSION * 1000 + RULES_VERSION
    """Version of the summary. It includes the version of the diagnosis rules, because a summary contains the verdict.
    """

    def build(self, context: ProductContext) -> BuiltProduct:
        set_limits(int(context.settings.index_memory * _DATABASE_SHARE), threads=1)
        stored: StoredSummary = context.run(_summarize_session(context))
        data = msgspec.json.encode(stored)
        path = context.scratch / FILE
        path.write_bytes(data)
        key = context.layout.run_inbox_key(context.ref, context.manifest.generation, secrets.token_hex(4))
        return BuiltProduct({FILE: path}, _preview(stored), announcements={key: data})


def _preview(stored: StoredSummary) -> dict[str, Any]:
    return {"jobs": len(stored.summary.jobs), "state": stored.summary.state}


async def _summarize_session(context: ProductContext) -> StoredSummary:
    context.report(0.1, "waiting for the diagnosis")
    diagnosis = await _stored_diagnosis(context) or await diagnose_session(context)
    context.report(0.6, "reading figures")
    ref, start = await _with_owner(context)
    started_ms = start.started_ms if start else None
    samples = await read_samples(context)
    return summarize(await gather_summary(ref, context.index, diagnosis, samples, started_ms))


async def _with_owner(context: ProductContext) -> tuple[SessionRef, StartRecord | None]:
    """Return the session with its owner, and its start record. Sometimes only this record has the owner."""
    ref = context.ref
    try:
        data = await context.store.get_range(context.layout.start_key(ref), 0, MAX_RECORD_BYTES)
    except ObjectNotFound:
        return ref, None
    start = read_record(data, StartRecord)
    if start and not ref.owner_kind and start.owner_kind and start.owner_name:
        ref = msgspec.structs.replace(ref, owner_kind=start.owner_kind, owner_name=start.owner_name)
    return ref, start


async def _stored_diagnosis(context: ProductContext) -> Diagnosis | None:
    """Return the diagnosis of the same tables. Wait while another process builds it; None if nobody does."""
    leases, lease = Leases(context.indexes), context.layout.product_lease_key(context.ref, DIAGNOSIS)
    for _ in range(_DIAGNOSIS_POLLS):
        is_being_built = await leases.is_held(lease)
        if found := await _read_diagnosis(context):
            return found
        if not is_being_built:
            return None
        await asyncio.sleep(_DIAGNOSIS_POLL_S)
    return None


async def _read_diagnosis(context: ProductContext) -> Diagnosis | None:
    store, layout, ref = context.indexes, context.layout, context.ref
    manifest = await read_latest_product(store, layout, ref, DIAGNOSIS, RULES_VERSION)
    tables = context.manifest
    if manifest is None or (manifest.tables_covered, manifest.closing) != (tables.covered, tables.closing):
        return None
    try:
        return msgspec.json.decode((await context.product_file(manifest, DIAGNOSIS_FILE)).read_bytes(), type=Diagnosis)
    except (IndexDamaged, OSError, msgspec.MsgspecError):
        return None


PRODUCT = SummaryProduct()
