"""Summaries are bounded, keep no secrets, and survive clocks that disagree."""

import json
from typing import Any

import msgspec
import pytest

from rayhistory.diagnosis.findings import Counts, Diagnosis, Finding, Verdict
from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples
from rayhistory.index.query.run_figures import FunctionFigures, HeldResources, RunFigures
from rayhistory.runs.session_summary import MAX_SUMMARY_BYTES, decode_summary
from rayhistory.runs.summarize import SummaryInput, summarize
from rayhistory.sessions import SessionRef

REF = SessionRef.checked("default", "nightly", "session_2026-11-15_19-18-08_055078_1", "rayjob", "nightly")
HOUR = 3_600_000


def job(**values: Any) -> dict[str, Any]:
    return {
        "type": "SUBMISSION", "job_id": "01000000", "submission_id": "raysubmit_1", "entrypoint": "python train.py",
        "runtime_env": None, "metadata": None, "status": "SUCCEEDED", "start_time": 0, "end_time": HOUR,
        "closed_by_history": False,
    } | values  # fmt: skip


def node(**values: Any) -> dict[str, Any]:
    return {
        "node_id": "n1", "instance_type_name": None, "is_head": False, "state_message": None, "start_time_ms": 0,
        "resources": json.dumps({"CPU": 4, "GPU": 2, "memory": 8 * 2**30}), "end_time_ms": HOUR,
        "closed_by_history": True,
    } | values  # fmt: skip


def summary(**values: Any) -> Any:
    return summarize(SummaryInput(ref=REF, started_ms=0, last_ms=HOUR, **values))


def test_hours_are_allocated_reserved_and_used() -> None:
    samples = {
        "n1": NodeSamples(
            cpu=[(0, 25.0), (60_000, 75.0)], gpu=[(0, 100.0)], memory=[MemorySample(0, 4 * 2**30, 8 * 2**30)]
        )
    }
    held = [HeldResources('{"CPU": 1.0}', 2 * HOUR), HeldResources('{"GPU": 0.5, "CPU": 1}', HOUR)]
    found = summary(nodes=[node()], figures=RunFigures([], held), samples=samples).summary
    assert (found.cpu.allocated, found.cpu.reserved, found.cpu.used, found.cpu.idle) == (4, 3, 2, 2)
    assert (found.gpu.allocated, found.gpu.reserved, found.gpu.used) == (2, 0.5, 1)
    assert (found.memory.allocated, found.memory.used) == (8, 4)


def test_without_metrics_what_is_not_reserved_is_idle() -> None:
    found = summary(nodes=[node()], figures=RunFigures([], [HeldResources('{"CPU": 1.0}', HOUR)])).summary
    assert found.cpu.used is None
    assert found.cpu.idle == 3


def test_metrics_of_few_nodes_are_not_taken_for_all() -> None:
    nodes = [node(node_id=f"n{number}") for number in range(3)]
    assert summary(nodes=nodes, samples={"n1": NodeSamples(cpu=[(0, 50.0)])}).summary.cpu.used is None


@pytest.mark.parametrize("times", [(HOUR, 0), (None, HOUR), (2**62, 2**62 + 1)])
def test_clocks_that_disagree_give_no_hours_and_no_duration(times: tuple[int | None, int]) -> None:
    start, end = times
    found = summary(
        jobs=[job(start_time=start, end_time=end)], total_jobs=1, nodes=[node(start_time_ms=start, end_time_ms=end)]
    ).summary
    assert found.jobs[0].duration_ms is None
    assert found.cpu.allocated == pytest.approx(0, abs=1e-5)


def test_values_of_environment_variables_are_not_kept() -> None:
    environment = {"env_vars": {"TOKEN": "s3cret"}, "pip": {"packages": ["torch==2.9", "numpy"]}, "uv": ["polars"]}
    stored = summary(jobs=[job(runtime_env=json.dumps(environment))], total_jobs=1)
    assert stored.details.env_vars == ["TOKEN"]
    assert stored.details.packages == ["numpy", "polars", "torch==2.9"]
    assert b"s3cret" not in msgspec.json.encode(stored)


