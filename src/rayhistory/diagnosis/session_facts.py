"""The input of rules: plain values of bounded size. `gather.py` reads them."""

from collections import defaultdict
from functools import cached_property

import msgspec

from rayhistory.index.query.failure_groups import FailureGroup, FailureGroups, WaitingGroup
from rayhistory.index.query.long_tasks import LongTask
from rayhistory.index.query.state_timeline import StateTimeline
from rayhistory.index.query.task_times import FunctionTimes, NodeTimes, OpenTask, TimeTotals

RUNNING, ENDED, VANISHED = "running", "ended", "vanished"


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "SUBMISSION"
    job_id: str = ""
    submission_id: str | None = None
    status: str = "RUNNING"
    message: str = ""
    error_type: str | None = None
    exit_code: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    inferred: bool = False
    """True if no event reported the end, so that it was inferred when the session ended."""
    entrypoint: str = ""
    output: str = ""
    """The end of the driver's output, from its log file."""
    driver_end_ms: int | None = None
    """The end of the driver's process, which is before the end of a submitted job."""
    driver_exit: str = ""
    """The exit detail of the driver's process."""
    node_id: str | None = None

    @property
    def id(self) -> str:
        return self.submission_id or self.job_id

    @property
    def name(self) -> str:
        return self.id


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    node_id: str
    ip: str = ""
    is_head: bool = False
    state: str = "ALIVE"
    message: str = ""
    reason: str = ""
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    start_ms: int | None = None
    end_ms: int | None = None
    inferred: bool = False


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process that died or exited, other than on request."""

    worker_id: str
    type: str = "WORKER"
    exit_type: str = ""
    exit_detail: str = ""
    node_id: str | None = None
    ip: str = ""
    pid: int | None = None
    job_id: str | None = None
    end_ms: int | None = None
    memory_used_bytes: int | None = None
    stderr: str | None = None
    """The last 64 KiB of the worker's stderr, without Ray's marker lines; None if it was not read."""
    stderr_path: str | None = None
    """The path of this log file on the worker's node."""
    stdout: str = ""
    """The end of the worker's stdout, if its stderr is empty."""
    stdout_path: str | None = None
    exit_status: int | None = None
    exit_signal: int | None = None
    """The signal or exit status of the process, if its raylet logged it."""


class ActorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An actor that died or was restarted."""

    actor_id: str
    class_name: str = ""
    name: str = ""
    """The name by which other jobs can find it."""
    job_id: str = ""
    state: str = "DEAD"
    cause: str = ""
    """The kind of Ray's death cause: `actor_died_error_context`, `creation_task_failure_context`, …"""
    reason: str = ""
    text: str = ""
    owner_id: str = ""
    restarts: int = 0
    restart_times: tuple[int, ...] = ()
    node_id: str | None = None
    worker_id: str | None = None
    workers: tuple[str, ...] = ()
    """The workers that ran the actor, including all restarts."""
    pid: int | None = None
    end_ms: int | None = None
    inferred: bool = False
    never_started: bool = False


class MemorySample(msgspec.Struct, frozen=True):
    at_ms: int
    used: float
    total: float

    @property
    def share(self) -> float:
        return self.used / self.total if self.total else 0.0


