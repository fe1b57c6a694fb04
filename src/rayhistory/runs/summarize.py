"""Make the summary of a session. A pure function of tables, diagnosis and samples."""

import hashlib
from collections.abc import Iterable
from statistics import fmean
from typing import Any

import msgspec

from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.headlines import one_line
from rayhistory.diagnosis.lenient_json import members
from rayhistory.diagnosis.session_facts import NodeSamples
from rayhistory.index.query.query import Row
from rayhistory.index.query.run_figures import FunctionFigures, RunFigures
from rayhistory.runs.environment import env_var_names, environment_digest, packages_of
from rayhistory.runs.job_figures import session_verdict, with_job_figures
from rayhistory.runs.resources import NodeLife, node_types, session_resources
from rayhistory.runs.session_summary import (
    MAX_FINGERPRINTS,
    MAX_JOBS,
    RunJob,
    SeenFingerprint,
    SessionDetails,
    SessionSummary,
    StoredSummary,
    SummaryMetric,
)
from rayhistory.sessions import SessionRef

_MAX_NAME, _MAX_ENTRYPOINT, _MAX_VALUE, _MAX_METADATA = 200, 500, 200, 20
_NAME_FIELDS = ("job_name", "name")
_METRIC_STEPS = 60
_MAX_TIME = 2**53
_MAX_COUNT = 2**53
_UNEXPECTED = ("Unexpected termination", "Terminated due to preemption")


class SummaryInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a summary."""

    ref: SessionRef
    state: str = "ended"
    started_ms: int | None = None
    last_ms: int | None = None
    """The time of the last data."""
    jobs: list[Row] = []
    total_jobs: int = 0
    nodes: list[Row] = []
    figures: RunFigures = RunFigures([], [])
    diagnosis: Diagnosis = Diagnosis()
    samples: dict[str, NodeSamples] = {}
    ray_version: str = ""
    python_version: str = ""
    tasks: int = 0
    failed_tasks: int = 0
    oom_kills: int = 0
    size_bytes: int = 0
    index_bytes: int = 0


def summarize(given: SummaryInput) -> StoredSummary:
    lives = [_life(row, given.last_ms) for row in given.nodes]
    resources = session_resources(lives, given.figures.held, given.samples)
    seen = _fingerprints(given.diagnosis)
    ref, is_over = given.ref, given.state != "running"
    summary = SessionSummary(
        namespace=ref.namespace,
        cluster=ref.cluster,
        session=ref.session,
        owner_kind=ref.owner_kind,
        owner_name=ref.owner_name,
        state=given.state,
        started_ms=_time(given.started_ms),
        ended_ms=_time(given.last_ms) if is_over else None,
        jobs=with_job_figures(
            [run_job(row) for row in given.jobs[:MAX_JOBS]], resources, lives, given.figures.held, given.diagnosis
        ),
        unlisted_jobs=max(0, given.total_jobs - MAX_JOBS),
        verdict=session_verdict(given.diagnosis),
        fingerprints=[each.fingerprint for each in seen],
        cpu=resources.cpu,
        gpu=resources.gpu,
        memory=resources.memory,
        ray_version=one_line(given.ray_version, _MAX_NAME),
        python_version=one_line(given.python_version, _MAX_NAME),
        tasks=given.tasks,
        failed_tasks=given.failed_tasks,
        nodes=len(given.nodes),
        lost_nodes=sum(_is_lost(row) for row in given.nodes),
        oom_kills=given.oom_kills,
        size_bytes=given.size_bytes,
        index_bytes=given.index_bytes,
    )
    environments = [row["runtime_env"] for row in given.jobs[:MAX_JOBS]]
    details = SessionDetails(
        functions=listed_functions(given.figures.functions),
        fingerprints=seen,
        packages=packages_of(environments),
        env_vars=env_var_names(environments),
        node_types=node_types(lives),
        metrics=common_start_metrics(given.samples, given.started_ms, given.last_ms),
    )
    return StoredSummary(summary=summary, details=details)


def run_job(row: Row) -> RunJob:
    metadata = _metadata(row["metadata"])
    return RunJob(
        id=one_line(row["submission_id"] or row["job_id"] or "", _MAX_NAME),
        job_id=one_line(row["job_id"] or "", _MAX_NAME),
        name=next((metadata[field] for field in _NAME_FIELDS if metadata.get(field)), ""),
        entrypoint=one_line(row["entrypoint"] or "", _MAX_ENTRYPOINT),
        status=one_line(row["status"] or "", _MAX_NAME),
        started_ms=_time(row["start_time"]),
        ended_ms=_time(row["end_time"]),
        inferred=bool(row["closed_by_history"]),
        metadata=metadata,
        runtime_env=environment_digest(row["runtime_env"]),
    )


def listed_functions(functions: list[FunctionFigures]) -> list[FunctionFigures]:
    """Shorten names. Drop figures per job if the session has only one job."""
    jobs = {each.job_id for each in functions if each.job_id is not None}
    return [
        msgspec.structs.replace(each, name=_short_name(each.name))
        for each in functions
        if each.job_id is None or len(jobs) > 1
    ]


def _short_name(name: str) -> str:
    """Cut a long name and append a digest, so that different long names stay different."""
    line = one_line(name, _MAX_NAME)
    return line if line == name else f"{line[:180]}…{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def common_start_metrics(
    samples: dict[str, NodeSamples], started_ms: int | None, last_ms: int | None
) -> list[SummaryMetric]:
    """Return means over all nodes in equal steps from the session's start, so that sessions can be compared."""
    if started_ms is None or last_ms is None or last_ms <= started_ms:
        return []
    step_ms = max(1_000, -(-(last_ms - started_ms) // _METRIC_STEPS))
    of_nodes: dict[str, Iterable[list[tuple[int, float]]]] = {
        "cpu_percent": [each.cpu for each in samples.values()],
        "gpu_percent": [each.gpu for each in samples.values()],
        "memory_percent": [[(m.at_ms, m.share * 100) for m in each.memory] for each in samples.values()],
    }
    found = {name: _steps(nodes, started_ms, step_ms) for name, nodes in of_nodes.items()}
    return [SummaryMetric(name=name, step_ms=step_ms, values=values) for name, values in found.items() if any(values)]


def _steps(nodes: Iterable[list[tuple[int, float]]], started_ms: int, step_ms: int) -> list[float | None]:
    steps: list[list[float]] = [[] for _ in range(_METRIC_STEPS)]
    for points in nodes:
        for at_ms, value in points:
            if 0 <= (step := (at_ms - started_ms) // step_ms) < _METRIC_STEPS:
                steps[step].append(value)
    means = [round(fmean(values), 2) if values else None for values in steps]
    while means and means[-1] is None:
        means.pop()
    return means


def _life(row: Row, last_ms: int | None) -> NodeLife:
    resources = _numbers(row["resources"])
    name = one_line(row["instance_type_name"] or "", _MAX_NAME)
    return NodeLife(
        node_id=row["node_id"],
        name=name or ("head" if row["is_head"] else "worker"),
        resources=resources,
        start_ms=row["start_time_ms"],
        end_ms=last_ms if row["end_time_ms"] is None else row["end_time_ms"],
    )


def _numbers(text: str | None) -> dict[str, float]:
    return {name: float(value) for name, value in members(text).items() if isinstance(value, int | float)}


def _is_lost(row: Row) -> bool:
    return not row["closed_by_history"] and (row["state_message"] or "").startswith(_UNEXPECTED)


def _fingerprints(diagnosis: Diagnosis) -> list[SeenFingerprint]:
    seen: dict[str, SeenFingerprint] = {}
    for finding in diagnosis.findings:
        if finding.fingerprint and finding.root:
            seen.setdefault(
                finding.fingerprint,
                SeenFingerprint(
                    fingerprint=one_line(finding.fingerprint, _MAX_NAME), code=finding.code,
                    headline=one_line(finding.headline), count=min(finding.counts.total, _MAX_COUNT),
                    first_ms=_time(finding.first_ms), last_ms=_time(finding.last_ms),
                ),
            )  # fmt: skip
    return list(seen.values())[:MAX_FINGERPRINTS]


def _metadata(text: str | None) -> dict[str, str]:
    """Return the first short fields of a job's metadata, which may be large."""
    fields: dict[str, Any] = members(text)
    return {
        one_line(str(name), 64): one_line(str(value), _MAX_VALUE)
        for name, value in list(fields.items())[:_MAX_METADATA]
        if isinstance(value, str | int | float)
    }


def _time(value: int | None) -> int | None:
    return value if value is not None and abs(value) < _MAX_TIME else None
