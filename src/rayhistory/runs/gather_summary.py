"""Read the input of a summary: tables, the diagnosis, and metrics."""

from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.gather import session_state
from rayhistory.diagnosis.lenient_json import members
from rayhistory.diagnosis.session_facts import NodeSamples
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Filter, Query
from rayhistory.index.query.run_figures import read_run_figures
from rayhistory.runs.session_summary import MAX_JOBS
from rayhistory.runs.summarize import SummaryInput
from rayhistory.sessions import SessionRef

_MAX_NODES = 5_000
_METADATA_URI = "/api/v0/cluster_metadata"
_JOB_COLUMNS = (
    "type", "job_id", "submission_id", "entrypoint", "runtime_env", "metadata", "status", "start_time", "end_time",
    "closed_by_history",
)  # fmt: skip
_NODE_COLUMNS = (
    "node_id", "instance_type_name", "is_head", "resources", "state_message", "start_time_ms", "end_time_ms",
    "closed_by_history",
)  # fmt: skip


async def gather_summary(
    ref: SessionRef, index: OpenIndex, diagnosis: Diagnosis, samples: dict[str, NodeSamples], started_ms: int | None
) -> SummaryInput:
    """Return the input for the summary of a session. `started_ms` is the time in its start record, if there is one."""
    manifest = index.manifest
    first_ms, last_ms = _ms(manifest.first_ns), _ms(manifest.last_ns)
    counts = manifest.counts
    return SummaryInput(
        ref=ref,
        state=session_state(index),
        started_ms=first_ms if started_ms is None else started_ms,
        last_ms=last_ms,
        jobs=await index.rows(Query("jobs", _JOB_COLUMNS, sort=("start_time",), limit=MAX_JOBS)),
        total_jobs=await index.count(Query("jobs")),
        nodes=await index.rows(Query("nodes", _NODE_COLUMNS, sort=("start_time_ms",), limit=_MAX_NODES)),
        figures=await read_run_figures(index, last_ms),
        diagnosis=diagnosis,
        samples=samples,
        ray_version=manifest.ray_version or "",
        python_version=await _python_version(index),
        tasks=counts.tasks,
        failed_tasks=counts.failed_tasks,
        oom_kills=await index.count(Query("workers", filters=(Filter("exit_type", "=", "NODE_OUT_OF_MEMORY"),))),
        size_bytes=counts.size_bytes,
        index_bytes=manifest.size,
    )


async def _python_version(index: OpenIndex) -> str:
    newest = Query("snapshots", ("body",), (Filter("uri", "=", _METADATA_URI),), ("-ns",), 1)
    rows = await index.rows(newest)
    data = members(rows[0]["body"]).get("data") if rows else None
    version = data.get("pythonVersion") if isinstance(data, dict) else None
    return version if isinstance(version, str) else ""


def _ms(ns: int | None) -> int | None:
    return None if ns is None else ns // 1_000_000
