"""Read the input of a diagnosis: tables, log tails and metrics.

The number of rows and the length of texts are limited here.
"""

from typing import Any

from rayhistory.diagnosis.env_redaction import env_values
from rayhistory.diagnosis.lenient_json import members, numbers, numbers_of, objects, texts
from rayhistory.diagnosis.log_tails import has_files, read_driver_outputs, read_exit_statuses, read_stderr_tails
from rayhistory.diagnosis.session_facts import (
    ENDED,
    RUNNING,
    VANISHED,
    ActorFacts,
    JobFacts,
    NodeFacts,
    NodeSamples,
    PlacementGroupFacts,
    PlatformEvent,
    SessionFacts,
    WorkerFacts,
)
from rayhistory.diagnosis.tracebacks import excerpt
from rayhistory.index.query.failure_groups import read_failure_groups, read_waiting_groups
from rayhistory.index.query.long_tasks import read_long_tasks
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.query.query import Filter, Query, Row
from rayhistory.index.query.state_timeline import read_state_timeline
from rayhistory.index.query.task_times import read_task_times
from rayhistory.logs.source import LogSource

MAX_JOBS = 1_000
MAX_NODES = 5_000
MAX_WORKERS = 2_000
MAX_ACTORS = 2_000
_MAX_TRANSITIONS = 20_000
_MAX_PLATFORM_EVENTS = 1_000
_MAX_PLACEMENT_GROUPS = 1_000
_MAX_TEXT, _MAX_LINES = 20_000, 1_000
_MAX_TASK_ENVIRONMENTS = 1_000
_FAILED_EXITS = ("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY", "USER_ERROR")


async def gather_facts(
    index: OpenIndex, logs: LogSource | None, samples: dict[str, NodeSamples] | None, state: str
) -> SessionFacts:
    """Return the facts of a session. Rules that need missing logs or samples are skipped."""
    workers, unlisted = await _workers(index)
    jobs = await _jobs(index)
    groups = await read_failure_groups(index)
    times = await read_task_times(index)
    has_logs = logs is not None and await has_files(logs)
    if logs is not None and has_logs:
        workers = await read_exit_statuses(logs, await read_stderr_tails(logs, workers))
        jobs = await read_driver_outputs(logs, jobs)
    manifest = index.manifest
    return SessionFacts(
        state=state,
        started_ms=manifest.first_ns // 1_000_000 if manifest.first_ns else None,
        ended_ms=max(manifest.last_ns or 0, manifest.closing.ns if manifest.closing else 0) // 1_000_000 or None,
        jobs=jobs,
        nodes=await _nodes(index),
        workers=workers,
        actors=await _actors(index),
        failures=groups,
        waiting=await read_waiting_groups(index),
        placement_groups=await _placement_groups(index),
        platform_events=await _platform_events(index),
        samples=samples or {},
        functions=times.functions,
        by_node=times.by_node,
        open_tasks=times.open_tasks,
        long_tasks=await read_long_tasks(index),
        states=await read_state_timeline(index),
        times=times.session,
        gaps={row["kind"]: row["sum"] or 0 for row in await index.group(Query("gaps"), ("kind",), summed="count")},
        has_logs=has_logs,
        has_metrics=bool(samples),
        env_values=await _env_values(index),
        unlisted_workers=unlisted,
    )


def session_state(index: OpenIndex) -> str:
    """Return the state of the session to which an index belongs."""
    closing = index.manifest.closing
    if closing is None or closing.open:
        return RUNNING
    return ENDED if closing.clean else VANISHED


async def _env_values(index: OpenIndex) -> list[str]:
    """Return the values of environment variables of jobs, actors and failed tasks.

    Texts of a diagnosis may contain them.
    """
    tables = (("jobs", MAX_JOBS), ("actors", MAX_ACTORS))
    rows = [row for table, limit in tables for row in await index.rows(Query(table, ("runtime_env",), limit=limit))]
    failed = Query("tasks", filters=(Filter("state", "=", "FAILED"),), limit=_MAX_TASK_ENVIRONMENTS)
    rows += await index.group(failed, ("runtime_env",))
    return env_values(row["runtime_env"] for row in rows)


