"""What the dashboard's answers add to the tables: the things that Ray does not export as events."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from rayhistory import ids
from rayhistory.events.tables import JOB_RANKS
from rayhistory.events.times import milliseconds, ns_of_ms

Add = Callable[[str, tuple[object, ...]], None]


def add_rows(add: Add, uri: str, body: object, ns: int) -> tuple[str, str] | None:
    """Adds what an answer says about jobs, placement groups, workers and nodes; other answers are kept as they are."""
    path = uri.partition("?")[0].rstrip("/")
    reader = _READERS.get(path)
    if reader is None:
        return None
    try:
        reader(add, body, ns)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        return "unexpected answer of the dashboard", f"{uri}: {error!r}"
    return None


def number(value: object) -> int | None:
    return int(value) or None if isinstance(value, int | str) and value else None


def listed(body: Any) -> Iterable[dict[str, Any]]:
    return body["data"]["result"]["result"] or []


def as_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def as_json(value: object) -> str | None:
    return msgspec.json.encode(value, order="sorted").decode() if value else None


def _jobs(add: Add, body: Any, ns: int) -> None:
    for job in body:
        if job["type"] == "SUBMISSION" and job["submission_id"]:
            add(
                "submission_jobs",
                (
                    job["submission_id"], as_text(job["entrypoint"]), as_json(job["runtime_env"]),
                    as_text(job.get("driver_agent_http_address")), as_text(job.get("driver_node_id")),
                    as_text(job["job_id"]), as_json(job["metadata"]), milliseconds(job["start_time"]),
                    JOB_RANKS.get(job["status"], 1), ns, as_text(job["status"]), as_text(job["message"]),
                    as_text(job["error_type"]),
                    milliseconds(job["end_time"]), job.get("driver_exit_code"),
                ),
            )  # fmt: skip
        elif job["type"] == "DRIVER" and job["job_id"]:
            driver = job.get("driver_info") or {}
            add(
                "driver_jobs",
                (
                    job["job_id"], None, as_text(job["entrypoint"]), as_json(job["runtime_env"]), None,
                    int(driver["pid"]) if driver.get("pid") else None, as_json(job["metadata"]),
                    ns_of_ms(job["start_time"]), ns_of_ms(job["end_time"]), ns,
                ),
            )  # fmt: skip


def _placement_groups(add: Add, body: Any, ns: int) -> None:
    for group in listed(body):
        add(
            "placement_groups",
            (
                group["placement_group_id"], as_text(group["name"]), as_text(group["creator_job_id"]),
                group.get("is_detached"), None, None,
                ns, group["state"], as_json(group.get("bundles")), as_json(group.get("stats")),
                as_json(group.get("topology_strategy")), as_json(group.get("topology_assignments")),
            ),
        )  # fmt: skip


def _workers(add: Add, body: Any, ns: int) -> None:
    for worker in listed(body):
        names = ("worker_launch_time_ms", "worker_launched_time_ms", "start_time_ms", "end_time_ms")
        times = (milliseconds(worker.get(name)) for name in names)
        job = worker["worker_id"][: 2 * ids.JOB] if worker["worker_id"].endswith("f" * 24) else None
        add(
            "workers",
            (
                worker["worker_id"], as_text(worker["node_id"]), as_text(worker["worker_type"]), job,
                as_text(worker["ip"]),
                as_text(worker["exit_type"]), as_text(worker.get("exit_detail")), worker["pid"] or None, *times,
                ns_of_ms(worker.get("start_time_ms")), ns_of_ms(worker.get("end_time_ms")),
            ),
        )  # fmt: skip


def _nodes(add: Add, body: Any, ns: int) -> None:
    for node in listed(body):
        add(
            "node_definitions",
            (
                node["node_id"], as_text(node["node_ip"]), None, as_text(node["node_name"]), None, None,
                as_json(node["labels"]), as_json(node["resources_total"]), node["is_head_node"] or None,
                ns_of_ms(node.get("start_time_ms")),
            ),
        )  # fmt: skip


def _hosts(add: Add, body: Any, ns: int) -> None:
    """Ray's events do not name a node's host before 2.54."""
    for node in body["data"]["summary"]:
        raylet = node.get("raylet") or {}
        if raylet.get("nodeId") and raylet.get("nodeManagerHostname"):
            add("node_definitions", (raylet["nodeId"], None, raylet["nodeManagerHostname"], *[None] * 7))


_READERS: dict[str, Callable[[Add, Any, int], None]] = {
    "/api/jobs": _jobs,
    "/api/v0/placement_groups": _placement_groups,
    "/api/v0/workers": _workers,
    "/api/v0/nodes": _nodes,
    "/nodes": _hosts,
}
