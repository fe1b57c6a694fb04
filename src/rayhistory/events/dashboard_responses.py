"""Rows of stored dashboard responses: data that Ray does not export as events."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from rayhistory import ids
from rayhistory.events.row_buffer import MALFORMED_ERRORS, Anomaly, RowBuffer
from rayhistory.events.table_columns import JOB_RANKS, PLACEMENT_GROUP_RANKS
from rayhistory.events.times import ms_to_ns, valid_ms
from rayhistory.gaps import GapCode

FAILED_TASKS_URI = "/api/v0/tasks?detail=1&limit=1000&filter_keys=state&filter_predicates=%3D&filter_values=FAILED"
"""The list of failed tasks. The collector polls it while a driver does not export events."""
TASK_SPANS_URI = "/api/v0/tasks?detail=1&limit=10000&exclude_driver=false"
"""The list of all tasks. The collector polls it if Ray is older than 2.55, because it then exports only some spans.

Only the profile spans of the list are stored and read.
"""
_DRIVER_SUFFIX = "f" * 24
"""Suffix of the id of a driver's worker. The job id comes before it."""


def add_dashboard_rows(rows: RowBuffer, uri: str, body: object, ns: int) -> Anomaly | None:
    """Add jobs, placement groups, workers, nodes and names of actors in a response. Other responses have no rows."""
    path = uri.partition("?")[0].rstrip("/")
    reader = _READERS.get(path)
    if reader is None:
        return None
    try:
        reader(rows, body, ns)
    except MALFORMED_ERRORS as error:
        return GapCode.DASHBOARD_RESPONSE_UNEXPECTED, f"{uri}: {error!r}"
    return None


def as_int(value: object) -> int | None:
    """Return an integer, also from text; None for 0 and anything else."""
    return int(value) or None if isinstance(value, int | str) and value else None


def listed(body: Any) -> Iterable[dict[str, Any]]:
    """Return the entries of a State API list."""
    return body["data"]["result"]["result"] or []


def as_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def as_json(value: object) -> str | None:
    return msgspec.json.encode(value, order="sorted").decode() if value else None


def _add_jobs(rows: RowBuffer, body: Any, ns: int) -> None:
    for job in body:
        if job["type"] == "SUBMISSION" and job["submission_id"]:
            rows.add(
                "submission_jobs",
                submission_id=job["submission_id"],
                entrypoint=as_text(job["entrypoint"]),
                runtime_env=as_json(job["runtime_env"]),
                driver_agent_http_address=as_text(job.get("driver_agent_http_address")),
                driver_node_id=as_text(job.get("driver_node_id")),
                job_id=as_text(job["job_id"]),
                metadata=as_json(job["metadata"]),
                start_ms=valid_ms(job["start_time"]),
                rank=JOB_RANKS.get(job["status"], 1),
                seen_ns=ns,
                status=as_text(job["status"]),
                message=as_text(job["message"]),
                error_type=as_text(job["error_type"]),
                end_ms=valid_ms(job["end_time"]),
                driver_exit_code=job.get("driver_exit_code"),
            )
        elif job["type"] == "DRIVER" and job["job_id"]:
            driver = job.get("driver_info") or {}
            rows.add(
                "driver_jobs",
                job_id=job["job_id"],
                entrypoint=as_text(job["entrypoint"]),
                runtime_env=as_json(job["runtime_env"]),
                driver_pid=int(driver["pid"]) if driver.get("pid") else None,
                metadata=as_json(job["metadata"]),
                created_ns=ms_to_ns(job["start_time"]),
                finished_ns=ms_to_ns(job["end_time"]),
                seen_ns=ns,
            )


def _add_placement_groups(rows: RowBuffer, body: Any, ns: int) -> None:
    for group in listed(body):
        rows.add(
            "placement_groups",
            placement_group_id=group["placement_group_id"],
            name=as_text(group["name"]),
            creator_job_id=as_text(group["creator_job_id"]),
            is_detached=group.get("is_detached"),
            rank=PLACEMENT_GROUP_RANKS.get(group["state"], 0),
            seen_ns=ns,
            state=group["state"],
            bundles=as_json(group.get("bundles")),
            stats=as_json(group.get("stats")),
            topology_strategy=as_json(group.get("topology_strategy")),
            topology_assignments=as_json(group.get("topology_assignments")),
        )


def _add_workers(rows: RowBuffer, body: Any, ns: int) -> None:
    for worker in listed(body):
        worker_id = worker["worker_id"]
        rows.add(
            "workers",
            worker_id=worker_id,
            node_id=as_text(worker["node_id"]),
            worker_type=as_text(worker["worker_type"]),
            job_id=worker_id[: 2 * ids.JOB] if worker_id.endswith(_DRIVER_SUFFIX) else None,
            ip=as_text(worker["ip"]),
            exit_type=as_text(worker["exit_type"]),
            exit_detail=as_text(worker.get("exit_detail")),
            pid=worker["pid"] or None,
            launch_ms=valid_ms(worker.get("worker_launch_time_ms")),
            launched_ms=valid_ms(worker.get("worker_launched_time_ms")),
            start_ms=valid_ms(worker.get("start_time_ms")),
            end_ms=valid_ms(worker.get("end_time_ms")),
            alive_ns=ms_to_ns(worker.get("start_time_ms")),
            dead_ns=ms_to_ns(worker.get("end_time_ms")),
        )


def _add_nodes(rows: RowBuffer, body: Any, ns: int) -> None:
    for node in listed(body):
        rows.add(
            "node_definitions",
            node_id=node["node_id"],
            node_ip=as_text(node["node_ip"]),
            node_name=as_text(node["node_name"]),
            labels=as_json(node["labels"]),
            resources=as_json(node["resources_total"]),
            is_head=node["is_head_node"] or None,
            start_ns=ms_to_ns(node.get("start_time_ms")),
        )


def _add_repr_names(rows: RowBuffer, body: Any, ns: int) -> None:
    """Add the `__repr__` of actors, which Ray's events lack before 2.54.

    Node, worker and pid are read from events only: the dashboard lists the first start of an actor beside its last
    worker.
    """
    for actor in body["data"]["actors"].values():
        if actor.get("reprName") and (started := ms_to_ns(actor.get("startTime"))):
            rows.add(
                "actor_transitions",
                actor_id=actor["actorId"],
                ns=started,
                state="ALIVE",
                node_id=None,
                worker_id=None,
                pid=None,
                port=None,
                repr_name=as_text(actor["reprName"]),
                restart_reason=None,
                death_cause=None,
                reported_by="dashboard",
            )


def _add_hostnames(rows: RowBuffer, body: Any, ns: int) -> None:
    """Add the hostnames of nodes, which Ray's events lack before 2.54."""
    for node in body["data"]["summary"]:
        raylet = node.get("raylet") or {}
        if raylet.get("nodeId") and raylet.get("nodeManagerHostname"):
            rows.add("node_definitions", node_id=raylet["nodeId"], hostname=raylet["nodeManagerHostname"])


_READERS: dict[str, Callable[[RowBuffer, Any, int], None]] = {
    "/api/jobs": _add_jobs,
    "/api/v0/placement_groups": _add_placement_groups,
    "/api/v0/workers": _add_workers,
    "/api/v0/nodes": _add_nodes,
    "/nodes": _add_hostnames,
    "/logical/actors": _add_repr_names,
}