async def _jobs(index: OpenIndex) -> list[JobFacts]:
    rows = await index.rows(Query("jobs", sort=("start_time",), limit=MAX_JOBS))
    drivers = await index.rows(
        Query("workers", ("job_id", "exit_type", "exit_detail", "end_time_ms"),
              (Filter("worker_type", "=", "DRIVER"),), limit=MAX_JOBS)
    )  # fmt: skip
    by_job = {row["job_id"]: row for row in drivers}
    return [_job(row, by_job.get(row["job_id"])) for row in rows]


def _job(row: Row, driver: Row | None) -> JobFacts:
    return JobFacts(
        type=row["type"],
        job_id=row["job_id"] or "",
        submission_id=row["submission_id"],
        status=row["status"] or "",
        message=(row["message"] or "")[-_MAX_TEXT:],
        error_type=row["error_type"],
        exit_code=row["driver_exit_code"],
        start_ms=row["start_time"],
        end_ms=row["end_time"],
        inferred=bool(row["closed_by_history"]),
        entrypoint=(row["entrypoint"] or "")[:500],
        driver_end_ms=driver["end_time_ms"] if driver else None,
        driver_exit=f"{driver['exit_type'] or ''}: {driver['exit_detail'] or ''}" if driver else "",
        node_id=row["at_node"],
    )


async def _nodes(index: OpenIndex) -> list[NodeFacts]:
    rows = await index.rows(Query("nodes", sort=("start_time_ms",), limit=MAX_NODES))
    return [
        NodeFacts(
            node_id=row["node_id"],
            ip=row["node_ip"] or "",
            is_head=bool(row["is_head"]),
            state=row["state"],
            message=(row["state_message"] or "")[:_MAX_TEXT],
            reason=_reason_of(row["state_message"] or ""),
            resources=numbers(row["resources"]),
            labels=texts(row["labels"]),
            start_ms=row["start_time_ms"],
            end_ms=row["end_time_ms"],
            inferred=bool(row["closed_by_history"]),
        )
        for row in rows
    ]


def _reason_of(message: str) -> str:
    for text, reason in (
        ("Expected termination", "EXPECTED_TERMINATION"),
        ("Terminated due to preemption", "AUTOSCALER_DRAIN_PREEMPTED"),
        ("Terminated due to idle", "AUTOSCALER_DRAIN_IDLE"),
    ):
        if message.startswith(text):
            return reason
    return "UNEXPECTED_TERMINATION"


async def _workers(index: OpenIndex) -> tuple[list[WorkerFacts], int]:
    failed = (Filter("exit_type", "in", _FAILED_EXITS), Filter("closed_by_history", "=", False))
    rows = await index.rows(Query("workers", filters=failed, sort=("end_time_ms",), limit=MAX_WORKERS))
    total = await index.count(Query("workers", filters=failed))
    intended = Filter("exit_type", "in", ("INTENDED_USER_EXIT", "INTENDED_SYSTEM_EXIT"))
    rows += await index.rows(Query("workers", filters=(intended,), sort=("-end_time_ms",), limit=MAX_WORKERS))
    return [_worker(row) for row in rows], max(0, total - MAX_WORKERS)


def _worker(row: Row) -> WorkerFacts:
    return WorkerFacts(
        worker_id=row["worker_id"],
        type=row["worker_type"] or "WORKER",
        exit_type=row["exit_type"] or "",
        exit_detail=(row["exit_detail"] or "")[:_MAX_TEXT],
        node_id=row["node_id"],
        ip=row["ip"] or "",
        pid=row["pid"],
        job_id=row["job_id"],
        end_ms=row["end_time_ms"],
        memory_used_bytes=row["memory_used_bytes"],
    )


