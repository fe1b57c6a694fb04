"""The declaration of the tables that events are folded into, with the merge rule of each column.

The rules are commutative, associative and idempotent. So any split of the events over files, nodes and time gives the
same table. The SQL of the merge, the tests' reference and the documentation are generated from this declaration.
"""

from collections.abc import Iterable
from enum import Enum

import msgspec

TASK_STATES = (
    "PENDING_ARGS_AVAIL",
    "PENDING_NODE_ASSIGNMENT",
    "PENDING_OBJ_STORE_MEM_AVAIL",
    "PENDING_ARGS_FETCH",
    "SUBMITTED_TO_WORKER",
    "PENDING_ACTOR_TASK_ARGS_FETCH",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
    "RUNNING",
    "RUNNING_IN_RAY_GET",
    "RUNNING_IN_RAY_WAIT",
    "FINISHED",
    "FAILED",
)
"""States in Ray's order. An attempt is in the last of these states that it has reached, independent of clocks."""


JOB_RANKS = {"PENDING": 0, "RUNNING": 1, "STOPPED": 2, "SUCCEEDED": 2, "FAILED": 2}
"""Rank of each job status. A higher rank wins over a later time, because a job that has ended does not run again."""

PLACEMENT_GROUP_RANKS = {"REMOVED": 1}
"""Rank of each state of a placement group.

A higher rank wins, because a removed group does not return. Others have rank 0.
"""


class Rule(Enum):
    KEY = "identifies the row"
    HIGHEST = "the highest value; for values that never change, that value"
    LOWEST = "the lowest value; for times, the earliest"
    LATEST = "the value from the row with the latest group; all columns of a group come from the same row"


class Type(Enum):
    TEXT = "VARCHAR"
    JSON = "VARCHAR "
    INT = "BIGINT"
    BOOL = "BOOLEAN"

    @property
    def sql(self) -> str:
        return self.value.strip()


class Column(msgspec.Struct, frozen=True):
    name: str
    type: Type
    rule: Rule
    group: str = ""


class Table(msgspec.Struct, frozen=True):
    name: str
    description: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def keys(self) -> list[str]:
        return [column.name for column in self.columns if column.rule is Rule.KEY]


def state_column(state: str) -> str:
    return f"{state.lower()}_ns"


def _columns(rule: Rule, column_type: Type, names: str, group: str = "") -> Iterable[Column]:
    return (Column(name, column_type, rule, group) for name in names.split())


def _key(names: str, column_type: Type = Type.TEXT) -> Iterable[Column]:
    return _columns(Rule.KEY, column_type, names)


def _text(names: str) -> Iterable[Column]:
    return _columns(Rule.HIGHEST, Type.TEXT, names)


def _json(names: str) -> Iterable[Column]:
    return _columns(Rule.HIGHEST, Type.JSON, names)


def _int(names: str) -> Iterable[Column]:
    return _columns(Rule.HIGHEST, Type.INT, names)


def _bool(names: str) -> Iterable[Column]:
    return _columns(Rule.HIGHEST, Type.BOOL, names)


def _earliest(names: str) -> Iterable[Column]:
    return _columns(Rule.LOWEST, Type.INT, names)


def _latest(group: str, order: str, text: str = "", json: str = "", number: str = "") -> Iterable[Column]:
    """Declare a group of columns whose values are all taken from the latest row.

    `order` names the columns that decide which group is later: a time, or a rank and a time.
    """
    yield from _columns(Rule.LATEST, Type.INT, order, group)
    yield from _columns(Rule.LATEST, Type.TEXT, text, group)
    yield from _columns(Rule.LATEST, Type.JSON, json, group)
    yield from _columns(Rule.LATEST, Type.INT, number, group)


def _table(name: str, description: str, *columns: Iterable[Column]) -> Table:
    return Table(name, description, tuple(column for group in columns for column in group))


