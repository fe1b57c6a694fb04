"""The failure corpus: what is planted in each session, and what a diagnosis has to find."""

from typing import Literal

import msgspec

End = Literal["job", "stop_job", "kill_node", "preempt_node", "lose_head"]
"""How a session comes to its end: with its job, or after the job has printed that it is under way, by an action."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One planted session. `verdict` is None where nothing has to be explained."""

    script: str
    """Module of `jobs/`."""
    name: str
    """Function of the module."""
    verdict: str | None = None
    findings: tuple[str, ...] = ()
    """Codes that have to be found besides the verdict."""
    absent: tuple[str, ...] = ()
    """Codes that would be wrong."""
    allowed: tuple[str, ...] = ()
    """Codes that are right as well, and need not be found."""
    ends: End = "job"
    other_node: bool = False
    """A second node, with the resource `lost`."""
    environment: dict[str, str] = {}
    """Settings of Ray, for every process of the cluster."""
    memory_headroom_gib: float = 0.0
    """Ray's memory monitor kills workers when the machine uses this much more than at the start."""
    memory_limit_gib: float = 0.0
    """The limit of a memory cgroup around the whole node, as a container has. Needs root."""
    exports: bool = True
    """Whether drivers export events."""
    metrics: bool = True
    """True if the collector takes samples of metrics."""
    entrypoint: tuple[str, ...] = ()
    """The command of the job, if it is not the function of the module."""
    then: tuple[str, ...] = ()
    """Further jobs of the session, one after another: `script.name`."""


def _failure(script: str, verdict: str, *names: str, **more: object) -> list[Case]:
    return [Case(script=script, name=name, verdict=verdict, **more) for name in names]  # type: ignore[arg-type]


def _healthy(*names: str, **more: object) -> list[Case]:
    return [Case(script="healthy", name=name, **more) for name in names]  # type: ignore[arg-type]


def _entrypoint(name: str, *command: str) -> Case:
    return Case(script="start", name=name, verdict="driver_exception", entrypoint=command)


_SMALL_STORE = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "80000000"}
_FAST_HEALTH_CHECKS = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
_RAY_TRAIN = {"RAY_TRAIN_V2_ENABLED": "1"}

