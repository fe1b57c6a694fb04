"""What Ray's export files say: each line is a thing as it was when it changed, with ids as base64 and times as text."""

from collections.abc import Callable
from typing import Any

from rayhistory import ids
from rayhistory.events.snapshots import Add, as_json, as_text, number
from rayhistory.events.spans import camel_spans
from rayhistory.events.tables import JOB_RANKS, TASK_STATES
from rayhistory.events.times import milliseconds, ns_of_ms


def add_export(add: Add, line: object, ns: int) -> tuple[str, str] | None:
    """A line of an export file; what is not of tasks, actors, nodes or jobs is left to who reads the file.

    Lines tell whole seconds. `ns` is the time of the record in which the line was kept, and finer if it is in the same
    second: there lines that follow each other have times that do.
    """
    try:
        reader = _READERS.get(line["source_type"])  # type: ignore[index]
        if reader is not None:
            told = int(float(line["timestamp"]) * 1e9)  # type: ignore[index]
            reader(add, line["event_data"], ns if 0 <= ns - told < 10**9 else told or ns)  # type: ignore[index]
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        return "unexpected export record", repr(error)
    return None


def _task(add: Add, task: dict[str, Any], ns: int) -> None:
    task_id, attempt, job = _id(task["task_id"], ids.TASK), task["attempt_number"], _id(task["job_id"], ids.JOB)
    if info := task.get("task_info"):
        function = as_text(info.get("func_or_class_name"))
        environment = (info.get("runtime_env_info") or {}).get("serialized_runtime_env")
        actor = ids.to_hex(info.get("actor_id"), ids.ACTOR)
        add(
            "task_definitions",
            (
                task_id, attempt, job, as_text(info.get("type")), as_text(info.get("name")) or function, function,
                as_text(info.get("language")), ids.to_hex(info.get("parent_task_id"), ids.TASK),
                actor or (ids.actor_of_task(task_id) if info.get("type") == "ACTOR_CREATION_TASK" else None),
                ids.to_hex(info.get("placement_group_id"), ids.PLACEMENT_GROUP),
                as_json(info.get("required_resources")), as_json(info.get("label_selector")), None,
                as_text(environment), as_text(info.get("call_site")), ns,
            ),
        )  # fmt: skip
    if updates := task.get("state_updates"):
        times = {int(number): int(at) for number, at in (updates.get("state_ts_ns") or {}).items()}
        reached = [times.get(number) for number in range(1, len(TASK_STATES) + 1)]
        error, log = updates.get("error_info"), updates.get("task_log_info") or {}
        add(
            "task_updates",
            (
                task_id, attempt, job, ids.to_hex(updates.get("node_id"), ids.NODE),
                ids.to_hex(updates.get("worker_id"), ids.WORKER), updates.get("worker_pid") or None,
                as_text(updates.get("actor_repr_name")), *pause_columns(updates.get("is_debugger_paused"), ns),
                *log_columns(log),
                *((reached[-1] or ns, as_text(error.get("error_type")), as_text(error.get("error_message")))
                  if error else (None,) * 3),
                *reached,
            ),
        )  # fmt: skip
    profile = task.get("profile_events") or {}
    if spans := as_json(profile.get("events")):
        add(
            "profile_events",
            (
                task_id, attempt, job, as_text(profile.get("component_type")),
                ids.any_to_hex(profile.get("component_id") or "") or None, as_text(profile.get("node_ip_address")),
                camel_spans(spans),
            ),
        )  # fmt: skip


def pause_columns(paused: object, ns: int) -> tuple[int | None, int | None]:
    """When the debugger held the task, and when it let it go: what was told at this time."""
    return ns if paused is True else None, ns if paused is False else None


def log_columns(log: dict[str, Any]) -> tuple[object, ...]:
    """0 and "" mean unset, but for a start of 0 beside a file."""
    out, err = as_text(log.get("stdout_file")), as_text(log.get("stderr_file"))
    return (
        out,
        err,
        log.get("stdout_start") if out else log.get("stdout_start") or None,
        log.get("stdout_end") or None,
        log.get("stderr_start") if err else log.get("stderr_start") or None,
        log.get("stderr_end") or None,
    )


