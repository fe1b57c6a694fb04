"""Events to rows: what each type of event says, in the columns of `tables`.

An id that is not one, or a state that is unknown, makes a row useless: the event is counted and set aside. Events of
tasks are nearly all there are, and are taken many at once (`taskrows`).
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw

from rayhistory import ids
from rayhistory.events import exports, snapshots, stateapi, taskrows, wire
from rayhistory.events.columns import Problem, Rows, json_text, odd_change
from rayhistory.events.tables import JOB_RANKS
from rayhistory.events.times import milliseconds, parse_ns


def add_events(out: Rows, events: Sequence[wire.Event], times: Sequence[int | None]) -> list[Problem]:
    """Adds what events say, each with its time; returns what was wrong with them."""
    lifecycles: list[wire.TaskLifecycle] = []
    lifecycle_times: list[int] = []
    definitions: list[wire.TaskDefinition] = []
    definition_times: list[int] = []
    profiles: list[wire.TaskProfile] = []
    problems: list[Problem] = []
    for event, time in zip(events, times, strict=True):
        ns = time or 0
        if lifecycle := event.task_lifecycle_event or event.task_execution_event:
            lifecycles.append(lifecycle)
            lifecycle_times.append(ns)
        elif definition := event.task_definition_event or event.actor_task_definition_event:
            if definition is event.actor_task_definition_event:
                definition.task_type = "ACTOR_TASK"
            definitions.append(definition)
            definition_times.append(ns)
        elif event.task_profile_events:
            profiles.append(event.task_profile_events)
        elif problem := _add_rarer(out, event, ns):
            problems.append(problem)
    problems += taskrows.add_lifecycles(out, lifecycles, lifecycle_times)
    problems += taskrows.add_definitions(out, definitions, definition_times)
    problems += taskrows.add_profiles(out, profiles)
    return problems


def _add_rarer(out: Rows, event: wire.Event, ns: int) -> Problem | None:
    for field, handler in _RARER.items():
        nested = getattr(event, field)
        if nested is not None and nested is not wire.NOTHING:
            return handler(out, nested, event, ns)
    return "unknown event type", event.event_type


def _actor_definition(out: Rows, event: wire.ActorDefinition, _: wire.Event, ns: int) -> Problem | None:
    actor_id = ids.to_hex(event.actor_id, ids.ACTOR)
    if actor_id is None:
        return "not an actor id", event.actor_id
    out.add(
        "actor_definitions",
        (
            actor_id,
            ids.to_hex(event.job_id, ids.JOB),
            event.name or None,
            event.ray_namespace or None,
            event.class_name or None,
            ids.to_hex(event.placement_group_id, ids.PLACEMENT_GROUP),
            event.serialized_runtime_env or None,
            event.call_site or None,
            ids.any_to_hex(event.parent_id) or None,
            event.is_detached,
            json_text(event.required_resources),
            json_text(event.label_selector),
            json_text(event.fallback_strategy),
            ns,
        ),
    )
    return None


def _actor_lifecycle(out: Rows, event: wire.ActorLifecycle, _: wire.Event, ns: int) -> Problem | None:
    actor_id = ids.to_hex(event.actor_id, ids.ACTOR)
    if actor_id is None:
        return "not an actor id", event.actor_id
    problem: Problem | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None or not change.state:
            problem = odd_change("actor", change.state, change.timestamp, at)
            continue
        out.add(
            "actor_transitions",
            (
                actor_id,
                at,
                change.state,
                ids.to_hex(change.node_id, ids.NODE),
                ids.to_hex(change.worker_id, ids.WORKER),
                change.pid or None,
                change.port or None,
                change.repr_name or None,
                (change.restart_reason or None) if change.state == "RESTARTING" else None,
                _death_cause(change.death_cause),
            ),
        )
    return problem


def _death_cause(raw: Raw) -> str | None:
    """As Ray's API has it: snake_case, and ids in hex."""
    if json_text(raw) is None:
        return None
    return msgspec.json.encode(_snake_case(msgspec.json.decode(raw))).decode()


def _snake_case(value: object) -> object:
    if isinstance(value, list):
        return [_snake_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, object] = {}
    for key, item in value.items():
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
        is_id = name.endswith("_id") and isinstance(item, str)
        result[name] = ids.any_to_hex(item) if is_id else _snake_case(item)
    return result


