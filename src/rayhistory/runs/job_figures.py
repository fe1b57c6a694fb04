"""Verdict and resource hours of each job in a session with several jobs.

The resources that a job's tasks and actors held are exact. Nodes are not assigned to jobs, so the allocated resources
are an estimate: jobs that run at the same time share the nodes equally, and time without a job is shared in the same
ratio. The shares of all jobs add up to the session's figures.
"""

from collections.abc import Iterable, Sequence

import msgspec

from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.headlines import one_line
from rayhistory.index.query.run_figures import HeldResources
from rayhistory.runs.resources import HOUR_MS, NodeLife, SessionResources, allocated_of, reserved_hours
from rayhistory.runs.session_summary import JobHours, ResourceHours, RunJob, SummaryVerdict

_RESOURCES = ("cpu", "gpu", "memory")
Amounts = tuple[float, float, float]


def with_job_figures(
    jobs: list[RunJob],
    session: SessionResources,
    nodes: Sequence[NodeLife],
    held: Sequence[HeldResources],
    diagnosis: Diagnosis,
) -> list[RunJob]:
    """Return the jobs of a session, each with a verdict and hours.

    A single job is returned unchanged, because the figures of the session are those of the job.
    """
    if len(jobs) < 2:
        return jobs
    shares = allocation_shares(jobs, nodes)
    reserved = [reserved_hours(each for each in held if each.job_id == job.job_id) for job in jobs]
    totals = tuple(map(sum, zip(*reserved, strict=True)))
    return [
        msgspec.structs.replace(
            job,
            verdict=job_verdict(job, diagnosis),
            hours=JobHours(**{
                name: _hours(getattr(session, name), shares[place][number], reserved[place][number], totals[number])
                for number, name in enumerate(_RESOURCES)
            }),
        )
        for place, job in enumerate(jobs)
    ]  # fmt: skip


def job_verdict(job: RunJob, diagnosis: Diagnosis) -> SummaryVerdict | None:
    """Return why a job failed or was stopped: the first root cause that names it.

    For a job that ended with its session, return the session's verdict. Return None for all other jobs.
    """
    if job.status not in ("FAILED", "STOPPED"):
        return None
    if job.inferred:
        return session_verdict(diagnosis)
    names = {job.id, job.job_id} - {""}
    for finding in diagnosis.findings:
        if finding.root and names.intersection(finding.subjects):
            return SummaryVerdict(
                code=finding.code, headline=one_line(finding.headline), confidence=finding.confidence,
                fingerprint=finding.fingerprint,
            )  # fmt: skip
    return None


def session_verdict(diagnosis: Diagnosis) -> SummaryVerdict | None:
    verdict = diagnosis.verdict
    if verdict is None:
        return None
    finding = diagnosis.findings[verdict.finding] if 0 <= verdict.finding < len(diagnosis.findings) else None
    return SummaryVerdict(
        code=verdict.code,
        headline=one_line(verdict.headline),
        confidence=verdict.confidence,
        fingerprint=finding.fingerprint if finding else None,
    )


def _hours(session: ResourceHours, share: float, reserved: float, total_reserved: float) -> ResourceHours:
    """Return a job's share of the hours. Measured hours are shared like the resources that the jobs held."""
    allocated = session.allocated * share
    used = None
    if session.used is not None:
        used = session.used * (reserved / total_reserved if total_reserved else share)
    return ResourceHours(
        allocated=round(allocated, 6), reserved=round(reserved, 6), used=None if used is None else round(used, 6)
    )


def allocation_shares(jobs: Sequence[RunJob], nodes: Iterable[NodeLife]) -> list[Amounts]:
    """Return the share of each job in the CPU-, GPU- and GiB-hours of the nodes. They add up to 1."""
    hours = _hours_while_running(jobs, nodes)
    totals = [sum(column) for column in zip(*hours, strict=True)]
    even = 1 / len(jobs)
    return [
        (
            own[0] / totals[0] if totals[0] else even,
            own[1] / totals[1] if totals[1] else even,
            own[2] / totals[2] if totals[2] else even,
        )
        for own in hours
    ]


def _hours_while_running(jobs: Sequence[RunJob], nodes: Iterable[NodeLife]) -> list[list[float]]:
    """Return the resources of the nodes while each job ran, shared equally by the jobs that ran at that time."""
    changes: list[tuple[int, int, Amounts]] = []  # time, job or -1, what a node adds
    for place, job in enumerate(jobs):
        if job.duration_ms:
            changes += [(job.started_ms or 0, place, (1, 0, 0)), (job.ended_ms or 0, place, (-1, 0, 0))]
    for node in nodes:
        if node.start_ms is not None and node.end_ms is not None and node.end_ms > node.start_ms:
            cpu, gpu, memory = allocated_of(node)
            changes += [(node.start_ms, -1, (cpu, gpu, memory)), (node.end_ms, -1, (-cpu, -gpu, -memory))]
    hours = [[0.0, 0.0, 0.0] for _ in jobs]
    running: set[int] = set()
    present = [0.0, 0.0, 0.0]
    before = 0
    for at_ms, place, amounts in sorted(changes):
        for job_place in running:
            for number in range(3):
                hours[job_place][number] += max(0.0, present[number]) * (at_ms - before) / HOUR_MS / len(running)
        before = at_ms
        if place < 0:
            present = [old + new for old, new in zip(present, amounts, strict=True)]
        elif amounts[0] > 0:
            running.add(place)
        else:
            running.discard(place)
    return hours