async def _actors(index: OpenIndex) -> list[ActorFacts]:
    dead = (Filter("state", "=", "DEAD"), Filter("closed_by_history", "=", False), Filter("death_cause", "!=", None))
    rows = await index.rows(Query("actors", filters=dead, sort=("end_time_ms",), limit=MAX_ACTORS))
    listed = {row["actor_id"] for row in rows}
    restarted = Query("actors", filters=(Filter("num_restarts", ">", 0),), sort=("-num_restarts",), limit=MAX_ACTORS)
    rows += [row for row in await index.rows(restarted) if row["actor_id"] not in listed]
    changes = await index.rows(
        Query("actor_transitions", ("actor_id", "ns", "state", "worker_id"),
              (Filter("state", "in", ("ALIVE", "RESTARTING")),), ("ns",), _MAX_TRANSITIONS)
    )  # fmt: skip
    by_actor: dict[str, list[Row]] = {}
    for change in changes:
        by_actor.setdefault(change["actor_id"], []).append(change)
    return [_actor(row, by_actor.get(row["actor_id"], [])) for row in rows]


def _actor(row: Row, changes: list[Row]) -> ActorFacts:
    cause, context = _death_cause(row["death_cause"])
    workers = dict.fromkeys(change["worker_id"] for change in changes if change["worker_id"])
    last_worker = row["worker_id"] or context.get("worker_id")
    return ActorFacts(
        actor_id=row["actor_id"],
        class_name=row["class_name"] or "",
        name=row["name"] or "",
        job_id=row["job_id"] or "",
        state=row["state"],
        cause=cause,
        reason=str(context.get("reason") or ""),
        text=excerpt(
            str(context.get("error_message") or context.get("formatted_exception_string") or ""), _MAX_LINES, _MAX_TEXT
        ),
        owner_id=str(context.get("owner_id") or ""),
        restarts=row["num_restarts"] or 0,
        restart_times=tuple(change["ns"] // 1_000_000 for change in changes if change["state"] == "RESTARTING"),
        node_id=row["node_id"],
        worker_id=last_worker,
        workers=tuple(dict.fromkeys([*workers, *([last_worker] if last_worker else [])])),
        pid=row["pid"] or context.get("pid"),
        end_ms=row["end_time_ms"],
        inferred=bool(row["closed_by_history"]),
        never_started=context.get("never_started") is True,
    )


def _death_cause(text: str | None) -> tuple[str, dict[str, Any]]:
    cause = members(text)
    if not cause:
        return "", {}
    name, context = next(iter(cause.items()))
    return str(name), context if isinstance(context, dict) else {}


async def _placement_groups(index: OpenIndex) -> list[PlacementGroupFacts]:
    rows = await index.rows(Query("placement_groups", sort=("-seen_ns",), limit=_MAX_PLACEMENT_GROUPS))
    return [
        PlacementGroupFacts(
            group_id=row["placement_group_id"],
            job_id=row["creator_job_id"] or "",
            bundles=[numbers_of(bundle.get("unit_resources")) for bundle in objects(row["bundles"])],
            placed=_was_placed(row),
        )
        for row in rows
    ]


def _was_placed(row: Row) -> bool:
    latency = str(members(row["stats"]).get("end_to_end_creation_latency_us") or "0")
    on_nodes = any(bundle.get("node_id") for bundle in objects(row["bundles"]))
    return on_nodes or latency != "0" or row["state"] == "CREATED"


async def _platform_events(index: OpenIndex) -> list[PlatformEvent]:
    rows = await index.rows(Query("platform_events", sort=("-ns",), limit=_MAX_PLATFORM_EVENTS))
    return [event for row in rows if (event := _platform_event(row))]


def _platform_event(row: Row) -> PlatformEvent | None:
    body = members(row["body"])
    event = body.get("platformEvent", body)
    if not event or not isinstance(event, dict):
        return None
    return PlatformEvent(
        at_ms=(row["ns"] or 0) // 1_000_000,
        reason=str(event.get("reason") or "")[:200],
        object_name=str(event.get("objectName") or event.get("object_name") or "")[:200],
        message=str(event.get("message") or "")[:1000],
    )
