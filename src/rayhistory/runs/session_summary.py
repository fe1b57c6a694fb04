"""The summary of a session, for lists, trends and comparisons of runs. Values from clusters are limited here."""

from typing import Annotated

import msgspec

from rayhistory.index.query.run_figures import FunctionFigures
from rayhistory.sessions.records import Count

MAX_SUMMARY_BYTES = 1 << 20
MAX_JOBS = 100
MAX_FINGERPRINTS = 50
MAX_PACKAGES = 300
MAX_NODE_TYPES = 50

Text = Annotated[str, msgspec.Meta(max_length=1_000)]
Hours = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Time = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""Milliseconds since 1970, by some clock of the cluster."""


class ResourceHours(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hours of one resource: CPU, GPU, or GiB of memory."""

    allocated: Hours = 0.0
    """Hours of all nodes while they lived, which were paid for."""
    reserved: Hours = 0.0
    """Hours for which tasks and actors reserved the resource."""
    used: Hours | None = None
    """Hours for which the resource was in use, measured on the nodes; None without metrics."""

    @property
    def busy(self) -> float:
        """Used hours, or reserved hours if use was not measured."""
        return min(self.reserved if self.used is None else self.used, self.allocated)

    @property
    def idle(self) -> float:
        return max(0.0, self.allocated - self.busy)


class SummaryVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why a session or a job failed, from the diagnosis."""

    code: Text
    headline: Text
    confidence: Text = "likely"
    fingerprint: Text | None = None


class JobHours(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The share of one job in the resource hours of its session. Allocated hours are an estimate."""

    cpu: ResourceHours = ResourceHours()
    gpu: ResourceHours = ResourceHours()
    memory: ResourceHours = ResourceHours()
    """Memory in GiB-hours."""


class RunJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of a session: a run."""

    id: Text = ""
    """The submission id, or the job id of a driver without one; empty for a session without jobs."""
    job_id: Text = ""
    name: Text = ""
    """The name in the job's metadata."""
    entrypoint: Text = ""
    status: Text = "RUNNING"
    started_ms: Time | None = None
    ended_ms: Time | None = None
    inferred: bool = False
    """True if no event reported the end, so that it was inferred when the session ended."""
    metadata: dict[Text, Text] = {}
    runtime_env: Text = ""
    """A digest of the runtime environment, without values of environment variables."""
    verdict: SummaryVerdict | None = None
    """Why this job failed, in a session with several jobs."""
    hours: JobHours | None = None
    """The job's share of the session's resource hours, in a session with several jobs."""

    @property
    def duration_ms(self) -> int | None:
        """Duration of the job; None if it is running, or if its times are inconsistent."""
        if self.started_ms is None or self.ended_ms is None or self.ended_ms < self.started_ms:
            return None
        return self.ended_ms - self.started_ms


class SeenFingerprint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kind of failure that the session had."""

    fingerprint: Text
    code: Text
    headline: Text = ""
    count: Count = 0
    first_ms: Time | None = None
    last_ms: Time | None = None


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data for lists and trends. It is small, because it is in memory for all sessions."""

    namespace: Text
    cluster: Text
    session: Text
    owner_kind: Text | None = None
    owner_name: Text | None = None
    state: Text = "ended"
    started_ms: Time | None = None
    ended_ms: Time | None = None
    jobs: list[RunJob] = []
    unlisted_jobs: Count = 0
    verdict: SummaryVerdict | None = None
    fingerprints: list[Text] = []
    cpu: ResourceHours = ResourceHours()
    gpu: ResourceHours = ResourceHours()
    memory: ResourceHours = ResourceHours()
    """Memory in GiB-hours."""
    ray_version: Text = ""
    python_version: Text = ""
    tasks: Count = 0
    failed_tasks: Count = 0
    nodes: Count = 0
    lost_nodes: Count = 0
    """Number of nodes that died unexpectedly before the session ended."""
    oom_kills: Count = 0
    size_bytes: Count = 0
    index_bytes: Count = 0

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.namespace, self.cluster, self.session

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.cluster}/{self.session}"

    @property
    def is_over(self) -> bool:
        return self.state != "running"


class NodeType(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes with the same resources."""

    name: Text = ""
    count: Count = 0
    resources: dict[Text, float] = {}


class SummaryMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of the whole session from its start: the mean of all nodes in each step."""

    name: Text
    step_ms: Count
    values: list[float | None]


class SessionDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More data of a session, for the page of a group and for comparisons."""

    functions: list[FunctionFigures] = []
    fingerprints: list[SeenFingerprint] = []
    packages: list[Text] = []
    env_vars: list[Text] = []
    """Names of environment variables, without values."""
    node_types: list[NodeType] = []
    metrics: list[SummaryMetric] = []


class StoredSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `summary.json`, the file of the product."""

    summary: SessionSummary
    details: SessionDetails


def decode_summary(data: bytes) -> StoredSummary | None:
    """Parse a stored summary; None if it is malformed or too large, because stored objects are untrusted."""
    if len(data) > MAX_SUMMARY_BYTES:
        return None
    try:
        return msgspec.json.decode(data, type=StoredSummary)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