TABLES: tuple[Table, ...] = (
    _table(
        "task_definitions",
        "The definition of an attempt of a task, as its owner reported it.",
        _key("task_id"),
        _key("attempt", Type.INT),
        _text("job_id type name func_or_class_name language parent_task_id actor_id placement_group_id"),
        _json("required_resources label_selector fallback_strategy"),
        _text("runtime_env call_site"),
        _earliest("defined_ns"),
    ),
    _table(
        "task_updates",
        "State transitions of an attempt: when it reached each state, where it ran, and how it failed. "
        "`process_pid` is from a report that does not name the worker.",
        _key("task_id"),
        _key("attempt", Type.INT),
        _text("job_id"),
        _latest("place", "placed_ns", "node_id worker_id", number="worker_pid"),
        _latest("process", "process_ns", number="process_pid"),
        _text("actor_repr_name"),
        _int("paused_ns resumed_ns"),
        _text("stdout_file stderr_file"),
        _int("stdout_start stdout_end stderr_start stderr_end"),
        _latest("error", "error_ns", "error_type error_message"),
        _earliest(" ".join(state_column(state) for state in TASK_STATES)),
    ),
    _table(
        "profile_events",
        "Profile spans of a task, for the timeline. Spans that were sent together are one row, as Ray wrote them.",
        _key("task_id"),
        _key("attempt", Type.INT),
        _key("job_id component_type component_id node_ip"),
        _key("spans"),
    ),
    _table(
        "actor_definitions",
        "The definition of an actor.",
        _key("actor_id"),
        _text("job_id name ray_namespace class_name placement_group_id runtime_env call_site parent_id"),
        _bool("is_detached"),
        _json("required_resources label_selector fallback_strategy"),
        _earliest("defined_ns"),
    ),
    _table(
        "actor_transitions",
        "Every state transition of an actor, with its node and worker. "
        "If `reported_by` is NULL, the row comes from an event and its time is exact.",
        _key("actor_id"),
        _key("ns", Type.INT),
        _key("state node_id worker_id"),
        _key("pid port", Type.INT),
        _key("repr_name restart_reason death_cause reported_by"),
    ),
    _table(
        "driver_jobs",
        "The drivers that connected to the cluster.",
        _key("job_id"),
        _text("driver_node_id entrypoint runtime_env submission_id"),
        _int("driver_pid"),
        _json("metadata"),
        _earliest("created_ns finished_ns seen_ns"),
    ),
    _table(
        "submission_jobs",
        "Submitted jobs, with or without a driver.",
        _key("submission_id"),
        _text("entrypoint runtime_env driver_agent_http_address driver_node_id job_id"),
        _json("metadata"),
        _earliest("start_ms"),
        _latest("status", "rank seen_ns", "status message error_type", "", "end_ms driver_exit_code"),
    ),
    _table(
        "node_definitions",
        "The definition of a node.",
        _key("node_id"),
        _text("node_ip hostname node_name instance_id instance_type_name"),
        _json("labels resources"),
        _bool("is_head"),
        _earliest("start_ns"),
    ),
    _table(
        "node_transitions",
        "Every state transition of a node, with the reason of its death.",
        _key("node_id"),
        _key("ns", Type.INT),
        _key("state sub_state death_reason death_message"),
    ),
    _table(
        "workers",
        "Worker processes, including drivers.",
        _key("worker_id"),
        _text("node_id worker_type job_id ip exit_type exit_detail"),
        _int("pid launch_ms launched_ms start_ms end_ms memory_used_bytes"),
        _earliest("alive_ns dead_ns"),
    ),
    _table(
        "placement_groups",
        "Placement groups, mostly from dashboard responses (few versions of Ray export them).",
        _key("placement_group_id"),
        _text("name creator_job_id"),
        _bool("is_detached"),
        _json("defined_bundles"),
        _earliest("created_ns"),
        _latest("status", "rank seen_ns", "state", "bundles stats topology_strategy topology_assignments"),
    ),
    _table(
        "platform_events",
        "Events of the platform below Ray, such as Kubernetes.",
        _key("event_id"),
        _earliest("ns"),
        _json("body"),
    ),
    _table(
        "cluster_events",
        "Lines of Ray's event log files.",
        _key("event_id"),
        _text("source_type hostname pid severity label message job_id node_id"),
        _earliest("timestamp_s"),
        _json("custom_fields"),
    ),
    _table(
        "snapshots",
        "Dashboard responses, each with the time at which it was stored.",
        _key("uri"),
        _key("ns", Type.INT),
        _json("body"),
    ),
    _table(
        "gaps",
        "Gaps: unreadable, unknown or missing data, per object. `kind` is the code of the gap.",
        _key("source kind detail"),
        _int("count"),
    ),
    _table(
        "life_signs",
        "The times of the first and the last event of each object.",
        _key("source"),
        _earliest("first_ns"),
        _int("last_ns"),
    ),
)

TABLES_BY_NAME = {table.name: table for table in TABLES}

TASK_TABLES = ("task_definitions", "task_updates", "profile_events")
"""Tables that can have millions of rows. They are partitioned by their first column, the task id."""
