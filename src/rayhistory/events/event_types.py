"""The types of the events that Ray sends, for every version from 2.49 on.

Decoding to these types is the fast path. `lenient` converts events that do not fit them.
"""

import msgspec
from msgspec import Raw

NOTHING = Raw(b"")


class Wire(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """Base class of all event types. In JSON, field names are camelCase, and every field is optional."""


class PythonFunction(Wire):
    module_name: str = ""
    class_name: str = ""
    function_name: str = ""
    function_hash: str = ""


class JavaFunction(Wire):
    class_name: str = ""
    function_name: str = ""
    signature: str = ""


class CppFunction(Wire):
    function_name: str = ""
    caller: str = ""
    class_name: str = ""


class Function(Wire):
    python_function_descriptor: PythonFunction | None = None
    java_function_descriptor: JavaFunction | None = None
    cpp_function_descriptor: CppFunction | None = None


class RuntimeEnvInfo(Wire):
    serialized_runtime_env: str = ""
    runtime_env_config: Raw = NOTHING
    uris: Raw = NOTHING


class TaskDefinition(Wire):
    task_id: str = ""
    task_attempt: int = 0
    task_type: str = ""
    language: str = ""
    task_func: Function | None = None
    actor_func: Function | None = None
    task_name: str = ""
    actor_task_name: str = ""
    required_resources: Raw = NOTHING
    job_id: str = ""
    actor_id: str = ""
    parent_task_id: str = ""
    placement_group_id: str = ""
    ref_ids: Raw = NOTHING
    serialized_runtime_env: str = ""
    runtime_env_info: RuntimeEnvInfo | None = None
    call_site: str = ""
    label_selector: Raw = NOTHING
    fallback_strategy: Raw = NOTHING
    is_detached_actor: bool = False


class StateTransition(Wire):
    state: str = ""
    timestamp: str = ""


class ErrorInfo(Wire):
    error_type: str = ""
    error_message: str = ""
    actor_died_error: Raw = NOTHING
    runtime_env_setup_failed_error: Raw = NOTHING
    actor_unavailable_error: Raw = NOTHING


class TaskLogInfo(Wire):
    stdout_file: str = ""
    stderr_file: str = ""
    stdout_start: int | None = None
    stdout_end: int | None = None
    stderr_start: int | None = None
    stderr_end: int | None = None


class TaskLifecycle(Wire):
    task_id: str = ""
    task_attempt: int = 0
    state_transitions: list[StateTransition] = []
    task_state: dict[str, str] = {}
    ray_error_info: ErrorInfo | None = None
    node_id: str = ""
    worker_id: str = ""
    worker_pid: int = 0
    job_id: str = ""
    is_debugger_paused: bool | None = None
    actor_repr_name: str = ""
    task_log_info: TaskLogInfo | None = None


class ProfileSpans(Wire):
    component_type: str = ""
    component_id: str = ""
    node_ip_address: str = ""
    events: Raw = NOTHING


class TaskProfile(Wire):
    task_id: str = ""
    attempt_number: int = 0
    job_id: str = ""
    profile_events: ProfileSpans | None = None


class ActorDefinition(Wire):
    actor_id: str = ""
    job_id: str = ""
    is_detached: bool = False
    name: str = ""
    ray_namespace: str = ""
    serialized_runtime_env: str = ""
    class_name: str = ""
    required_resources: Raw = NOTHING
    placement_group_id: str = ""
    label_selector: Raw = NOTHING
    fallback_strategy: Raw = NOTHING
    call_site: str = ""
    parent_id: str = ""
    ref_ids: Raw = NOTHING


class ActorTransition(Wire):
    state: str = ""
    timestamp: str = ""
    node_id: str = ""
    worker_id: str = ""
    pid: int = 0
    port: int = 0
    repr_name: str = ""
    death_cause: Raw = NOTHING
    restart_reason: str = ""


class ActorLifecycle(Wire):
    actor_id: str = ""
    state_transitions: list[ActorTransition] = []


class JobConfig(Wire):
    serialized_runtime_env: str = ""
    metadata: dict[str, str] = {}


class DriverJobDefinition(Wire):
    job_id: str = ""
    driver_pid: int = 0
    driver_node_id: str = ""
    entrypoint: str = ""
    config: JobConfig | None = None


class JobLifecycle(Wire):
    job_id: str = ""
    state_transitions: list[StateTransition] = []


class NodeDefinition(Wire):
    node_id: str = ""
    node_ip_address: str = ""
    labels: Raw = NOTHING
    start_timestamp: str = ""
    hostname: str = ""
    node_name: str = ""
    instance_id: str = ""
    instance_type_name: str = ""


class DeathInfo(Wire):
    reason: str = ""
    reason_message: str = ""


class NodeTransition(Wire):
    state: str = ""
    timestamp: str = ""
    resources: Raw = NOTHING
    alive_sub_state: str = ""
    death_info: DeathInfo | None = None


class NodeLifecycle(Wire):
    node_id: str = ""
    state_transitions: list[NodeTransition] = []


class WorkerDefinition(Wire):
    worker_id: str = ""
    node_id: str = ""
    worker_type: str = ""
    pid: int = 0


class WorkerDeath(Wire):
    exit_type: str = ""
    exit_detail: str = ""
    memory_used_bytes: int | None = None


class WorkerTransition(Wire):
    state: str = ""
    timestamp: str = ""
    worker_launch_time_ms: int = 0
    worker_launched_time_ms: int = 0
    start_time_ms: int = 0
    end_time_ms: int = 0
    death_info: WorkerDeath | None = None


class WorkerLifecycle(Wire):
    worker_id: str = ""
    job_id: str = ""
    state_transitions: list[WorkerTransition] = []


class BundleSpec(Wire):
    bundle_index: int = 0
    unit_resources: dict[str, float] = {}
    label_selector: dict[str, str] = {}


class PlacementGroupDefinition(Wire):
    placement_group_id: str = ""
    name: str = ""
    ray_namespace: str = ""
    strategy: str = ""
    is_detached: bool = False
    creator_job_id: str = ""
    creator_actor_id: str = ""
    bundles: list[BundleSpec] = []
    soft_target_node_id: str = ""
    creation_request_received_ns: int = 0


class BundlePlacement(Wire):
    bundle_index: int = 0
    node_id: str = ""


class PlacementGroupTransition(Wire):
    state: str = ""
    timestamp: str = ""
    scheduling_state: str = ""
    scheduling_attempt: int = 0
    highest_retry_delay_ms: float = 0.0
    bundle_placements: list[BundlePlacement] = []


class PlacementGroupLifecycle(Wire):
    placement_group_id: str = ""
    state_transitions: list[PlacementGroupTransition] = []


class SubmissionJobDefinition(Wire):
    submission_id: str = ""
    entrypoint: str = ""
    config: JobConfig | None = None
    entrypoint_resources: Raw = NOTHING


class SubmissionJobTransition(Wire):
    state: str = ""
    timestamp: str = ""
    message: str = ""
    error_type: str = ""
    driver_node_id: str = ""
    driver_agent_http_address: str = ""
    driver_exit_code: int | None = None


class SubmissionJobLifecycle(Wire):
    submission_id: str = ""
    state_transitions: list[SubmissionJobTransition] = []


class DashboardResponse(Wire):
    """A dashboard response, stored by the collector of the head node. Not one of Ray's events."""

    uri: str = ""
    body: Raw = NOTHING
    only: bool = False
    """True if the session has no events, so that the dashboard's lists are the only data about it."""


class ExportRecord(Wire):
    """A line of one of Ray's export files, stored by the collector. Not one of Ray's events."""

    file: str = ""
    line: Raw = NOTHING


class Event(Wire):
    event_id: str = ""
    source_type: str = ""
    event_type: str = ""
    timestamp: str = ""
    severity: str = ""
    message: str = ""
    session_name: str = ""
    node_id: str = ""
    task_definition_event: TaskDefinition | None = None
    actor_task_definition_event: TaskDefinition | None = None
    task_lifecycle_event: TaskLifecycle | None = None
    task_execution_event: TaskLifecycle | None = None
    task_profile_events: TaskProfile | None = None
    actor_definition_event: ActorDefinition | None = None
    actor_lifecycle_event: ActorLifecycle | None = None
    driver_job_definition_event: DriverJobDefinition | None = None
    driver_job_lifecycle_event: JobLifecycle | None = None
    driver_job_execution_event: JobLifecycle | None = None
    node_definition_event: NodeDefinition | None = None
    node_lifecycle_event: NodeLifecycle | None = None
    worker_definition_event: WorkerDefinition | None = None
    worker_lifecycle_event: WorkerLifecycle | None = None
    placement_group_definition_event: PlacementGroupDefinition | None = None
    placement_group_lifecycle_event: PlacementGroupLifecycle | None = None
    submission_job_definition_event: SubmissionJobDefinition | None = None
    submission_job_lifecycle_event: SubmissionJobLifecycle | None = None
    platform_event: Raw = NOTHING
    dashboard_snapshot: DashboardResponse | None = None
    export_record: ExportRecord | None = None


DECODER = msgspec.json.Decoder(Event, strict=False)
