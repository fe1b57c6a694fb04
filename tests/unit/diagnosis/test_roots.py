"""Root causes and consequences."""

import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.failures import CLOCK_TOLERANCE_MS
from rayhistory.diagnosis.roots import find_chains
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.session_facts import ActorFacts, JobFacts, NodeFacts, SessionFacts, WorkerFacts
from rayhistory.index.query.failure_groups import FailureGroups

NODE = NodeFacts(
    node_id="ef" * 28, ip="10.0.0.7", state="DEAD", end_ms=1_800_000_000_500, reason="UNEXPECTED_TERMINATION"
)


def test_workers_of_a_dead_node_follow_from_it() -> None:
    worker = dead_example_worker(node_id=NODE.node_id)
    found = diagnose(death_facts(worker, nodes=[NODE]))
    assert [finding.code for finding in found.findings] == ["node_lost"]
    assert found.findings[0].counts.workers == 1


def test_worker_that_died_long_after_a_node_does_not_follow_from_it() -> None:
    worker = dead_example_worker(node_id=NODE.node_id, end_ms=(NODE.end_ms or 0) + 60_000)
    roots = {chain.root.kind for chain in find_chains(SessionFacts(workers=[worker], nodes=[NODE]))}
    assert roots == {"node", "worker"}


def test_calls_of_a_dead_actor_follow_from_its_worker() -> None:
    worker = dead_example_worker(stderr="Fatal Python error: Segmentation fault")
    actor = ActorFacts(actor_id="aa" * 16, class_name="Model", job_id="01000000", cause="actor_died_error_context",
                       reason="WORKER_DIED", text="its worker process has died", worker_id=worker.worker_id,
                       workers=(worker.worker_id,), end_ms=worker.end_ms)  # fmt: skip
    calls = failed_task(
        "The actor is dead", error_type="ACTOR_DIED", actor_id=actor.actor_id, type="ACTOR_TASK", count=9
    )
    facts = SessionFacts(jobs=[failed_job("")], workers=[worker], actors=[actor], failures=FailureGroups([calls], 9, 1))
    crash = next(finding for finding in diagnose(facts).findings if finding.code == "worker_segfault")
    assert (crash.counts.tasks, crash.counts.actors, crash.counts.workers) == (9, 1, 1)


def test_actors_that_were_killed_on_purpose_are_no_failures() -> None:
    killed = ActorFacts(actor_id="aa" * 16, cause="actor_died_error_context", reason="RAY_KILL", end_ms=1)
    assert not find_chains(SessionFacts(actors=[killed]))


def test_workers_that_die_with_their_job_are_cleaned_up() -> None:
    worker = dead_example_worker(end_ms=1_800_000_003_000)
    done = JobFacts(job_id="01000000", status="SUCCEEDED", end_ms=1_800_000_002_000)
    assert not find_chains(SessionFacts(workers=[worker], jobs=[done]))


def test_workers_that_die_after_their_driver_are_cleaned_up() -> None:
    """The end of a submitted job is reported some time after that of its driver."""
    worker = dead_example_worker(exit_detail="Worker exits with an exit code 1. The process receives a SIGTERM.")
    end = worker.end_ms or 0
    done = JobFacts(job_id="01000000", status="SUCCEEDED", end_ms=end + 500, driver_end_ms=end - 25)
    assert not find_chains(SessionFacts(workers=[worker], jobs=[done]))


def test_worker_that_got_a_signal_did_not_end_itself() -> None:
    worker = dead_example_worker(exit_detail="Worker exits with an exit code 1. The process receives a SIGTERM.")
    assert diagnose(death_facts(worker)).findings[0].code == "worker_killed"


def test_nodes_that_were_idle_are_no_failures() -> None:
    idle = NodeFacts(node_id="ef" * 28, state="DEAD", reason="AUTOSCALER_DRAIN_IDLE", end_ms=1)
    assert not find_chains(SessionFacts(nodes=[idle]))


def test_job_is_not_explained_by_a_task_whose_worker_ended_in_order() -> None:
    """It has the exception of that task, which alone would be no failure."""
    raised = 'ray::train()\n  File "/app/train.py", line 3, in train\nValueError: no data'
    task = failed_task(f"User exception:\n{raised}", error_type="WORKER_DIED", worker_id="ab" * 28)
    ended = WorkerFacts(worker_id="ab" * 28, exit_type="INTENDED_USER_EXIT")
    job = failed_job(f"Traceback (most recent call last):\nray.exceptions.RayTaskError(ValueError): {raised}")
    facts = SessionFacts(jobs=[job], workers=[ended], failures=FailureGroups([task], 1, 1))
    (chain,) = find_chains(facts)
    assert chain.root.kind == "job"


@pytest.mark.parametrize("late_ms", [-CLOCK_TOLERANCE_MS, CLOCK_TOLERANCE_MS])
def test_clocks_of_nodes_may_differ_by_the_tolerance(late_ms: int) -> None:
    """A failure whose clock is ahead or behind still follows from the death of a node."""
    at_ms = (NODE.end_ms or 0) + late_ms
    lost = failed_task("owner died", error_type="OWNER_DIED", first_ms=at_ms, last_ms=at_ms)
    facts = SessionFacts(jobs=[failed_job("ray.exceptions.OwnerDiedError: gone\n", end_ms=at_ms)], nodes=[NODE],
                         failures=FailureGroups([lost], 1, 1))  # fmt: skip
    found = diagnose(facts)
    assert [finding.code for finding in found.findings] == ["node_lost"]
    assert found.findings[0].consequences == 2


def test_failure_long_before_a_death_does_not_follow_from_it() -> None:
    at_ms = (NODE.end_ms or 0) - 30_000
    lost = failed_task("owner died", error_type="OWNER_DIED", first_ms=at_ms, last_ms=at_ms)
    facts = SessionFacts(nodes=[NODE], failures=FailureGroups([lost], 1, 1))
    assert {chain.root.kind for chain in find_chains(facts)} == {"node", "tasks"}