class TrainRank(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a run of Ray Train, by the metrics that it exported."""

    run_id: str
    rank: str
    span_s: float
    """Seconds from the start of the worker to its last report."""
    waited_s: float
    """Time that its reports waited for other ranks. Before Ray 2.57, storing its checkpoints is included."""
    stored_s: float = 0.0
    """Time spent storing checkpoints. Unknown, and 0, before Ray 2.57."""


class NodeSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one node, ordered by time."""

    memory: list[MemorySample] = []
    cgroup_memory: list[MemorySample] = []
    object_store: list[MemorySample] = []
    spilled_bytes: float = 0.0
    """Total number of bytes that the object store wrote to disk."""
    cpu: list[tuple[int, float]] = []
    gpu: list[tuple[int, float]] = []
    """GPU utilization in percent."""
    available: dict[str, list[tuple[int, float]]] = {}
    """Resources that no task or actor reserves, by name."""
    oom_kills: float = 0.0
    data_blocked_s: float = 0.0
    data_used_s: float = 0.0
    """Loops over Ray Data: seconds spent waiting for the next batch, and using batches."""
    train_ranks: list[TrainRank] = []


class PlatformEvent(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    reason: str = ""
    object_name: str = ""
    message: str = ""


class PlacementGroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    job_id: str = ""
    bundles: list[dict[str, float]] = []
    placed: bool = False
    """True if its bundles ever had nodes."""


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All input of a diagnosis."""

    state: str = ENDED
    started_ms: int | None = None
    ended_ms: int | None = None
    jobs: list[JobFacts] = []
    nodes: list[NodeFacts] = []
    workers: list[WorkerFacts] = []
    actors: list[ActorFacts] = []
    failures: FailureGroups = FailureGroups([], 0, 0)
    waiting: list[WaitingGroup] = []
    platform_events: list[PlatformEvent] = []
    placement_groups: list[PlacementGroupFacts] = []
    samples: dict[str, NodeSamples] = {}
    """Samples of each node, by node id."""
    functions: list[FunctionTimes] = []
    by_node: list[NodeTimes] = []
    open_tasks: list[OpenTask] = []
    long_tasks: list[LongTask] = []
    states: StateTimeline = StateTimeline()
    times: TimeTotals = TimeTotals()
    gaps: dict[str, int] = {}
    has_logs: bool = True
    has_metrics: bool = True
    env_values: list[str] = []
    """Values of environment variables, which must not appear in any text."""
    unlisted_workers: int = 0
    """Number of dead workers that are not in `workers`, whose length is limited."""

    @property
    def head(self) -> NodeFacts | None:
        return next((node for node in self.nodes if node.is_head), None)

    def job(self, job_id: str) -> JobFacts | None:
        return self._jobs_by_id.get(job_id)

    def node(self, node_id: str | None) -> NodeFacts | None:
        return self._nodes_by_id.get(node_id)

    def worker(self, worker_id: str | None) -> WorkerFacts | None:
        return self._workers_by_id.get(worker_id)

    def actor(self, actor_id: str | None) -> ActorFacts | None:
        return self._actors_by_id.get(actor_id)

    def placement_group(self, group_id: str) -> PlacementGroupFacts | None:
        return next((group for group in self.placement_groups if group.group_id == group_id), None)

    def actor_in(self, worker_id: str) -> ActorFacts | None:
        """Return the actor that ran in a worker."""
        return self._actors_by_worker.get(worker_id)

    def failed_in(self, worker_id: str) -> list[FailureGroup]:
        """Return the groups of tasks that failed in a worker, including calls of its actor."""
        actor = self.actor_in(worker_id)
        return self._groups_by_worker[worker_id] + (self._groups_by_actor[actor.actor_id] if actor else [])

    @cached_property
    def _jobs_by_id(self) -> dict[str, JobFacts]:
        return {job.job_id: job for job in reversed(self.jobs)}

    @cached_property
    def _nodes_by_id(self) -> dict[str | None, NodeFacts]:
        return {node.node_id: node for node in self.nodes}

    @cached_property
    def _workers_by_id(self) -> dict[str | None, WorkerFacts]:
        return {worker.worker_id: worker for worker in self.workers}

    @cached_property
    def _actors_by_id(self) -> dict[str | None, ActorFacts]:
        return {actor.actor_id: actor for actor in self.actors}

    @cached_property
    def _actors_by_worker(self) -> dict[str, ActorFacts]:
        return {worker: actor for actor in self.actors for worker in actor.workers}

    @cached_property
    def _groups_by_worker(self) -> defaultdict[str, list[FailureGroup]]:
        found: defaultdict[str, list[FailureGroup]] = defaultdict(list)
        for group in self.failures.groups:
            if group.worker_id:
                found[group.worker_id].append(group)
        return found

    @cached_property
    def _groups_by_actor(self) -> defaultdict[str, list[FailureGroup]]:
        found: defaultdict[str, list[FailureGroup]] = defaultdict(list)
        for group in self.failures.groups:
            if group.actor_id and group.type == "ACTOR_TASK":
                found[group.actor_id].append(group)
        return found
