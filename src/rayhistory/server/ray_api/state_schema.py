"""The schema of Ray's State API: the columns of each list, and the index columns behind them."""

from collections.abc import Callable
from enum import Enum

import msgspec

from rayhistory import ids
from rayhistory.ray_env import MIN_RAY_VERSION, Version

NIL_TASK = "f" * (2 * ids.TASK)
UNKNOWN_MS = 2**64 - 1
"""Ray's value for an unknown time of a worker: -1 as an unsigned number."""

NO_OBJECTS = "Objects are not recorded: Ray reports them only while a cluster runs."
NO_RUNTIME_ENVS = "The runtime environments of this session were not recorded."

TASK_TYPES = ("NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK", "DRIVER_TASK")
ACTOR_STATES = ("ALIVE", "DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING", "DEAD")
NODE_STATES = ("ALIVE", "DEAD")
WORKER_TYPES = ("WORKER", "DRIVER", "SPILL_WORKER", "RESTORE_WORKER")
EXIT_TYPES = ("SYSTEM_ERROR", "INTENDED_SYSTEM_EXIT", "USER_ERROR", "INTENDED_USER_EXIT", "NODE_OUT_OF_MEMORY")
PLACEMENT_GROUP_STATES = ("PENDING", "PREPARED", "CREATED", "REMOVED", "RESCHEDULING")
JOB_STATUSES = ("RUNNING", "PENDING", "STOPPED", "SUCCEEDED", "FAILED")
"""The values that Ray's clients accept, from 2.52 to 2.60. Other values are replaced by the first one."""

TASK_SOURCE_FILTERS = frozenset(("task_id", "job_id", "actor_id", "name", "state"))
"""Columns that Ray filters in the GCS, before it counts the total."""

_FALLBACK_STRATEGY_SINCE, _TOPOLOGY_SINCE = (2, 55), (2, 57)


class FilterType(Enum):
    """The types of filter values in Ray. For `!=`, `MAYBE_` values are not converted and match every row."""

    TEXT = "text"
    ID = "id, lower case in the index"
    INT = "int"
    BOOL = "bool"
    MAYBE_INT = "int or nothing"
    MAYBE_BOOL = "bool or nothing"


class StateColumn(msgspec.Struct, frozen=True):
    name: str
    index_column: str
    """Column of the index; empty if the value is derived from several columns or not recorded. Then no filter matches.
    """
    filter_type: FilterType = FilterType.TEXT
    filterable: bool = False
    detail: bool = False
    default: str | int | None = None
    """Value in Ray's response if the index has no value."""
    optional: bool = False
    """True if Ray omits the field when it has no value. Then no filter matches."""
    since: Version = MIN_RAY_VERSION
    """The first version of Ray that has the column. Clients of later versions accept rows without it."""


class StateSchema(msgspec.Struct, frozen=True):
    table: str
    """Table of the index; empty if no table has the rows of the list."""
    columns: tuple[StateColumn, ...]
    sort: tuple[str, ...] = ()
    id_sizes: dict[str, int] = {}
    """Columns whose filter values must be ids, with the length of an id in bytes."""
    states: frozenset[str] = frozenset()
    """Valid values of a filter on the state; empty if Ray does not check."""
    state_label: str = ""

    @property
    def key(self) -> str:
        """The name of a column that is never null."""
        return self.sort[0]

    @property
    def filterable(self) -> list[str]:
        return sorted(column.name for column in self.columns if column.filterable)

    def names(self, *, detail: bool) -> list[str]:
        return [column.name for column in self.columns if detail or not column.detail]

    def newer_names(self, is_before: Callable[[Version], bool]) -> frozenset[str]:
        """Return the columns that the cluster's version of Ray did not have yet."""
        return frozenset(column.name for column in self.columns if is_before(column.since))

    def column(self, name: str) -> StateColumn | None:
        return next((column for column in self.columns if column.name == name), None)


def _filterable(
    name: str,
    index_column: str = "",
    *,
    filter_type: FilterType = FilterType.TEXT,
    detail: bool = False,
    default: str | int | None = None,
    optional: bool = False,
) -> StateColumn:
    return StateColumn(name, index_column or name, filter_type, True, detail, default, optional)


def _detail(name: str, since: Version = MIN_RAY_VERSION) -> StateColumn:
    return StateColumn(name, "", detail=True, since=since)


TASKS = StateSchema(
    "tasks",
    (
        _filterable("task_id", filter_type=FilterType.ID),
        _filterable("attempt_number", filter_type=FilterType.INT),
        _filterable("name"),
        _filterable("state"),
        _filterable("job_id", filter_type=FilterType.ID),
        _filterable("actor_id", filter_type=FilterType.ID),
        _filterable("type"),
        _filterable("func_or_class_name"),
        _filterable("parent_task_id", filter_type=FilterType.ID, default=NIL_TASK),
        _filterable("node_id", filter_type=FilterType.ID),
        _filterable("worker_id", filter_type=FilterType.ID),
        _filterable("worker_pid", filter_type=FilterType.MAYBE_INT),
        _filterable("error_type", optional=True),
        _filterable("language", detail=True),
        _detail("required_resources"),
        _detail("runtime_env_info"),
        _filterable("placement_group_id", filter_type=FilterType.ID, detail=True),
        _detail("events"),
        _detail("profiling_data"),
        _detail("creation_time_ms"),
        _detail("start_time_ms"),
        _detail("end_time_ms"),
        _detail("task_log_info"),
        _detail("error_message"),
        _filterable("is_debugger_paused", filter_type=FilterType.MAYBE_BOOL, detail=True),
        _detail("call_site"),
        _detail("label_selector"),
        _detail("fallback_strategy", _FALLBACK_STRATEGY_SINCE),
    ),
    ("task_id", "-attempt_number"),
    {"task_id": ids.TASK, "job_id": ids.JOB, "actor_id": ids.ACTOR},
)

