"""Each job of a session with several has its own verdict, and a share of the session's resource hours."""

import json
from typing import Any

import pytest

from rayhistory.diagnosis.findings import Diagnosis, Finding, Verdict
from rayhistory.index.query.run_figures import HeldResources, RunFigures
from rayhistory.runs.prices import Prices
from rayhistory.runs.run_groups import group_runs, runs_of, summarize_group
from rayhistory.runs.session_summary import SessionSummary
from rayhistory.runs.summarize import SummaryInput, summarize
from rayhistory.sessions import SessionRef

REF = SessionRef.checked("default", "shared", "session_2026-11-15_19-18-08_055078_1")
HOUR = 3_600_000


def job(number: int, start: float, end: float, status: str = "SUCCEEDED", **values: Any) -> dict[str, Any]:
    return {
        "type": "SUBMISSION", "job_id": f"{number:02}000000", "submission_id": f"raysubmit_{number}", "metadata": None,
        "entrypoint": f"python job_{'abcdef'[number]}.py", "runtime_env": None, "status": status,
        "start_time": int(start * HOUR), "end_time": int(end * HOUR), "closed_by_history": False,
    } | values  # fmt: skip


def node(end: float = 4, **resources: float) -> dict[str, Any]:
    return {
        "node_id": f"n{end}", "instance_type_name": None, "is_head": False, "state_message": None, "start_time_ms": 0,
        "resources": json.dumps(resources or {"CPU": 10}), "end_time_ms": int(end * HOUR), "closed_by_history": True,
    }  # fmt: skip


def summary(*jobs: dict[str, Any], **values: Any) -> SessionSummary:
    facts = {"started_ms": 0, "last_ms": 4 * HOUR, "nodes": [node()]} | values
    return summarize(SummaryInput(ref=REF, jobs=list(jobs), total_jobs=len(jobs), **facts)).summary  # type: ignore[arg-type]


def cpu_hours(found: SessionSummary) -> list[float]:
    return [run.hours.cpu.allocated for run in runs_of(found)]


def test_jobs_that_run_at_the_same_time_share_the_nodes() -> None:
    """One runs alone for an hour, then both for an hour, then the other alone for two."""
    assert cpu_hours(summary(job(1, 0, 2), job(2, 1, 4))) == pytest.approx([15, 25])


def test_time_without_a_job_is_shared_like_the_rest() -> None:
    found = summary(job(1, 0, 1), job(2, 2, 3))
    assert cpu_hours(found) == pytest.approx([20, 20])
    assert sum(cpu_hours(found)) == pytest.approx(found.cpu.allocated)


def test_node_that_lived_for_one_job_is_that_jobs() -> None:
    found = summary(job(1, 0, 1), job(2, 1, 4), nodes=[node(), node(1, GPU=8)])
    assert [run.hours.gpu.allocated for run in runs_of(found)] == pytest.approx([8, 0])


def test_jobs_whose_clocks_disagree_share_evenly() -> None:
    assert cpu_hours(summary(job(1, 3, 1), job(2, 4, 2))) == pytest.approx([20, 20])


def test_held_hours_of_a_job_are_its_own() -> None:
    held = [HeldResources('{"CPU": 1.0}', 3 * HOUR, "01000000"), HeldResources('{"CPU": 2.0}', 3 * HOUR, "02000000")]
    found = summary(job(1, 0, 2), job(2, 2, 4), figures=RunFigures([], held))
    assert [run.hours.cpu.reserved for run in runs_of(found)] == [3, 6]
    assert found.cpu.reserved == 9


def test_only_job_of_a_session_has_all_of_it() -> None:
    (run,) = runs_of(summary(job(1, 0, 1)))
    assert run.job.hours is None
    assert run.hours.cpu.allocated == 40


def test_groups_of_one_session_add_up_to_its_hours_and_its_cost() -> None:
    found = summary(job(1, 0, 2), job(2, 1, 4))
    groups = [summarize_group(group, Prices(cpu=0.5)) for group in group_runs([found])]
    assert len(groups) == 2
    assert sum(group.cpu_hours for group in groups) == pytest.approx(40)
    assert sum(group.cost or 0 for group in groups) == pytest.approx(20)


def finding(code: str, *subjects: str, **values: Any) -> Finding:
    return Finding(
        code=code, severity="critical", headline=f"{code}!", fingerprint=code[:4], subjects=list(subjects), **values
    )


def test_each_failed_job_has_the_finding_that_names_it() -> None:
    diagnosis = Diagnosis(
        verdict=Verdict(code="worker_oom_killed", headline="worker_oom_killed!", confidence="likely", finding=0),
        findings=[finding("worker_oom_killed", "raysubmit_1"), finding("user_exception", "x", "02000000")],
    )
    found = summary(
        job(1, 0, 1, "FAILED"), job(2, 0, 1, "FAILED"), job(3, 0, 1), job(4, 0, 1, "FAILED"), diagnosis=diagnosis
    )
    codes = [run.verdict.code if run.verdict else None for run in runs_of(found)]
    assert codes == ["worker_oom_killed", "user_exception", None, None]
    assert [run.fingerprint for run in runs_of(found)] == ["work", "user", None, None]
    assert found.verdict is not None


def test_jobs_that_ended_with_their_session_have_its_verdict() -> None:
    diagnosis = Diagnosis(
        verdict=Verdict(code="head_lost", headline="The head was lost", confidence="certain", finding=0),
        findings=[finding("head_lost")],
    )
    found = summary(job(1, 0, 1, "FAILED", closed_by_history=True), job(2, 0, 1), diagnosis=diagnosis)
    assert [run.headline for run in runs_of(found)] == ["The head was lost", None]
