"""Rows of events about actors, jobs, nodes, workers and placement groups.

An event without a valid id is skipped. A state transition without a valid time or state is ignored. Both are returned
as anomalies. Times are nanoseconds since 1970; `ns` is the time of the event.
"""

import msgspec
from msgspec import Raw

from rayhistory import ids
from rayhistory.events import event_types
from rayhistory.events.row_buffer import Anomaly, RowBuffer, invalid_transition, to_json_text
from rayhistory.events.table_columns import JOB_RANKS, PLACEMENT_GROUP_RANKS
from rayhistory.events.times import parse_ns, valid_ms
from rayhistory.gaps import GapCode

_TERMINAL_JOB_STATES = {"STOPPED", "SUCCEEDED", "FAILED"}


def add_actor_definition(rows: RowBuffer, event: event_types.ActorDefinition, ns: int) -> Anomaly | None:
    actor_id = ids.to_hex(event.actor_id, ids.ACTOR)
    if actor_id is None:
        return _invalid_id("actor", event.actor_id)
    rows.add(
        "actor_definitions",
        actor_id=actor_id,
        job_id=ids.to_hex(event.job_id, ids.JOB),
        name=event.name or None,
        ray_namespace=event.ray_namespace or None,
        class_name=event.class_name or None,
        placement_group_id=ids.to_hex(event.placement_group_id, ids.PLACEMENT_GROUP),
        runtime_env=event.serialized_runtime_env or None,
        call_site=event.call_site or None,
        parent_id=ids.any_to_hex(event.parent_id) or None,
        is_detached=event.is_detached,
        required_resources=to_json_text(event.required_resources),
        label_selector=to_json_text(event.label_selector),
        fallback_strategy=to_json_text(event.fallback_strategy),
        defined_ns=ns,
    )
    return None


def add_actor_lifecycle(rows: RowBuffer, event: event_types.ActorLifecycle, ns: int) -> Anomaly | None:
    actor_id = ids.to_hex(event.actor_id, ids.ACTOR)
    if actor_id is None:
        return _invalid_id("actor", event.actor_id)
    anomaly: Anomaly | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None or not change.state:
            anomaly = invalid_transition("actor", change.state, change.timestamp, at)
            continue
        rows.add(
            "actor_transitions",
            actor_id=actor_id,
            ns=at,
            state=change.state,
            node_id=ids.to_hex(change.node_id, ids.NODE),
            worker_id=ids.to_hex(change.worker_id, ids.WORKER),
            pid=change.pid or None,
            port=change.port or None,
            repr_name=change.repr_name or None,
            restart_reason=(change.restart_reason or None) if change.state == "RESTARTING" else None,
            death_cause=_death_cause(change.death_cause),
            reported_by=None,
        )
    return anomaly


def _death_cause(raw: Raw) -> str | None:
    """Return the cause in the form of Ray's API: snake_case, and ids in hex."""
    if to_json_text(raw) is None:
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


def add_driver_job_definition(rows: RowBuffer, event: event_types.DriverJobDefinition, ns: int) -> Anomaly | None:
    job_id = ids.to_hex(event.job_id, ids.JOB)
    if job_id is None:
        return _invalid_id("job", event.job_id)
    config = event.config or event_types.JobConfig()
    rows.add(
        "driver_jobs",
        job_id=job_id,
        driver_node_id=ids.to_hex(event.driver_node_id, ids.NODE),
        entrypoint=event.entrypoint or None,
        runtime_env=config.serialized_runtime_env or None,
        submission_id=config.metadata.get("job_submission_id") or None,
        driver_pid=event.driver_pid or None,
        metadata=_metadata(config),
        seen_ns=ns,
    )
    return None


def add_driver_job_lifecycle(rows: RowBuffer, event: event_types.JobLifecycle, ns: int) -> Anomaly | None:
    job_id = ids.to_hex(event.job_id, ids.JOB)
    if job_id is None:
        return _invalid_id("job", event.job_id)
    anomaly: Anomaly | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is not None and change.state == "CREATED":
            rows.add("driver_jobs", job_id=job_id, created_ns=at, seen_ns=at)
        elif at is not None and change.state == "FINISHED":
            rows.add("driver_jobs", job_id=job_id, finished_ns=at, seen_ns=at)
        else:
            anomaly = invalid_transition("job", change.state, change.timestamp, at)
    return anomaly


def add_submission_job_definition(
    rows: RowBuffer, event: event_types.SubmissionJobDefinition, ns: int
) -> Anomaly | None:
    if not event.submission_id:
        return _invalid_id("submission", "")
    config = event.config or event_types.JobConfig()
    rows.add(
        "submission_jobs",
        submission_id=event.submission_id,
        entrypoint=event.entrypoint or None,
        runtime_env=config.serialized_runtime_env or None,
        metadata=_metadata(config),
        start_ms=ns // 1_000_000 or None,
    )
    return None


def add_submission_job_lifecycle(rows: RowBuffer, event: event_types.SubmissionJobLifecycle, ns: int) -> Anomaly | None:
    if not event.submission_id:
        return _invalid_id("submission", "")
    anomaly: Anomaly | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None:
            anomaly = invalid_transition("job", change.state, change.timestamp, at)
            continue
        rows.add(
            "submission_jobs",
            submission_id=event.submission_id,
            driver_agent_http_address=change.driver_agent_http_address or None,
            driver_node_id=ids.to_hex(change.driver_node_id, ids.NODE),
            rank=JOB_RANKS.get(change.state, 1),
            seen_ns=at,
            status=change.state,
            message=change.message or None,
            error_type=change.error_type or None,
            end_ms=at // 1_000_000 if change.state in _TERMINAL_JOB_STATES else None,
            driver_exit_code=change.driver_exit_code,
        )
    return anomaly