ACTORS = StateSchema(
    "actors",
    (
        _filterable("actor_id", filter_type=FilterType.ID),
        _filterable("class_name", default=""),
        _filterable("state"),
        _filterable("job_id", filter_type=FilterType.ID),
        _filterable("name", default=""),
        _filterable("node_id", filter_type=FilterType.ID, optional=True),
        _filterable("pid", filter_type=FilterType.MAYBE_INT, default=0),
        _filterable("ray_namespace", default=""),
        _detail("serialized_runtime_env"),
        _detail("required_resources"),
        _detail("death_cause"),
        _detail("is_detached"),
        _filterable("placement_group_id", filter_type=FilterType.ID, detail=True, optional=True),
        _filterable("repr_name", detail=True, default=""),
        _detail("num_restarts"),
        _detail("num_restarts_due_to_lineage_reconstruction"),
        _detail("num_restarts_due_to_node_preemption"),
        _detail("call_site"),
        _detail("label_selector"),
        _detail("fallback_strategy", _FALLBACK_STRATEGY_SINCE),
    ),
    ("actor_id",),
    {"actor_id": ids.ACTOR, "job_id": ids.JOB},
    frozenset(ACTOR_STATES),
    "actor",
)

NODES = StateSchema(
    "nodes",
    (
        _filterable("node_id", filter_type=FilterType.ID),
        _filterable("node_ip", default=""),
        _filterable("is_head_node", "is_head", filter_type=FilterType.BOOL),
        _filterable("state"),
        StateColumn("state_message", "state_message"),
        _filterable("node_name", default=""),
        StateColumn("resources_total", "resources"),
        StateColumn("labels", "labels"),
        _detail("start_time_ms"),
        _detail("end_time_ms"),
    ),
    ("node_id",),
    {"node_id": ids.NODE},
    frozenset(NODE_STATES),
    "node",
)

WORKERS = StateSchema(
    "workers",
    (
        _filterable("worker_id", filter_type=FilterType.ID),
        _filterable("is_alive", filter_type=FilterType.BOOL),
        _filterable("worker_type"),
        _filterable("exit_type", optional=True),
        _filterable("node_id", filter_type=FilterType.ID, default=""),
        _filterable("ip", default=""),
        _filterable("pid", filter_type=FilterType.INT, default=0),
        _detail("exit_detail"),
        _detail("worker_launch_time_ms"),
        _detail("worker_launched_time_ms"),
        _detail("start_time_ms"),
        _detail("end_time_ms"),
        StateColumn("debugger_port", "", FilterType.MAYBE_INT, filterable=True, detail=True),
        StateColumn("num_paused_threads", "", FilterType.MAYBE_INT, filterable=True, detail=True),
    ),
    ("worker_id",),
)

PLACEMENT_GROUPS = StateSchema(
    "placement_groups",
    (
        _filterable("placement_group_id", filter_type=FilterType.ID),
        _filterable("name", default=""),
        _filterable("creator_job_id", filter_type=FilterType.ID, default=""),
        _filterable("state"),
        _detail("bundles"),
        _filterable("is_detached", filter_type=FilterType.MAYBE_BOOL, detail=True),
        _detail("stats"),
        _detail("topology_strategy", _TOPOLOGY_SINCE),
        _detail("topology_assignments", _TOPOLOGY_SINCE),
    ),
    ("placement_group_id",),
)

CLUSTER_EVENTS = StateSchema(
    "cluster_events",
    (
        _filterable("severity", default=""),
        StateColumn("time", "timestamp_s"),
        _filterable("source_type", default=""),
        StateColumn("message", "message"),
        _filterable("event_id"),
        _detail("custom_fields"),
    ),
    ("timestamp_s", "event_id"),
)

JOBS = StateSchema(
    "",
    (
        _filterable("job_id"),
        _filterable("submission_id"),
        StateColumn("entrypoint", ""),
        _filterable("type"),
        _filterable("status"),
        StateColumn("message", ""),
        StateColumn("error_type", ""),
        StateColumn("driver_info", ""),
        *(
            _detail(name)
            for name in ("start_time", "end_time", "metadata", "runtime_env", "driver_agent_http_address",
                         "driver_node_id", "driver_exit_code")
        ),
    ),
)  # fmt: skip

RUNTIME_ENVS = StateSchema(
    "",
    (
        _filterable("runtime_env"),
        _filterable("success", filter_type=FilterType.BOOL),
        StateColumn("creation_time_ms", ""),
        _filterable("node_id"),
        _detail("ref_cnt"),
        _filterable("error", detail=True),
    ),
)

OBJECTS = StateSchema(
    "",
    (
        _filterable("object_id"),
        _filterable("object_size", filter_type=FilterType.INT),
        _filterable("task_status"),
        _filterable("attempt_number", filter_type=FilterType.INT),
        _filterable("reference_type"),
        _filterable("call_site"),
        _filterable("type"),
        _filterable("pid", filter_type=FilterType.INT),
        _filterable("ip"),
    ),
)
