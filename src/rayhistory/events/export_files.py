"""Rows of Ray's export files. Each line has the state of an entity when it changed, with ids as base64."""

from collections.abc import Callable, Mapping
from typing import Any

from rayhistory import ids
from rayhistory.events.dashboard_responses import as_int, as_json, as_text
from rayhistory.events.profile_spans import camel_spans
from rayhistory.events.row_buffer import MALFORMED_ERRORS, Anomaly, RowBuffer
from rayhistory.events.table_columns import JOB_RANKS, TASK_STATES, state_column
from rayhistory.events.times import ms_to_ns, valid_ms
from rayhistory.gaps import GapCode

_SECOND_NS = 10**9


def add_export_record(rows: RowBuffer, line: Any, ns: int) -> Anomaly | None:
    """Add a line about a task, an actor, a node or a job. Other lines have no rows.

    Lines have whole seconds. `ns` is the time when the collector read the line. It is used if it is in the same second,
    so that successive lines have ascending times.
    """
    try:
        reader = _READERS.get(line["source_type"])
        if reader is not None:
            line_ns = int(float(line["timestamp"]) * 1e9)
            reader(rows, line["event_data"], ns if 0 <= ns - line_ns < _SECOND_NS else line_ns or ns)
    except MALFORMED_ERRORS as error:
        return GapCode.EXPORT_RECORD_UNEXPECTED, repr(error)
    return None


def _add_task(rows: RowBuffer, task: dict[str, Any], ns: int) -> None:
    task_id = _id(task["task_id"], ids.TASK)
    key = {"task_id": task_id, "attempt": task["attempt_number"], "job_id": _id(task["job_id"], ids.JOB)}
    if info := task.get("task_info"):
        function = as_text(info.get("func_or_class_name"))
        environment = (info.get("runtime_env_info") or {}).get("serialized_runtime_env")
        actor = ids.to_hex(info.get("actor_id"), ids.ACTOR)
        rows.add(
            "task_definitions",
            **key,
            type=as_text(info.get("type")),
            name=as_text(info.get("name")) or function,
            func_or_class_name=function,
            language=as_text(info.get("language")),
            parent_task_id=ids.to_hex(info.get("parent_task_id"), ids.TASK),
            actor_id=actor or (ids.actor_of_task(task_id) if info.get("type") == "ACTOR_CREATION_TASK" else None),
            placement_group_id=ids.to_hex(info.get("placement_group_id"), ids.PLACEMENT_GROUP),
            required_resources=as_json(info.get("required_resources")),
            label_selector=as_json(info.get("label_selector")),
            runtime_env=as_text(environment),
            call_site=as_text(info.get("call_site")),
            defined_ns=ns,
        )
    if updates := task.get("state_updates"):
        times = {int(number): int(at) for number, at in (updates.get("state_ts_ns") or {}).items()}
        state_times = {state_column(state): times.get(number) for number, state in enumerate(TASK_STATES, 1)}
        error = updates.get("error_info") or {}
        rows.add(
            "task_updates",
            **key,
            **place_columns(
                ids.to_hex(updates.get("node_id"), ids.NODE),
                ids.to_hex(updates.get("worker_id"), ids.WORKER),
                updates.get("worker_pid"),
                {state: times.get(number) for number, state in enumerate(TASK_STATES, 1)},
                ns,
            ),
            actor_repr_name=as_text(updates.get("actor_repr_name")),
            **pause_columns(updates.get("is_debugger_paused"), ns),
            **log_columns(updates.get("task_log_info") or {}),
            error_ns=(times.get(len(TASK_STATES)) or ns) if error else None,
            error_type=as_text(error.get("error_type")),
            error_message=as_text(error.get("error_message")),
            **state_times,
        )
    profile = task.get("profile_events") or {}
    if spans := as_json(profile.get("events")):
        rows.add(
            "profile_events",
            **key,
            component_type=as_text(profile.get("component_type")),
            component_id=ids.any_to_hex(profile.get("component_id") or "") or None,
            node_ip=as_text(profile.get("node_ip_address")),
            spans=camel_spans(spans),
        )


def place_columns(
    node: str | None, worker: str | None, pid: int | None, times: Mapping[str, int | None], ns: int
) -> dict[str, object]:
    """Return node, worker and pid of an attempt from one line of an export file."""
    placed, running = times.get("SUBMITTED_TO_WORKER"), times.get("RUNNING")
    if node or worker:
        return {"placed_ns": placed or running or ns, "node_id": node, "worker_id": worker, "worker_pid": pid or None}
    return {"process_ns": running or ns, "process_pid": pid} if pid else {}


def pause_columns(paused: object, ns: int) -> dict[str, int | None]:
    """Return the time of a report as the time at which the debugger paused or resumed the task."""
    return {"paused_ns": ns if paused is True else None, "resumed_ns": ns if paused is False else None}


def log_columns(log: dict[str, Any]) -> dict[str, object]:
    """Return the location of a task's output. 0 and "" mean unset, but a start of 0 is valid if there is a file."""
    out, err = as_text(log.get("stdout_file")), as_text(log.get("stderr_file"))
    return {
        "stdout_file": out,
        "stderr_file": err,
        "stdout_start": log.get("stdout_start") if out else log.get("stdout_start") or None,
        "stdout_end": log.get("stdout_end") or None,
        "stderr_start": log.get("stderr_start") if err else log.get("stderr_start") or None,
        "stderr_end": log.get("stderr_end") or None,
    }


