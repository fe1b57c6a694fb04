"""Jobs of a session in the shape of Ray's job API."""

from typing import Any

from rayhistory.index.query.query import Filter, Row
from rayhistory.masking import mask_env_vars
from rayhistory.server.ray_api.state_rows import known_value
from rayhistory.server.ray_api.state_schema import JOB_STATUSES
from rayhistory.server.untrusted_json import decode_json
from rayhistory.server.view import SessionView

_DEFAULT_MESSAGES = {
    "PENDING": "Job has not started yet.",
    "RUNNING": "Job is currently running.",
    "STOPPED": "Job was intentionally stopped.",
    "SUCCEEDED": "Job finished successfully.",
    "FAILED": "Job failed.",
}


JOBS_ORDER = ("-type", "submission_id", "job_id")
"""The order of jobs in lists: submitted jobs first, then jobs of other drivers."""


def job_details(row: Row, *, mask: bool = False) -> dict[str, Any]:
    """Return a job in Ray's shape."""
    runtime_env = decode_json(row["runtime_env"], {})
    submitted = row["type"] == "SUBMISSION"
    metadata = decode_json(row["metadata"], {})
    if submitted:
        metadata = {key: value for key, value in metadata.items() if key != "job_submission_id"}
    return {
        "type": row["type"],
        "job_id": row["job_id"],
        "submission_id": row["submission_id"],
        "driver_info": _driver(row),
        "status": known_value(row["status"], JOB_STATUSES),
        "entrypoint": row["entrypoint"] or "",
        "message": row["message"] or (_DEFAULT_MESSAGES.get(row["status"]) if submitted else None),
        "error_type": row["error_type"],
        "start_time": row["start_time"],
        "end_time": row["end_time"],
        "metadata": metadata,
        "runtime_env": mask_env_vars(runtime_env) if mask else runtime_env,
        "driver_agent_http_address": row["driver_agent_http_address"],
        "driver_node_id": row["driver_node_id"],
        "driver_exit_code": row["driver_exit_code"],
    }


def _driver(row: dict[str, Any]) -> dict[str, str] | None:
    if row["job_id"] is None:
        return None
    return {
        "id": row["job_id"],
        "node_ip_address": row["driver_ip"] or "",
        "pid": str(row["driver_pid"] or ""),
    }


async def find_job(view: SessionView, name: str, *, mask: bool = False) -> dict[str, Any] | None:
    """Return a job by its job id or its submission id."""
    for key in ("job_id", "submission_id"):
        rows = await view.rows("jobs", Filter(key, "in", (name,)), sort=JOBS_ORDER, limit=1)
        if rows:
            return job_details(rows[0], mask=mask)
    return None