FAILURES: list[Case] = [
    *_failure("exceptions", "user_exception", "task_raises", "actor_raises", "nested_task_raises", "retries_used_up",
              "dependency_chain", "two_failures"),
    *_failure("exceptions", "actor_init_failed", "actor_init_raises"),
    *_failure("exceptions", "driver_exception", "driver_raises", "driver_exits_with_code"),
    *_failure("exceptions", "module_not_found", "task_needs_module", "driver_needs_module"),
    *_failure("exceptions", "serialization_failed", "unpicklable_argument", "unpicklable_result"),
    *_failure("exceptions", "cuda_out_of_memory", "cuda_out_of_memory"),
    *_failure("exceptions", "cuda_error", "cuda_error"),
    *_failure("exceptions", "nccl_timeout", "nccl_timeout"),
    *_failure("exceptions", "task_cancelled", "cancelled"),
    *_failure("crashes", "worker_segfault", "segfault", "actor_segfault"),
    *_failure("crashes", "worker_aborted", "abort"),
    *_failure("crashes", "worker_exited", "sys_exits", "exits_each_time", "actor_exits"),
    *_failure("crashes", "worker_exited", "exits", allowed=("worker_killed",)),
    *_failure("crashes", "worker_killed", "killed", "actor_killed", "busy_task_killed"),
    *_failure("crashes", "actor_crash_loop", "crash_loop"),
    *_failure("crashes", "worker_oom_killed", "out_of_memory", memory_headroom_gib=1.5),
    *_failure("crashes", "driver_killed", "driver_killed"),
    *_failure("crashes", "driver_exception", "driver_segfault", allowed=("driver_killed",)),
    *_failure("crashes", "node_lost", "lost_node", "lost_object", ends="kill_node", other_node=True,
              environment=_FAST_HEALTH_CHECKS),
    *_failure("crashes", "node_preempted", "lost_node", ends="preempt_node", other_node=True,
              environment=_FAST_HEALTH_CHECKS),
    *_failure("crashes", "object_lost", "object_without_owner"),
    *_failure("crashes", "job_stopped", "runs_on", ends="stop_job"),
    *_failure("crashes", "head_lost", "runs_on", ends="lose_head"),
    *_failure("resources", "infeasible_request", "infeasible_task", "infeasible_actor"),
    *_failure("resources", "infeasible_request", "infeasible_without_timeout", ends="stop_job"),
    *_failure("resources", "pending_for_capacity", "no_capacity"),
    *_failure("resources", "runtime_env_failed", "cannot_install"),
    *_failure("resources", "worker_startup_failed", "wrong_python"),
    *_failure("resources", "out_of_disk", "disk_full",
              environment={**_SMALL_STORE, "RAY_local_fs_capacity_threshold": "0.05"}),
    Case(script="healthy", name="plain", then=("exceptions.task_raises", "exceptions.driver_raises"),
         verdict="user_exception", allowed=("driver_exception",), findings=("user_exception", "driver_exception")),
    *_failure("programs", "user_exception", "three_deep", "async_actor", "actor_task_retries", "generator",
              "one_error_handled", "raised_from", "driver_wraps", "exception_of_two_arguments", "long_message",
              "tool_fails", "table_too_large", "recursion", "nested_timeout", "succeeds_then_fails"),
    *_failure("programs", "module_not_found", "actor_needs_submodule", "module_left_behind"),
    *_failure("programs", "cuda_out_of_memory", "nested_cuda_out_of_memory"),
    *_failure("programs", "out_of_disk", "checkpoint_on_full_disk"),
    *_failure("programs", "serialization_failed", "captured_lock", "put_generator"),
    *_failure("programs", "task_cancelled", "cancelled_from_outside"),
    *_failure("programs", "driver_exception", "hung_task", "too_many_calls", "slow_constructor",
              "exits_after_handled_errors", "gets_time_out_handled_then_raises"),
    *_failure("programs", "driver_killed", "interrupted", allowed=("driver_exception",)),
    *_failure("processes", "worker_segfault", "native_crash"),
    *_failure("processes", "worker_aborted", "async_abort"),
    *_failure("processes", "worker_exited", "actor_leaves"),
    *_failure("processes", "worker_exited", "exits_with_zero", "exits_after_noise", allowed=("worker_killed",)),
    *_failure("processes", "worker_killed", "terminated"),
    *_failure("processes", "worker_oom_killed", "actor_leaks", memory_headroom_gib=1.5),
    *_failure("processes", "container_oom_killed", "leaks_in_container", memory_limit_gib=4.0,
              environment={"RAY_memory_monitor_refresh_ms": "0"}),
    *_failure("processes", "infeasible_request", "nested_gpu", "placement_group_too_large", "placement_group_spread",
              "resource_typo", "unknown_node"),
    *_failure("processes", "pending_for_capacity", "too_many_actors"),
    *_failure("processes", "runtime_env_failed", "code_archive_missing"),
    *_failure("processes", "worker_segfault", "service_starts", then=("processes.service_is_gone",),
              allowed=("driver_exception",)),
    *_failure("processes", "worker_segfault", "service_starts", then=("processes.service_dies_in_use",)),
    *_failure("processes", "node_lost", "actor_on_lost_node", ends="kill_node", other_node=True,
              environment=_FAST_HEALTH_CHECKS),
    *_failure("processes", "job_stopped", "handled_then_waits", ends="stop_job"),
    *_failure("processes", "user_exception", "survives_then_fails"),
    *_failure("applications", "user_exception", "nested_actors", "crawler_times_out", "library_in_generator",
              "batch_without_column", "pool_fails"),
    *_failure("applications", "user_exception", "mailbox_was_killed", allowed=("driver_exception",)),
    *_failure("applications", "driver_exception", "waits_too_short", "name_is_taken"),
    *_failure("applications", "driver_exception", "invalid_environment", allowed=("runtime_env_failed",)),
    *_failure("applications", "worker_exited", "batch_exits", allowed=("worker_killed",)),
    *_failure("applications", "worker_killed", "alarm"),
    *_failure("applications", "pending_for_capacity", "actors_hold_all_cpus"),
    *_failure("start", "driver_exception", "assertion"),
    *_failure("start", "runtime_env_failed", "working_dir_missing", "pip_package_missing"),
    _entrypoint("no_script", "python", "/nowhere/train.py"),
    _entrypoint("no_command", "trian-model", "--epochs", "3"),
]  # fmt: skip

