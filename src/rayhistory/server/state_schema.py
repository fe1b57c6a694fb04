"""Ray's State API as a declaration: which columns a list has, which of them filter, and where the index keeps them."""

from enum import Enum

import msgspec

from rayhistory import ids

NIL_TASK = "f" * (2 * ids.TASK)
UNKNOWN_MS = 2**64 - 1
"""How Ray spells a time of a worker that it does not know: -1, as an unsigned number."""

NO_OBJECTS = "Objects are not recorded: which ones there were is known only while a cluster runs."
NO_RUNTIME_ENVS = "The runtime environments of this session were not recorded."

TASK_TYPES = ("NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK", "DRIVER_TASK")
ACTOR_STATES = ("ALIVE", "DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING", "DEAD")
NODE_STATES = ("ALIVE", "DEAD")
WORKER_TYPES = ("WORKER", "DRIVER", "SPILL_WORKER", "RESTORE_WORKER")
EXIT_TYPES = ("SYSTEM_ERROR", "INTENDED_SYSTEM_EXIT", "USER_ERROR", "INTENDED_USER_EXIT", "NODE_OUT_OF_MEMORY")
PLACEMENT_GROUP_STATES = ("PENDING", "PREPARED", "CREATED", "REMOVED", "RESCHEDULING")
JOB_STATUSES = ("RUNNING", "PENDING", "STOPPED", "SUCCEEDED", "FAILED")
"""The words that Ray's clients know, from 2.52 to 2.60; the first stands for those that they do not."""

TASK_SOURCE_FILTERS = frozenset(("task_id", "job_id", "actor_id", "name", "state"))
"""What Ray filters where tasks are kept: its total is that of what is left."""


class Kind(Enum):
    """How Ray reads the text of a filter. The `MAYBE_` ones are not converted for `!=`, which then always holds."""

    TEXT = "text"
    ID = "id, which the index keeps in lower case"
    INT = "int"
    BOOL = "bool"
    MAYBE_INT = "int or nothing"
    MAYBE_BOOL = "bool or nothing"


class Column(msgspec.Struct, frozen=True):
    name: str
    source: str
    """The column of the index; empty when it is made from several, or when nothing is known: then no filter matches."""
    kind: Kind = Kind.TEXT
    filterable: bool = False
    detail: bool = False
    absent: str | int | None = None
    """What Ray says where the index has nothing."""
    optional: bool = False
    """Ray leaves it out where there is nothing, and then no filter matches."""


class Schema(msgspec.Struct, frozen=True):
    table: str
    """Empty for what the index does not keep as a table."""
    columns: tuple[Column, ...]
    sort: tuple[str, ...] = ()
    id_sizes: dict[str, int] = {}
    """Columns whose filters must be ids, with the size of those."""
    states: frozenset[str] = frozenset()
    """The values that a filter on the state may have; empty when Ray does not check."""
    what: str = ""

    @property
    def key(self) -> str:
        """A column that no row is without."""
        return self.sort[0]

    @property
    def filterable(self) -> list[str]:
        return sorted(column.name for column in self.columns if column.filterable)

    def names(self, *, detail: bool) -> list[str]:
        return [column.name for column in self.columns if detail or not column.detail]

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)


def _f(
    name: str,
    source: str = "",
    *,
    kind: Kind = Kind.TEXT,
    detail: bool = False,
    absent: str | int | None = None,
    optional: bool = False,
) -> Column:
    return Column(name, source or name, kind, True, detail, absent, optional)


def _d(name: str, source: str = "") -> Column:
    return Column(name, source, detail=True)


TASKS = Schema(
    "tasks",
    (
        _f("task_id", kind=Kind.ID),
        _f("attempt_number", kind=Kind.INT),
        _f("name"),
        _f("state"),
        _f("job_id", kind=Kind.ID),
        _f("actor_id", kind=Kind.ID),
        _f("type"),
        _f("func_or_class_name"),
        _f("parent_task_id", kind=Kind.ID, absent=NIL_TASK),
        _f("node_id", kind=Kind.ID),
        _f("worker_id", kind=Kind.ID),
        _f("worker_pid", kind=Kind.MAYBE_INT),
        _f("error_type", optional=True),
        _f("language", detail=True),
        _d("required_resources"),
        _d("runtime_env_info"),
        _f("placement_group_id", kind=Kind.ID, detail=True),
        _d("events"),
        _d("profiling_data"),
        _d("creation_time_ms"),
        _d("start_time_ms"),
        _d("end_time_ms"),
        _d("task_log_info"),
        _d("error_message"),
        _f("is_debugger_paused", kind=Kind.MAYBE_BOOL, detail=True),
        _d("call_site"),
        _d("label_selector"),
        _d("fallback_strategy"),
    ),
    ("task_id", "-attempt_number"),
    {"task_id": ids.TASK, "job_id": ids.JOB, "actor_id": ids.ACTOR},
)

