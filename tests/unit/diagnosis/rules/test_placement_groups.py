"""Placement groups that were never placed."""

import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.findings import Diagnosis
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.session_facts import NodeFacts, PlacementGroupFacts, SessionFacts
from rayhistory.index.query.failure_groups import WaitingGroup

ID = "d8e000614599910299842b5bae9902000000"
TIMEOUT = (
    'Traceback (most recent call last):\n  File "/app/main.py", line 9, in <module>\n    ray.get(ready, timeout=60)\n'
    "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
)
NODES = [NodeFacts(node_id=each * 28, resources={"CPU": 4.0}) for each in ("e1", "e2")]
WAITING = WaitingGroup(
    job_id="01000000", function="train", type="NORMAL_TASK", state="PENDING_NODE_ASSIGNMENT", count=1,
    required_resources=f'{{"bundle_group_{ID}": 0.001, "CPU_group_0_{ID}": 1.0}}', label_selector=None,
    since_ms=1_799_999_900_000, until_ms=1_800_000_002_000, task_id="ab" * 24, actor_id=None,
)  # fmt: skip


def diagnosed(bundles: list[dict[str, float]], *, placed: bool = False, waiting: bool = False) -> Diagnosis:
    group = PlacementGroupFacts(group_id=ID, job_id="01000000", bundles=bundles, placed=placed)
    return diagnose(SessionFacts(jobs=[failed_job(TIMEOUT)], nodes=NODES, placement_groups=[group],
                                 waiting=[WAITING] if waiting else []))  # fmt: skip


@pytest.mark.parametrize(
    ("bundles", "reason"),
    [
        ([{"CPU": 2.0}, {"CPU": 64.0}], "its bundle 64 CPU fits on no node"),
        ([{"CPU": 3.0}] * 3, "it needs 9 CPU in total; all nodes together have 8"),
        ([{"CPU": 1.0}] * 3, "it has 3 bundles on 2 nodes"),
    ],
)
@pytest.mark.parametrize("waiting", [False, True], ids=["driver waits", "task waits"])
def test_group_that_cannot_be_placed_is_named(bundles: list[dict[str, float]], reason: str, *, waiting: bool) -> None:
    verdict = diagnosed(bundles, waiting=waiting).verdict
    assert verdict and verdict.code == "infeasible_request"
    assert reason in verdict.headline
    assert "bundle_group" not in verdict.headline


def test_task_that_waits_for_a_busy_bundle_is_not_infeasible() -> None:
    verdict = diagnosed([{"CPU": 1.0}], placed=True, waiting=True).verdict
    assert verdict and verdict.code == "pending_for_capacity"


def test_group_that_fits_is_not_infeasible() -> None:
    verdict = diagnosed([{"CPU": 1.0}]).verdict
    assert verdict and verdict.code == "driver_exception"


def test_request_that_only_the_autoscaler_reports_is_named() -> None:
    line = (
        "(autoscaler +4s) Error: No available node types can fulfill resource request {'TPU': 4.0}. Add suitable node"
    )
    verdict = diagnose(SessionFacts(jobs=[failed_job(f"{line} types.\n{TIMEOUT}")], nodes=NODES)).verdict
    assert verdict and (verdict.code, verdict.confidence) == ("infeasible_request", "likely")
    handled = failed_job(
        f'{line} types.\nTraceback (most recent call last):\n  File "/a.py", line 1, in f\nKeyError: 1\n'
    )
    other = diagnose(SessionFacts(jobs=[handled], nodes=NODES)).verdict
    assert other and other.code == "driver_exception"


def test_unknown_resource_may_be_misspelled() -> None:
    waiting = WaitingGroup(**{f: getattr(WAITING, f) for f in WAITING.__struct_fields__}
                           | {"required_resources": '{"CPU": 1.0, "acelerator": 1.0}'})  # fmt: skip
    found = diagnose(SessionFacts(jobs=[failed_job(TIMEOUT)], nodes=NODES, waiting=[waiting])).findings[0]
    assert "No node defines the resource acelerator" in found.suggestion