SLOW: list[Case] = [
    Case(script="slow", name="stragglers", findings=("stragglers",)),
    Case(script="slow", name="hung", ends="stop_job", verdict="job_stopped", findings=("hung_task",)),
    Case(script="slow", name="serial_driver", findings=("serial_driver",)),
    Case(script="slow", name="tiny_tasks", findings=("tiny_tasks",)),
    Case(script="slow", name="waits_for_cpus", findings=("waiting_for_resources",)),
    Case(script="slow", name="wasted_retries", findings=("wasted_retries",)),
    Case(script="slow", name="waits_for_arguments", findings=("waiting_for_arguments",)),
    Case(script="slow", name="slow_environment", findings=("slow_startup",), absent=("waiting_for_resources",)),
    Case(script="slow", name="busy_actor", findings=("waiting_for_resources",), absent=("slow_startup",)),
    Case(script="slow", name="slow_node", findings=("slow_node",), other_node=True),
    Case(script="resources", name="spills", findings=("object_spilling",), environment=_SMALL_STORE),
    Case(script="libraries", name="slow_rank", findings=("stragglers",), environment=_RAY_TRAIN),
    Case(script="libraries", name="slow_checkpoint_storage", findings=("idle_resources",), environment=_RAY_TRAIN),
    Case(script="libraries", name="waits_for_data", findings=("idle_resources",)),
]

HEALTHY: list[Case] = [
    *_healthy("plain", "catches", "never_asks", "retries", "kills_actor", "restarts", "cancels", "times_out",
              "nested", "detached", "noise", "leaves_tasks", "exits_itself"),
    *_healthy("on_both_nodes", other_node=True),
    *_healthy("plain", exports=False, findings=("driver_not_exporting",)),
    *_healthy("plain", metrics=False, findings=("metrics_missing",)),
    Case(script="resources", name="store_full", environment=_SMALL_STORE),
    *(Case(script="processes", name=name) for name in (
        "kill_is_handled", "cancel_is_handled", "third_try", "handled_noise", "thread_fails", "service_starts")),
    *(Case(script="applications", name=name) for name in (
        "survives_crashes", "replaces_busy_actors", "tolerates_bad_rows", "stops_bad_trials", "logs_tracebacks",
        "leaves_generator", "crashes_are_retried", "removes_placement_group", "asks_for_a_gpu_first")),
    Case(script="libraries", name="data_is_ready"),
    Case(script="libraries", name="even_ranks", environment=_RAY_TRAIN),
]  # fmt: skip

NOT_PLANTED = {
    "object_store_full": "Ray then moves objects to disk, so that a full object store ends as `out_of_disk`",
    "unexplained": "the verdict when evidence is missing; only the diagnoses without metrics or logs have it",
}
"""Codes of failures that no case plants, and why."""
NOT_EXPECTED = {
    "events_missing": "whether a lost node takes events with it depends on the moment at which it is lost",
}
"""Codes of slowness and missing data that no case always has, and why."""


def key(case: Case) -> str:
    """Return the name of the case's recording."""
    parts = [case.script, case.name, "" if case.ends == "job" else case.ends, "" if case.exports else "no-export",
             "" if case.metrics else "no-metrics", *(job.partition(".")[2] for job in case.then)]  # fmt: skip
    return "-".join(part for part in parts if part)


CASES: dict[str, Case] = {key(case): case for case in (*FAILURES, *SLOW, *HEALTHY)}
