"""The values of a diagnosis, as the API returns them."""

from typing import Literal

import msgspec

from rayhistory.index.query.state_timeline import StateTimeline

VERSION = 1
Severity = Literal["critical", "warning", "info"]
Confidence = Literal["certain", "likely", "unexplained"]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks, actors, workers, nodes and jobs a finding is about."""

    tasks: int = 0
    actors: int = 0
    workers: int = 0
    nodes: int = 0
    jobs: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    @property
    def total(self) -> int:
        return self.tasks + self.actors + self.workers + self.nodes + self.jobs


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One observation that supports a finding. `url` is relative to the session."""

    kind: str
    id: str = ""
    text: str = ""
    at_ms: int | None = None
    url: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, with all its consequences."""

    code: str
    severity: Severity
    headline: str
    detail: str = ""
    confidence: Confidence = "certain"
    root: bool = True
    """True for a cause of failures. False for slowness, missing data, and failures that the program handled."""
    first_ms: int | None = None
    last_ms: int | None = None
    counts: Counts = Counts()
    evidence: list[Evidence] = []
    suggestion: str = ""
    fingerprint: str | None = None
    new: bool | None = None
    """True if earlier runs of the same job did not have this failure; None if unknown."""
    consequences: int = 0
    """The number of tasks, actors, workers and jobs that failed because of the cause."""
    subjects: list[str] = []
    """For links: ids of failed tasks, actors, workers and nodes, and `job_id error_type function` of groups of tasks.
    """


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why the session failed, in one line. `finding` is the position of this cause in the list of findings."""

    code: str
    headline: str
    confidence: Confidence
    finding: int


class SkippedRule(msgspec.Struct, frozen=True):
    """A rule that could not run, and the reason."""

    code: str
    reason: str


class TimeShare(msgspec.Struct, frozen=True):
    """The time that all tasks together spent in one state."""

    state: str
    ms: int


class PathStep(msgspec.Struct, frozen=True, kw_only=True):
    """Adjacent tasks of one function on the critical path."""

    function: str
    tasks: int
    run_ms: int
    first_ms: int
    last_ms: int
    task_id: str
    """The id of the longest of these tasks."""


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """The chain of tasks that determined how long a job took.

    Estimated from times, because Ray exports no data lineage.
    """

    approximate: bool = True
    job_id: str
    span_ms: int
    """Time from the creation of the job's first task to the end of its last."""
    run_ms: int
    """Run time of the tasks on the path. More CPUs cannot make the job shorter than this."""
    tasks: int
    ideal_ms: int | None = None
    """Run time of all tasks, divided by the CPUs of the cluster."""
    steps: list[PathStep] = []


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnosis of one session."""

    version: int = VERSION
    verdict: Verdict | None = None
    findings: list[Finding] = []
    skipped: list[SkippedRule] = []
    provisional: bool = False
    """True if the session is still running, or if this is the diagnosis as of an earlier time."""
    time_shares: list[TimeShare] = []
    """The time of all tasks from creation to end, by state."""
    states: StateTimeline = StateTimeline()
    """The number of tasks in each state over time."""
    critical_path: CriticalPath | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    """The time when the session ended, or while it runs, the time of its last data."""