def add_node_definition(rows: RowBuffer, event: event_types.NodeDefinition, ns: int) -> Anomaly | None:
    node_id = ids.to_hex(event.node_id, ids.NODE)
    if node_id is None:
        return _invalid_id("node", event.node_id)
    started = parse_ns(event.start_timestamp)
    rows.add(
        "node_definitions",
        node_id=node_id,
        node_ip=event.node_ip_address or None,
        hostname=event.hostname or None,
        node_name=event.node_name or None,
        instance_id=event.instance_id or None,
        instance_type_name=event.instance_type_name or None,
        labels=to_json_text(event.labels),
        start_ns=started,
    )
    if event.start_timestamp and started is None:
        return GapCode.TIMESTAMP_UNREADABLE, f"node start {event.start_timestamp}"
    return None


def add_node_lifecycle(rows: RowBuffer, event: event_types.NodeLifecycle, ns: int) -> Anomaly | None:
    node_id = ids.to_hex(event.node_id, ids.NODE)
    if node_id is None:
        return _invalid_id("node", event.node_id)
    anomaly: Anomaly | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None or not change.state:
            anomaly = invalid_transition("node", change.state, change.timestamp, at)
            continue
        death = change.death_info or event_types.DeathInfo()
        sub_state = change.alive_sub_state if change.alive_sub_state != "UNSPECIFIED" else ""
        rows.add(
            "node_transitions",
            node_id=node_id,
            ns=at,
            state=change.state,
            sub_state=sub_state or None,
            death_reason=death.reason or None,
            death_message=death.reason_message or None,
        )
        resources = to_json_text(change.resources)
        if resources:
            is_head = True if "node:__internal_head__" in resources else None
            rows.add("node_definitions", node_id=node_id, resources=resources, is_head=is_head)
    return anomaly


def add_worker_definition(rows: RowBuffer, event: event_types.WorkerDefinition, ns: int) -> Anomaly | None:
    worker_id = ids.to_hex(event.worker_id, ids.WORKER)
    if worker_id is None:
        return _invalid_id("worker", event.worker_id)
    rows.add(
        "workers",
        worker_id=worker_id,
        node_id=ids.to_hex(event.node_id, ids.NODE),
        worker_type=event.worker_type or None,
        pid=event.pid or None,
    )
    return None


def add_worker_lifecycle(rows: RowBuffer, event: event_types.WorkerLifecycle, ns: int) -> Anomaly | None:
    worker_id = ids.to_hex(event.worker_id, ids.WORKER)
    if worker_id is None:
        return _invalid_id("worker", event.worker_id)
    job_id = ids.to_hex(event.job_id, ids.JOB)
    anomaly: Anomaly | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None:
            anomaly = invalid_transition("worker", change.state, change.timestamp, at)
            continue
        is_dead = change.state == "DEAD"
        death = (change.death_info if is_dead else None) or event_types.WorkerDeath()
        rows.add(
            "workers",
            worker_id=worker_id,
            job_id=job_id,
            exit_type=death.exit_type or None,
            exit_detail=death.exit_detail or None,
            memory_used_bytes=death.memory_used_bytes or None,
            launch_ms=valid_ms(change.worker_launch_time_ms),
            launched_ms=valid_ms(change.worker_launched_time_ms),
            start_ms=valid_ms(change.start_time_ms),
            end_ms=valid_ms(change.end_time_ms),
            alive_ns=None if is_dead else at,
            dead_ns=at if is_dead else None,
        )
    return anomaly


def add_placement_group_definition(
    rows: RowBuffer, event: event_types.PlacementGroupDefinition, ns: int
) -> Anomaly | None:
    group_id = ids.to_hex(event.placement_group_id, ids.PLACEMENT_GROUP)
    if group_id is None:
        return _invalid_id("placement group", event.placement_group_id)
    bundles = [
        {
            "bundle_id": {"placement_group_id": group_id, "bundle_index": bundle.bundle_index},
            "unit_resources": bundle.unit_resources,
            "node_id": "",
            "label_selector": bundle.label_selector,
        }
        for bundle in event.bundles
    ]
    rows.add(
        "placement_groups",
        placement_group_id=group_id,
        name=event.name or None,
        creator_job_id=ids.to_hex(event.creator_job_id, ids.JOB),
        is_detached=event.is_detached,
        defined_bundles=msgspec.json.encode(bundles).decode(),
        created_ns=event.creation_request_received_ns or ns,
    )
    return None


def add_placement_group_lifecycle(
    rows: RowBuffer, event: event_types.PlacementGroupLifecycle, ns: int
) -> Anomaly | None:
    group_id = ids.to_hex(event.placement_group_id, ids.PLACEMENT_GROUP)
    if group_id is None:
        return _invalid_id("placement group", event.placement_group_id)
    anomaly: Anomaly | None = None
    for change in event.state_transitions:
        at = parse_ns(change.timestamp)
        if at is None:
            anomaly = invalid_transition("placement group", change.state, change.timestamp, at)
            continue
        stats = {
            "scheduling_state": change.scheduling_state,
            "scheduling_attempt": change.scheduling_attempt,
            "highest_retry_delay_ms": change.highest_retry_delay_ms,
        }
        rows.add(
            "placement_groups",
            placement_group_id=group_id,
            rank=PLACEMENT_GROUP_RANKS.get(change.state, 0),
            seen_ns=at,
            state=change.state,
            stats=msgspec.json.encode(stats).decode(),
        )
    return anomaly


def _metadata(config: event_types.JobConfig) -> str | None:
    return msgspec.json.encode(config.metadata, order="sorted").decode() if config.metadata else None


def _invalid_id(entity: str, given: str) -> Anomaly:
    return GapCode.ID_INVALID, f"{entity} {given}"