def _actor(add: Add, actor: dict[str, Any], ns: int) -> None:
    actor_id = _id(actor["actor_id"], ids.ACTOR)
    add(
        "actor_definitions",
        (
            actor_id, ids.to_hex(actor["job_id"], ids.JOB), as_text(actor.get("name")),
            as_text(actor.get("ray_namespace")), as_text(actor.get("class_name")),
            ids.to_hex(actor.get("placement_group_id"), ids.PLACEMENT_GROUP),
            as_text(actor.get("serialized_runtime_env")), as_text(actor.get("call_site")), None,
            actor.get("is_detached"), as_json(actor.get("required_resources")), as_json(actor.get("label_selector")),
            None, ns,
        ),
    )  # fmt: skip
    cause = as_json(_hex_ids(actor.get("death_cause"))) if actor["state"] == "DEAD" else None
    add(
        "actor_transitions",
        (
            actor_id, ns, actor["state"], ids.to_hex(actor.get("node_id"), ids.NODE), None, actor.get("pid") or None,
            None, as_text(actor.get("repr_name")), None, cause,
        ),
    )  # fmt: skip


def _node(add: Add, node: dict[str, Any], ns: int) -> None:
    node_id = _id(node["node_id"], ids.NODE)
    started, ended = ns_of_ms(number(node.get("start_time_ms"))), ns_of_ms(number(node.get("end_time_ms")))
    dead = node["state"] == "DEAD"
    death = (node.get("death_info") or {}) if dead else {}
    add(
        "node_definitions",
        (
            node_id, as_text(node.get("node_manager_address")), None, as_text(node.get("node_name")), None, None,
            as_json(node.get("labels")), as_json(node.get("resources_total")), node.get("is_head_node") or None,
            started,
        ),
    )  # fmt: skip
    at = ended if dead else started
    change = (as_text(death.get("reason")), as_text(death.get("reason_message")))
    add("node_transitions", (node_id, at or ns, node["state"], None, *change))


def _driver_job(add: Add, job: dict[str, Any], ns: int) -> None:
    config = job.get("config") or {}
    metadata = config.get("metadata") or {}
    environment = (config.get("runtime_env_info") or {}).get("serialized_runtime_env")
    add(
        "driver_jobs",
        (
            _id(job["job_id"], ids.JOB), None, as_text(job.get("entrypoint")),
            as_text(environment) if environment != "{}" else None, as_text(metadata.get("job_submission_id")),
            number(job.get("driver_pid")), as_json(metadata),
            ns_of_ms(number(job.get("start_time"))), ns_of_ms(number(job.get("end_time"))), ns,
        ),
    )  # fmt: skip


def _submission_job(add: Add, job: dict[str, Any], ns: int) -> None:
    runtime_env = job.get("runtime_env_json") or ""
    exit_code = job.get("driver_exit_code")
    add(
        "submission_jobs",
        (
            job["submission_job_id"], as_text(job.get("entrypoint")), runtime_env if runtime_env != "{}" else None,
            as_text(job.get("driver_agent_http_address")), as_text(job.get("driver_node_id")), None,
            as_json(job.get("metadata")), milliseconds(number(job.get("start_time"))),
            JOB_RANKS.get(job["status"], 1), ns, as_text(job["status"]), as_text(job.get("message")),
            as_text(job.get("error_type")),
            milliseconds(number(job.get("end_time"))), int(exit_code) if exit_code is not None else None,
        ),
    )  # fmt: skip


def _hex_ids(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {
        key: ids.any_to_hex(item) if key.endswith("_id") and isinstance(item, str) else _hex_ids(item)
        for key, item in value.items()
    }


def _id(value: object, size: int) -> str:
    found = ids.to_hex(value, size)
    if found is None:
        raise ValueError(f"not an id: {value!r}")
    return found


_READERS: dict[str, Callable[[Add, dict[str, Any], int], None]] = {
    "EXPORT_TASK": _task,
    "EXPORT_ACTOR": _actor,
    "EXPORT_NODE": _node,
    "EXPORT_DRIVER_JOB": _driver_job,
    "EXPORT_SUBMISSION_JOB": _submission_job,
}