def _add_actor(rows: RowBuffer, actor: dict[str, Any], ns: int) -> None:
    actor_id = _id(actor["actor_id"], ids.ACTOR)
    rows.add(
        "actor_definitions",
        actor_id=actor_id,
        job_id=ids.to_hex(actor["job_id"], ids.JOB),
        name=as_text(actor.get("name")),
        ray_namespace=as_text(actor.get("ray_namespace")),
        class_name=as_text(actor.get("class_name")),
        placement_group_id=ids.to_hex(actor.get("placement_group_id"), ids.PLACEMENT_GROUP),
        runtime_env=as_text(actor.get("serialized_runtime_env")),
        call_site=as_text(actor.get("call_site")),
        is_detached=actor.get("is_detached"),
        required_resources=as_json(actor.get("required_resources")),
        label_selector=as_json(actor.get("label_selector")),
        defined_ns=ns,
    )
    rows.add(
        "actor_transitions",
        actor_id=actor_id,
        ns=ns,
        state=actor["state"],
        node_id=ids.to_hex(actor.get("node_id"), ids.NODE),
        worker_id=None,
        pid=actor.get("pid") or None,
        port=None,
        repr_name=as_text(actor.get("repr_name")),
        restart_reason=None,
        death_cause=as_json(_hex_ids(actor.get("death_cause"))) if actor["state"] == "DEAD" else None,
        reported_by="export file",
    )


def _add_node(rows: RowBuffer, node: dict[str, Any], ns: int) -> None:
    node_id = _id(node["node_id"], ids.NODE)
    started, ended = ms_to_ns(as_int(node.get("start_time_ms"))), ms_to_ns(as_int(node.get("end_time_ms")))
    is_dead = node["state"] == "DEAD"
    death = (node.get("death_info") or {}) if is_dead else {}
    rows.add(
        "node_definitions",
        node_id=node_id,
        node_ip=as_text(node.get("node_manager_address")),
        node_name=as_text(node.get("node_name")),
        labels=as_json(node.get("labels")),
        resources=as_json(node.get("resources_total")),
        is_head=node.get("is_head_node") or None,
        start_ns=started,
    )
    rows.add(
        "node_transitions",
        node_id=node_id,
        ns=(ended if is_dead else started) or ns,
        state=node["state"],
        sub_state=None,
        death_reason=as_text(death.get("reason")),
        death_message=as_text(death.get("reason_message")),
    )


def _add_driver_job(rows: RowBuffer, job: dict[str, Any], ns: int) -> None:
    config = job.get("config") or {}
    metadata = config.get("metadata") or {}
    environment = (config.get("runtime_env_info") or {}).get("serialized_runtime_env")
    rows.add(
        "driver_jobs",
        job_id=_id(job["job_id"], ids.JOB),
        entrypoint=as_text(job.get("entrypoint")),
        runtime_env=as_text(environment) if environment != "{}" else None,
        submission_id=as_text(metadata.get("job_submission_id")),
        driver_pid=as_int(job.get("driver_pid")),
        metadata=as_json(metadata),
        created_ns=ms_to_ns(as_int(job.get("start_time"))),
        finished_ns=ms_to_ns(as_int(job.get("end_time"))),
        seen_ns=ns,
    )


def _add_submission_job(rows: RowBuffer, job: dict[str, Any], ns: int) -> None:
    runtime_env = job.get("runtime_env_json") or ""
    exit_code = job.get("driver_exit_code")
    rows.add(
        "submission_jobs",
        submission_id=job["submission_job_id"],
        entrypoint=as_text(job.get("entrypoint")),
        runtime_env=runtime_env if runtime_env != "{}" else None,
        driver_agent_http_address=as_text(job.get("driver_agent_http_address")),
        driver_node_id=as_text(job.get("driver_node_id")),
        metadata=as_json(job.get("metadata")),
        start_ms=valid_ms(as_int(job.get("start_time"))),
        rank=JOB_RANKS.get(job["status"], 1),
        seen_ns=ns,
        status=as_text(job["status"]),
        message=as_text(job.get("message")),
        error_type=as_text(job.get("error_type")),
        end_ms=valid_ms(as_int(job.get("end_time"))),
        driver_exit_code=int(exit_code) if exit_code is not None else None,
    )


def _hex_ids(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {
        key: ids.any_to_hex(item) if key.endswith("_id") and isinstance(item, str) else _hex_ids(item)
        for key, item in value.items()
    }


def _id(value: object, size: int) -> str:
    hex_id = ids.to_hex(value, size)
    if hex_id is None:
        raise ValueError(f"not an id: {value!r}")
    return hex_id


_READERS: dict[str, Callable[[RowBuffer, dict[str, Any], int], None]] = {
    "EXPORT_TASK": _add_task,
    "EXPORT_ACTOR": _add_actor,
    "EXPORT_NODE": _add_node,
    "EXPORT_DRIVER_JOB": _add_driver_job,
    "EXPORT_SUBMISSION_JOB": _add_submission_job,
}