def _driver_job(out: Rows, event: wire.DriverJobDefinition, _: wire.Event, ns: int) -> Problem | None:
    job_id = ids.to_hex(event.job_id, ids.JOB)
    if job_id is None:
        return "not a job id", event.job_id
    config = event.config or wire.JobConfig()
    out.add(
        "driver_jobs",
        (
            job_id,
            ids.to_hex(event.driver_node_id, ids.NODE),
            event.entrypoint or None,
            config.serialized_runtime_env or None,
            config.metadata.get("job_submission_id") or None,
            event.driver_pid or None,
            msgspec.json.encode(config.metadata, order="sorted").decode() if config.metadata else None,
            None,
            None,
            ns,
        ),
    )
    return None


def _job_lifecycle(out: Rows, event: wire.JobLifecycle, _: wire.Event, ns: int) -> Problem | None:
    job_id = ids.to_hex(event.job_id, ids.JOB)
    if job_id is None:
        return "not a job id", event.job_id
    problem: Problem | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        created, finished = change.state == "CREATED", change.state == "FINISHED"
        if at is None or not (created or finished):
            problem = odd_change("job", change.state, change.timestamp, at)
            continue
        times = (at, None) if created else (None, at)
        out.add("driver_jobs", (job_id, None, None, None, None, None, None, *times, at))
    return problem


def _submission_job(out: Rows, event: wire.SubmissionJobDefinition, _: wire.Event, ns: int) -> Problem | None:
    if not event.submission_id:
        return "not a submission id", ""
    config = event.config or wire.JobConfig()
    metadata = msgspec.json.encode(config.metadata, order="sorted").decode() if config.metadata else None
    out.add(
        "submission_jobs",
        (
            event.submission_id, event.entrypoint or None, config.serialized_runtime_env or None,
            None, None, None, metadata, ns // 1_000_000 or None,
            None, None, None, None, None, None, None,
        ),
    )  # fmt: skip
    return None


def _submission_lifecycle(out: Rows, event: wire.SubmissionJobLifecycle, _: wire.Event, ns: int) -> Problem | None:
    if not event.submission_id:
        return "not a submission id", ""
    problem: Problem | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None:
            problem = odd_change("job", change.state, change.timestamp, at)
            continue
        ended = at // 1_000_000 if change.state in {"STOPPED", "SUCCEEDED", "FAILED"} else None
        out.add(
            "submission_jobs",
            (
                event.submission_id, None, None, change.driver_agent_http_address or None,
                ids.to_hex(change.driver_node_id, ids.NODE), None, None, None,
                JOB_RANKS.get(change.state, 1), at, change.state, change.message or None, change.error_type or None,
                ended, change.driver_exit_code,
            ),
        )  # fmt: skip
    return problem


def _node_definition(out: Rows, event: wire.NodeDefinition, _: wire.Event, ns: int) -> Problem | None:
    node_id = ids.to_hex(event.node_id, ids.NODE)
    if node_id is None:
        return "not a node id", event.node_id
    started = parse_ns(event.start_timestamp)
    out.add(
        "node_definitions",
        (
            node_id,
            event.node_ip_address or None,
            event.hostname or None,
            event.node_name or None,
            event.instance_id or None,
            event.instance_type_name or None,
            json_text(event.labels),
            None,
            None,
            started,
        ),
    )
    return ("unknown node state or time", event.start_timestamp) if event.start_timestamp and started is None else None


def _node_lifecycle(out: Rows, event: wire.NodeLifecycle, _: wire.Event, ns: int) -> Problem | None:
    node_id = ids.to_hex(event.node_id, ids.NODE)
    if node_id is None:
        return "not a node id", event.node_id
    problem: Problem | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None or not change.state:
            problem = odd_change("node", change.state, change.timestamp, at)
            continue
        death = change.death_info or wire.DeathInfo()
        sub_state = change.alive_sub_state if change.alive_sub_state != "UNSPECIFIED" else ""
        out.add(
            "node_transitions",
            (
                node_id,
                at,
                change.state,
                sub_state or None,
                death.reason or None,
                death.reason_message or None,
            ),
        )
        resources = json_text(change.resources)
        if resources:
            head = True if "node:__internal_head__" in resources else None
            out.add("node_definitions", (node_id, None, None, None, None, None, None, resources, head, None))
    return problem


def _worker_definition(out: Rows, event: wire.WorkerDefinition, _: wire.Event, ns: int) -> Problem | None:
    worker_id = ids.to_hex(event.worker_id, ids.WORKER)
    if worker_id is None:
        return "not a worker id", event.worker_id
    node_id = ids.to_hex(event.node_id, ids.NODE)
    out.add(
        "workers",
        (
            worker_id,
            node_id,
            event.worker_type or None,
            None,
            None,
            None,
            None,
            event.pid or None,
            *(None,) * 6,
        ),
    )
    return None


