"""The values of a diagnosis, as the API returns them."""

from typing import Literal

import msgspec

from rayhistory.index.query.state_timeline import StateTimeline

VERSION = 1
Severity = Literal["critical", "warning", "info"]
Confidence = Literal["certain", "likely", "unexplained"]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many things a finding is about."""

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
    """One observation that a finding rests on. `url` leads to it, relative to the session."""

    kind: str
    id: str = ""
    text: str = ""
    at_ms: int | None = None
    url: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, with everything that followed from it."""

    code: str
    severity: Severity
    headline: str
    detail: str = ""
    confidence: Confidence = "certain"
    root: bool = True
    """A cause of failures; False for slowness, recording and failures that the program handled."""
    first_ms: int | None = None
    last_ms: int | None = None
    counts: Counts = Counts()
    evidence: list[Evidence] = []
    suggestion: str = ""
    fingerprint: str | None = None
    new: bool | None = None
    """The last runs of the same job did not fail like this; None if that is not known."""
    consequences: int = 0
    """The number of tasks, actors, workers and jobs that failed because of it."""
    subjects: list[str] = []
    """Ids of its tasks, actors, workers and nodes, and `job_id error_type function` of its tasks, for their pages."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why the session failed, in one line. `finding` is its place in the list of findings."""

    code: str
    headline: str
    confidence: Confidence
    finding: int


class SkippedRule(msgspec.Struct, frozen=True):
    """A rule that could not run, and why."""

    code: str
    reason: str


class TimeShare(msgspec.Struct, frozen=True):
    """How long all tasks together were in one state."""

    state: str
    ms: int


class PathStep(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one function that follow each other on the critical path."""

    function: str
    tasks: int
    run_ms: int
    first_ms: int
    last_ms: int
    task_id: str
    """The longest of them."""


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that one after another decided how long a job took. Estimated from times: Ray exports no data lineage."""

    approximate: bool = True
    job_id: str
    span_ms: int
    """From the creation of the job's first task to the end of its last."""
    run_ms: int
    """Run time of the tasks on the path: more CPUs do not make the job shorter than that."""
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
    """The session is running, or this is its state at an earlier time."""
    time_shares: list[TimeShare] = []
    """Where the time of tasks went, from creation to end."""
    states: StateTimeline = StateTimeline()
    """How many tasks were in each state over time."""
    critical_path: CriticalPath | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    """The time of the last data while the session is running."""