ACTORS = Schema(
    "actors",
    (
        _f("actor_id", kind=Kind.ID),
        _f("class_name", absent=""),
        _f("state"),
        _f("job_id", kind=Kind.ID),
        _f("name", absent=""),
        _f("node_id", kind=Kind.ID, optional=True),
        _f("pid", kind=Kind.MAYBE_INT, absent=0),
        _f("ray_namespace", absent=""),
        _d("serialized_runtime_env"),
        _d("required_resources"),
        _d("death_cause"),
        _d("is_detached"),
        _f("placement_group_id", kind=Kind.ID, detail=True, optional=True),
        _f("repr_name", detail=True, absent=""),
        _d("num_restarts"),
        _d("num_restarts_due_to_lineage_reconstruction"),
        _d("num_restarts_due_to_node_preemption"),
        _d("call_site"),
        _d("label_selector"),
        _d("fallback_strategy"),
    ),
    ("actor_id",),
    {"actor_id": ids.ACTOR, "job_id": ids.JOB},
    frozenset(ACTOR_STATES),
    "actor",
)

NODES = Schema(
    "nodes",
    (
        _f("node_id", kind=Kind.ID),
        _f("node_ip", absent=""),
        _f("is_head_node", "is_head", kind=Kind.BOOL),
        _f("state"),
        Column("state_message", "state_message"),
        _f("node_name", absent=""),
        Column("resources_total", "resources"),
        Column("labels", "labels"),
        _d("start_time_ms"),
        _d("end_time_ms"),
    ),
    ("node_id",),
    {"node_id": ids.NODE},
    frozenset(NODE_STATES),
    "node",
)

WORKERS = Schema(
    "workers",
    (
        _f("worker_id", kind=Kind.ID),
        _f("is_alive", kind=Kind.BOOL),
        _f("worker_type"),
        _f("exit_type", optional=True),
        _f("node_id", kind=Kind.ID, absent=""),
        _f("ip", absent=""),
        _f("pid", kind=Kind.INT, absent=0),
        _d("exit_detail"),
        _d("worker_launch_time_ms"),
        _d("worker_launched_time_ms"),
        _d("start_time_ms"),
        _d("end_time_ms"),
        Column("debugger_port", "", Kind.MAYBE_INT, filterable=True, detail=True),
        Column("num_paused_threads", "", Kind.MAYBE_INT, filterable=True, detail=True),
    ),
    ("worker_id",),
)

PLACEMENT_GROUPS = Schema(
    "placement_groups",
    (
        _f("placement_group_id", kind=Kind.ID),
        _f("name", absent=""),
        _f("creator_job_id", kind=Kind.ID, absent=""),
        _f("state"),
        _d("bundles"),
        _f("is_detached", kind=Kind.MAYBE_BOOL, detail=True),
        _d("stats"),
        _d("topology_strategy"),
        _d("topology_assignments"),
    ),
    ("placement_group_id",),
)

CLUSTER_EVENTS = Schema(
    "cluster_events",
    (
        _f("severity", absent=""),
        Column("time", "timestamp_s"),
        _f("source_type", absent=""),
        Column("message", "message"),
        _f("event_id"),
        _d("custom_fields"),
    ),
    ("timestamp_s", "event_id"),
)

JOBS = Schema(
    "",
    (
        _f("job_id"),
        _f("submission_id"),
        Column("entrypoint", ""),
        _f("type"),
        _f("status"),
        Column("message", ""),
        Column("error_type", ""),
        Column("driver_info", ""),
        *(
            _d(name)
            for name in ("start_time", "end_time", "metadata", "runtime_env", "driver_agent_http_address",
                         "driver_node_id", "driver_exit_code")
        ),
    ),
)  # fmt: skip

RUNTIME_ENVS = Schema(
    "",
    (
        _f("runtime_env"),
        _f("success", kind=Kind.BOOL),
        Column("creation_time_ms", ""),
        _f("node_id"),
        _d("ref_cnt"),
        _f("error", detail=True),
    ),
)

OBJECTS = Schema(
    "",
    (
        _f("object_id"),
        _f("object_size", kind=Kind.INT),
        _f("task_status"),
        _f("attempt_number", kind=Kind.INT),
        _f("reference_type"),
        _f("call_site"),
        _f("type"),
        _f("pid", kind=Kind.INT),
        _f("ip"),
    ),
)