def _worker_lifecycle(out: Rows, event: wire.WorkerLifecycle, _: wire.Event, ns: int) -> Problem | None:
    worker_id = ids.to_hex(event.worker_id, ids.WORKER)
    if worker_id is None:
        return "not a worker id", event.worker_id
    job_id = ids.to_hex(event.job_id, ids.JOB)
    problem: Problem | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None:
            problem = odd_change("worker", change.state, change.timestamp, at)
            continue
        dead = change.state == "DEAD"
        death = change.death_info or wire.WorkerDeath()
        out.add(
            "workers",
            (
                worker_id, None, None, job_id, None,
                (death.exit_type or None) if dead else None, (death.exit_detail or None) if dead else None, None,
                milliseconds(change.worker_launch_time_ms), milliseconds(change.worker_launched_time_ms),
                milliseconds(change.start_time_ms), milliseconds(change.end_time_ms),
                None if dead else at, at if dead else None,
            ),
        )  # fmt: skip
    return problem


def _placement_group(out: Rows, event: wire.PlacementGroupDefinition, _: wire.Event, ns: int) -> Problem | None:
    group_id = ids.to_hex(event.placement_group_id, ids.PLACEMENT_GROUP)
    if group_id is None:
        return "not a placement group id", event.placement_group_id
    bundles = [
        {
            "bundle_id": {"placement_group_id": group_id, "bundle_index": bundle.bundle_index},
            "unit_resources": bundle.unit_resources,
            "node_id": "",
            "label_selector": bundle.label_selector,
        }
        for bundle in event.bundles
    ]
    out.add(
        "placement_groups",
        (
            group_id, event.name or None, ids.to_hex(event.creator_job_id, ids.JOB), event.is_detached,
            msgspec.json.encode(bundles).decode(), event.creation_request_received_ns or ns, *(None,) * 6,
        ),
    )  # fmt: skip
    return None


def _placement_group_lifecycle(
    out: Rows, event: wire.PlacementGroupLifecycle, _: wire.Event, ns: int
) -> Problem | None:
    group_id = ids.to_hex(event.placement_group_id, ids.PLACEMENT_GROUP)
    if group_id is None:
        return "not a placement group id", event.placement_group_id
    problem: Problem | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None:
            problem = odd_change("placement group", change.state, change.timestamp, at)
            continue
        stats = {
            "scheduling_state": change.scheduling_state,
            "scheduling_attempt": change.scheduling_attempt,
            "highest_retry_delay_ms": change.highest_retry_delay_ms,
        }
        out.add(
            "placement_groups",
            (
                group_id, None, None, None, None, None,
                at, change.state, None, msgspec.json.encode(stats).decode(), None, None,
            ),
        )  # fmt: skip
    return problem


def _platform_event(out: Rows, nested: Raw, event: wire.Event, ns: int) -> Problem | None:
    body = {
        "eventId": event.event_id,
        "sourceType": event.source_type,
        "eventType": event.event_type,
        "timestamp": event.timestamp,
        "severity": event.severity,
        "message": event.message,
        "platformEvent": nested,
    }
    out.add("platform_events", (event.event_id, ns, msgspec.json.encode(body).decode()))
    return None


def _snapshot(out: Rows, snapshot: wire.DashboardSnapshot, _: wire.Event, ns: int) -> Problem | None:
    if not snapshot.uri or not snapshot.body:
        return "empty snapshot", snapshot.uri
    out.add("snapshots", (snapshot.uri, ns, str(snapshot.body, "utf-8")))
    read = stateapi.add_only_answer if snapshot.only else snapshots.add_rows
    return read(out.add, snapshot.uri, msgspec.json.decode(snapshot.body), ns)


def _export(out: Rows, record: wire.ExportRecord, _: wire.Event, ns: int) -> Problem | None:
    if not record.line:
        return "empty export record", record.file
    return exports.add_export(out.add, msgspec.json.decode(record.line), ns)


_RARER: dict[str, Callable[..., Problem | None]] = {
    "actor_lifecycle_event": _actor_lifecycle,
    "actor_definition_event": _actor_definition,
    "worker_lifecycle_event": _worker_lifecycle,
    "worker_definition_event": _worker_definition,
    "driver_job_definition_event": _driver_job,
    "driver_job_lifecycle_event": _job_lifecycle,
    "driver_job_execution_event": _job_lifecycle,
    "node_definition_event": _node_definition,
    "node_lifecycle_event": _node_lifecycle,
    "placement_group_definition_event": _placement_group,
    "placement_group_lifecycle_event": _placement_group_lifecycle,
    "submission_job_definition_event": _submission_job,
    "submission_job_lifecycle_event": _submission_lifecycle,
    "platform_event": _platform_event,
    "dashboard_snapshot": _snapshot,
    "export_record": _export,
}