def test_equal_environments_have_equal_digests() -> None:
    def digest(**environment: Any) -> str:
        text = json.dumps(environment)
        return str(summary(jobs=[job(runtime_env=text)], total_jobs=1).summary.jobs[0].runtime_env)

    assert digest(pip=["a"], working_dir="gcs://1") == digest(working_dir="gcs://2", pip=["a"]) != digest(pip=["b"])


def test_hostile_values_are_bounded() -> None:
    huge = "<script>" + "x" * 5_000
    environment = json.dumps({"pip": [f"{number}{huge}" for number in range(400)]})
    jobs = [
        job(submission_id=f"raysubmit_{number}", entrypoint=huge, metadata=json.dumps({huge: huge, "job_name": huge}),
            runtime_env=environment)
        for number in range(150)
    ]  # fmt: skip
    functions = [FunctionFigures(name=huge + str(number), count=1) for number in range(200)]
    stored = summary(jobs=jobs[:101], total_jobs=len(jobs), figures=RunFigures(functions, []))
    assert stored.summary.unlisted_jobs == 50
    data = msgspec.json.encode(stored)
    assert len(data) < MAX_SUMMARY_BYTES
    assert decode_summary(data) == stored
    assert len({each.name for each in stored.details.functions}) == 200


@pytest.mark.parametrize(
    "metadata",
    [{"note": "x" * 2**20}, {f"key-{number}": "value" for number in range(50_000)}, {"a": [["b"] * 100_000] * 3}],
)
def test_metadata_of_a_megabyte_is_cut(metadata: dict[str, Any]) -> None:
    stored = summary(jobs=[job(metadata=json.dumps(metadata | {"job_name": "nightly"}))], total_jobs=1)
    assert len(msgspec.json.encode(stored)) < 10_000
    assert len(stored.summary.jobs[0].metadata) <= 20


def test_metadata_that_is_no_object_is_ignored() -> None:
    for text in ("[1, 2]", "{", '"text"', "[" * 100_000):
        assert summary(jobs=[job(metadata=text)], total_jobs=1).summary.jobs[0].metadata == {}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"summary": {}}', b"{" * 100_000, b"\xff", b" " * (MAX_SUMMARY_BYTES + 1)]
)
def test_damaged_summary_is_none(data: bytes) -> None:
    assert decode_summary(data) is None


def test_verdict_has_the_fingerprint_of_its_finding() -> None:
    finding = Finding(
        code="user_exception", severity="critical", headline="ValueError in load", fingerprint="ab12",
        counts=Counts(tasks=3), first_ms=5, last_ms=9,
    )  # fmt: skip
    verdict = Verdict(code="user_exception", headline="ValueError in load", confidence="certain", finding=0)
    stored = summary(diagnosis=Diagnosis(verdict=verdict, findings=[finding]))
    assert stored.summary.verdict.fingerprint == "ab12"
    assert stored.summary.fingerprints == ["ab12"]
    assert stored.details.fingerprints[0].count == 3


def test_lost_nodes_are_those_that_died_before_the_end() -> None:
    nodes = [
        node(),
        node(node_id="n2", state_message="Unexpected termination: health check failed", closed_by_history=False),
        node(node_id="n3", state_message="Expected termination: drained", closed_by_history=False),
    ]
    assert summary(nodes=nodes).summary.lost_nodes == 1


def test_metrics_start_with_the_session() -> None:
    cpu = [(minute * 60_000, float(minute)) for minute in range(60)]
    (metric,) = summary(samples={"n1": NodeSamples(cpu=cpu)}).details.metrics
    assert metric.name == "cpu_percent"
    assert metric.step_ms == 60_000
    assert metric.values == [float(minute) for minute in range(60)]
