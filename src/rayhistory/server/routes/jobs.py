"""Ray's job API, for reading: the jobs of a session, by either id, and their output."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rayhistory.errors import LogNotFound
from rayhistory.server.answers import json_answer, parsed, text_answer
from rayhistory.server.logfiles import find_file
from rayhistory.server.redaction import is_browser, masked
from rayhistory.server.routing import get
from rayhistory.server.view import SessionView

_DEFAULT_MESSAGES = {
    "PENDING": "Job has not started yet.",
    "RUNNING": "Job is currently running.",
    "STOPPED": "Job was intentionally stopped.",
    "SUCCEEDED": "Job finished successfully.",
    "FAILED": "Job failed.",
}


async def job_details(view: SessionView, *, mask: bool = False) -> list[dict[str, Any]]:
    """Every job as Ray describes it: submissions first, then drivers."""
    rows = await view.rows("jobs", sort=("-type", "submission_id", "job_id"))
    return [_details(row, mask=mask) for row in rows]


def _details(row: dict[str, Any], *, mask: bool) -> dict[str, Any]:
    runtime_env = parsed(row["runtime_env"], {})
    submitted = row["type"] == "SUBMISSION"
    metadata = parsed(row["metadata"], {})
    if submitted:
        metadata = {key: value for key, value in metadata.items() if key != "job_submission_id"}
    return {
        "type": row["type"],
        "job_id": row["job_id"],
        "submission_id": row["submission_id"],
        "driver_info": _driver(row),
        "status": row["status"],
        "entrypoint": row["entrypoint"] or "",
        "message": row["message"] or (_DEFAULT_MESSAGES.get(row["status"]) if submitted else None),
        "error_type": row["error_type"],
        "start_time": row["start_time"],
        "end_time": row["end_time"],
        "metadata": metadata,
        "runtime_env": masked(runtime_env) if mask else runtime_env,
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
    """A job by the id of its driver, or by the id under which it was submitted."""
    jobs = await job_details(view, mask=mask)
    for key in ("job_id", "submission_id"):
        for job in jobs:
            if job[key] == name:
                return job
    return None


async def jobs(request: Request, view: SessionView) -> Response:
    return json_answer(await job_details(view, mask=is_browser(request)))


async def job(request: Request, view: SessionView) -> Response:
    name = request.path_params["job"]
    found = await find_job(view, name, mask=is_browser(request))
    return json_answer(found) if found else text_answer(f"Job {name} does not exist", 404)


async def job_logs(request: Request, view: SessionView) -> Response:
    name = request.path_params["job"]
    found = await find_job(view, name)
    if found is None:
        return text_answer(f"Job {name} does not exist", 404)
    if found["type"] != "SUBMISSION":
        return text_answer("Can only get logs of submission type jobs", 400)
    return json_answer({"logs": (await driver_output(view, found)).decode("utf-8", "replace")})


async def driver_output(view: SessionView, details: dict[str, Any]) -> bytes:
    """What the entrypoint of a submitted job wrote; nothing when it was not kept."""
    node = details["driver_node_id"]
    name = f"job-driver-{details['submission_id']}.log"
    if node is None:
        return b""
    try:
        file = await find_file(view.logs, node, name)
    except LogNotFound:
        return b""
    return await view.logs.read(node, name, 0, file.size)


async def version(request: Request, view: SessionView) -> Response:
    kept = await view.snapshot("/api/version") or {}
    return json_answer(
        {
            "version": kept.get("version", "4"),
            "ray_version": kept.get("ray_version") or view.index.manifest.ray_version or "unknown",
            "ray_commit": kept.get("ray_commit", ""),
            "session_name": view.ref.session,
        }
    )


ROUTES: list[BaseRoute] = [
    get("/api/version", version),
    get("/api/ray/version", version),
    get("/api/jobs", jobs),
    get("/api/jobs/", jobs),
    get("/api/jobs/{job}", job),
    get("/api/jobs/{job}/logs", job_logs),
]
