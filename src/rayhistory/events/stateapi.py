"""A cluster of which only the dashboard has told: there its lists take the place of events.

Beside a collector they are kept as they are, because events say the same, and more exactly.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from rayhistory.events.exports import log_columns, pause_columns
from rayhistory.events.snapshots import Add, add_rows, as_json, as_text, listed
from rayhistory.events.tables import TASK_STATES
from rayhistory.events.times import ns_of_ms

Problem = tuple[str, str]


def add_only_answer(add: Add, uri: str, body: object, ns: int) -> Problem | None:
    """Adds all that an answer says, and tells when the dashboard has not told all."""
    path = uri.partition("?")[0].rstrip("/")
    problem = add_rows(add, uri, body, ns)
    try:
        if reader := _READERS.get(path):
            reader(add, body, ns)
        return problem or (_cut_short(path, body) if path.startswith("/api/v0/") else None)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        return "unexpected answer of the dashboard", f"{uri}: {error!r}"


def is_cut_short(body: Any) -> bool:
    """Whether there is more than the dashboard lists at once."""
    result = body["data"]["result"]
    return _missing(result) > 0


def _cut_short(path: str, body: Any) -> Problem | None:
    result = body.get("data", {}).get("result") if isinstance(body, dict) else None
    if not isinstance(result, dict) or not isinstance(result.get("result"), list):
        return None
    if missing := _missing(result):
        return "list that the dashboard cut short", f"{path}: {len(result['result'])} told, {missing} not"
    if warning := result.get("partial_failure_warning"):
        return "list that the dashboard could not complete", f"{path}: {warning}"
    return None


def _missing(result: dict[str, Any]) -> int:
    unseen = (result.get("total") or 0) - (result.get("num_after_truncation") or 0)
    return max(0, unseen, (result.get("num_filtered") or 0) - len(result["result"]))


def _tasks(add: Add, body: Any, ns: int) -> None:
    for task in listed(body):
        key = (task["task_id"], task["attempt_number"], as_text(task["job_id"]))
        reached = _times(task)
        environment = (task.get("runtime_env_info") or {}).get("serialized_runtime_env")
        fallback = task.get("fallback_strategy") or {}
        add(
            "task_definitions",
            (
                *key, as_text(task.get("type")), as_text(task.get("name")), as_text(task.get("func_or_class_name")),
                as_text(task.get("language")), as_text(task.get("parent_task_id")), as_text(task.get("actor_id")),
                as_text(task.get("placement_group_id")), as_json(task.get("required_resources")),
                as_json(task.get("label_selector")), as_json(fallback) if fallback.get("options") else None,
                as_text(environment), as_text(task.get("call_site")), next(filter(None, reached), ns),
            ),
        )  # fmt: skip
        failed = task.get("error_type") or task.get("error_message")
        error = (reached[-1] or ns, as_text(task.get("error_type")), as_text(task.get("error_message")))
        add(
            "task_updates",
            (
                *key, as_text(task.get("node_id")), as_text(task.get("worker_id")), task.get("worker_pid") or None,
                None, *pause_columns(task.get("is_debugger_paused"), ns), *log_columns(task.get("task_log_info") or {}),
                *(error if failed else (None,) * 3), *reached,
            ),
        )  # fmt: skip
        if spans := _spans(task.get("profiling_data") or {}):
            component = [as_text(task["profiling_data"].get(n)) for n in ("component_type", "component_id")]
            add("profile_events", (*key, *component, as_text(task["profiling_data"].get("node_ip_address")), spans))


def _times(task: dict[str, Any]) -> list[int | None]:
    times = {each["state"]: _ns(each["created_ms"]) for each in task.get("events") or []}
    state = task.get("state")
    if state in TASK_STATES and state not in times:
        told = map(task.get, ("end_time_ms", "start_time_ms", "creation_time_ms"))
        times[state] = next(filter(None, map(ns_of_ms, told)), 1_000_000)
    return [times.get(state) for state in TASK_STATES]


def _ns(ms: float) -> int:
    """A float of milliseconds has no room for nanoseconds: the whole ones must stay as they are."""
    return int(ms) * 1_000_000 + round((ms - int(ms)) * 1_000_000)


def _spans(profile: dict[str, Any]) -> str | None:
    return as_json(
        [
            {
                "eventName": span["event_name"],
                "startTime": str(_ns(span["start_time"])),
                "endTime": str(_ns(span["end_time"])),
                "extraData": msgspec.json.encode(span.get("extra_data") or {}).decode(),
            }
            for span in profile.get("events") or []
        ]
    )


def _dashboard_actors(add: Add, body: Any, ns: int) -> None:
    """Where each actor is, and since when. Of restarts only the number is told: they are put before its start."""
    for actor in body["data"]["actors"].values():
        actor_id, state, place = actor["actorId"], actor["state"], actor.get("address") or {}
        where = (as_text(place.get("nodeId")), as_text(place.get("workerId")), actor.get("pid") or None)
        more = (place.get("port") or None, as_text(actor.get("reprName")), None, None)
        started, ended = ns_of_ms(actor.get("startTime")), ns_of_ms(actor.get("endTime"))
        if started:
            add("actor_transitions", (actor_id, started, "ALIVE", *where, *more))
        for number in range(min(int(actor.get("numRestarts") or 0), 10_000)):
            add("actor_transitions", (actor_id, (started or ns) - 1 - number, "RESTARTING", *where, *more))
        if state != "ALIVE":
            at = ended if state == "DEAD" and ended else ns
            add("actor_transitions", (actor_id, at, state, *where, *more))


def _actors(add: Add, body: Any, ns: int) -> None:
    for actor in listed(body):
        add(
            "actor_definitions",
            (
                actor["actor_id"], as_text(actor["job_id"]), as_text(actor.get("name")),
                as_text(actor.get("ray_namespace")), as_text(actor.get("class_name")),
                as_text(actor.get("placement_group_id")), as_text(actor.get("serialized_runtime_env")),
                as_text(actor.get("call_site")), None, actor.get("is_detached"),
                as_json(actor.get("required_resources")), as_json(actor.get("label_selector")),
                as_json(actor.get("fallback_strategy")), ns,
            ),
        )  # fmt: skip
        if actor["state"] == "DEAD":
            cause = as_json(actor.get("death_cause"))
            add("actor_transitions", (actor["actor_id"], ns, "DEAD", *(None,) * 6, cause))


def _nodes(add: Add, body: Any, ns: int) -> None:
    for node in listed(body):
        started, ended = ns_of_ms(node.get("start_time_ms")), ns_of_ms(node.get("end_time_ms"))
        if started:
            add("node_transitions", (node["node_id"], started, "ALIVE", None, None, None))
        if node["state"] == "DEAD":
            add(
                "node_transitions",
                (node["node_id"], ended or ns, "DEAD", None, None, as_text(node.get("state_message"))),
            )


def _jobs(add: Add, body: Any, ns: int) -> None:
    """The drivers of jobs that were submitted; of others the usual reader has told."""
    for job in body:
        driver = job.get("driver_info") or {}
        if job["type"] == "SUBMISSION" and job.get("job_id"):
            pid = int(driver["pid"]) if driver.get("pid") else None
            finished, seen = ns_of_ms(job.get("end_time")), ns_of_ms(job.get("start_time")) or ns
            node = as_text(job.get("driver_node_id"))
            add("driver_jobs", (job["job_id"], node, None, None, job["submission_id"], pid, None, None, finished, seen))


_READERS: dict[str, Callable[[Add, Any, int], None]] = {
    "/api/jobs": _jobs,
    "/api/v0/tasks": _tasks,
    "/api/v0/actors": _actors,
    "/logical/actors": _dashboard_actors,
    "/api/v0/nodes": _nodes,
}
