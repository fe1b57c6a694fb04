"""What the dashboard's answers add to the tables: the things that Ray does not export as events."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from rayhistory import ids
from rayhistory.events.tables import JOB_RANKS

Add = Callable[[str, tuple[object, ...]], None]


def add_rows(add: Add, uri: str, body: object, ns: int) -> tuple[str, str] | None:
    """Adds what an answer says about jobs, placement groups, workers and nodes; other answers are kept as they are."""
    path = uri.partition("?")[0].rstrip("/")
    reader = _READERS.get(path)
    if reader is None:
        return None
    try:
        reader(add, body, ns)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return "unexpected answer of the dashboard", f"{uri}: {error!r}"
    return None


def add_export(add: Add, line: object, ns: int) -> tuple[str, str] | None:
    """A line of an export file: of submitted jobs, what the dashboard says of them, at the time of the change."""
    try:
        if line["source_type"] == "EXPORT_SUBMISSION_JOB":  # type: ignore[index]
            _exported_job(add, line["event_data"], int(float(line["timestamp"]) * 1e9) or ns)  # type: ignore[index]
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return "unexpected export record", repr(error)
    return None


def _exported_job(add: Add, job: dict[str, Any], ns: int) -> None:
    runtime_env = job.get("runtime_env_json") or ""
    exit_code = job.get("driver_exit_code")
    add(
        "submission_jobs",
        (
            job["submission_job_id"], _text(job.get("entrypoint")), runtime_env if runtime_env != "{}" else None,
            _text(job.get("driver_agent_http_address")), _text(job.get("driver_node_id")), None,
            _json(job.get("metadata")), _number(job.get("start_time")),
            JOB_RANKS.get(job["status"], 1), ns, _text(job["status"]), _text(job.get("message")),
            _text(job.get("error_type")),
            _number(job.get("end_time")), int(exit_code) if exit_code is not None else None,
        ),
    )  # fmt: skip


def _number(value: object) -> int | None:
    return int(value) or None if isinstance(value, int | str) and value else None


def _list_result(body: Any) -> Iterable[dict[str, Any]]:
    return body["data"]["result"]["result"] or []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _json(value: object) -> str | None:
    return msgspec.json.encode(value, order="sorted").decode() if value else None


def _jobs(add: Add, body: Any, ns: int) -> None:
    for job in body:
        if job["type"] == "SUBMISSION" and job["submission_id"]:
            add(
                "submission_jobs",
                (
                    job["submission_id"], _text(job["entrypoint"]), _json(job["runtime_env"]),
                    _text(job.get("driver_agent_http_address")), _text(job.get("driver_node_id")),
                    _text(job["job_id"]), _json(job["metadata"]), job["start_time"],
                    JOB_RANKS.get(job["status"], 1), ns, _text(job["status"]), _text(job["message"]),
                    _text(job["error_type"]),
                    job["end_time"] or None, job.get("driver_exit_code"),
                ),
            )  # fmt: skip
        elif job["type"] == "DRIVER" and job["job_id"]:
            driver = job.get("driver_info") or {}
            started, ended = job["start_time"], job["end_time"]
            add(
                "driver_jobs",
                (
                    job["job_id"], None, _text(job["entrypoint"]), _json(job["runtime_env"]), None,
                    int(driver["pid"]) if driver.get("pid") else None, _json(job["metadata"]),
                    started * 1_000_000 if started else None, ended * 1_000_000 if ended else None,
                ),
            )  # fmt: skip


def _placement_groups(add: Add, body: Any, ns: int) -> None:
    for group in _list_result(body):
        add(
            "placement_groups",
            (
                group["placement_group_id"], _text(group["name"]), _text(group["creator_job_id"]),
                group.get("is_detached"), None, None,
                ns, group["state"], _json(group.get("bundles")), _json(group.get("stats")),
                _json(group.get("topology_strategy")), _json(group.get("topology_assignments")),
            ),
        )  # fmt: skip


def _workers(add: Add, body: Any, ns: int) -> None:
    for worker in _list_result(body):
        ended = worker.get("end_time_ms") or None
        times = (
            _ms(worker.get(name)) for name in ("worker_launch_time_ms", "worker_launched_time_ms", "start_time_ms")
        )
        started = _ms(worker.get("start_time_ms"))
        job = worker["worker_id"][: 2 * ids.JOB] if worker["worker_id"].endswith("f" * 24) else None
        add(
            "workers",
            (
                worker["worker_id"], _text(worker["node_id"]), _text(worker["worker_type"]), job, _text(worker["ip"]),
                _text(worker["exit_type"]), _text(worker.get("exit_detail")), worker["pid"] or None, *times, ended,
                started * 1_000_000 if started else None, ended * 1_000_000 if ended else None,
            ),
        )  # fmt: skip


def _ms(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < 2**62 else None


def _nodes(add: Add, body: Any, ns: int) -> None:
    for node in _list_result(body):
        started = node.get("start_time_ms") or None
        add(
            "node_definitions",
            (
                node["node_id"], _text(node["node_ip"]), None, _text(node["node_name"]), None, None,
                _json(node["labels"]), _json(node["resources_total"]), node["is_head_node"] or None,
                started * 1_000_000 if started else None,
            ),
        )  # fmt: skip


_READERS: dict[str, Callable[[Add, Any, int], None]] = {
    "/api/jobs": _jobs,
    "/api/v0/placement_groups": _placement_groups,
    "/api/v0/workers": _workers,
    "/api/v0/nodes": _nodes,
}
