"""Every failure belongs to exactly one finding, whatever fails together."""

from operator import attrgetter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.explain import explain_failures
from rayhistory.diagnosis.failures import find_failures
from rayhistory.diagnosis.roots import find_chains
from rayhistory.diagnosis.rules.exceptions.raised import failed_job, failed_task
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.session_facts import (
    ENDED,
    RUNNING,
    VANISHED,
    ActorFacts,
    JobFacts,
    NodeFacts,
    SessionFacts,
    WorkerFacts,
)
from rayhistory.index.query.failure_groups import FailureGroup, FailureGroups, WaitingGroup

START = 1_800_000_000_000
NODES, WORKERS, ACTORS = ([f"{kind}{number}" * 14 for number in range(4)] for kind in ("a1b", "c2d", "e3f"))
JOBS = ("01000000", "02000000", "03000000")
ERRORS = (
    "TASK_EXECUTION_EXCEPTION", "WORKER_DIED", "NODE_DIED", "OWNER_DIED", "OBJECT_LOST", "ACTOR_DIED", "TASK_CANCELLED",
    "OUT_OF_MEMORY", "RUNTIME_ENV_SETUP_FAILED", "DEPENDENCY_RESOLUTION_FAILED", "OBJECT_STORE_FULL",
    "SOMETHING_NEW", "",
)  # fmt: skip
TEXTS = (
    "", "Task was killed due to the node running low on memory.", "its job has finished",
    'User exception:\n  File "/app/train.py", line 3, in train\nValueError: no data',
    'User exception:\n  File "/app/load.py", line 9, in load\nModuleNotFoundError: No module named \'x\'',
    'ray.exceptions.RayTaskError(E): ray::train()\n  File "/app/train.py", line 3, in train\nValueError: no data',
    f"ray.exceptions.ActorDiedError: The actor died.\n actor_id: {ACTORS[0]}\n",
    "ray.exceptions.WorkerCrashedError: The worker died.\n", "ray.exceptions.NodeDiedError: gone\n",
    "ray.exceptions.GetTimeoutError: Get timed out\n", "ray.exceptions.ObjectLostError: lost\n", "\x1b[31m\u202e" * 50,
)  # fmt: skip
times = st.one_of(st.none(), st.integers(START - 1_000, START + 200_000))
texts = st.sampled_from(TEXTS)
counts = st.integers(1, 500)


def some(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, *values])


groups = st.builds(
    failed_task, texts, job_id=st.sampled_from(JOBS), error_type=st.sampled_from(ERRORS), count=counts,
    type=st.sampled_from(("NORMAL_TASK", "ACTOR_TASK", "ACTOR_CREATION_TASK")), retried=st.booleans(),
    at_job_end=st.booleans(), worker_id=some(*WORKERS), actor_id=some(*ACTORS), node_id=some(*NODES), first_ms=times,
    last_ms=times, started_ms=times, function=st.sampled_from(("train", "load", "JobSupervisor.run")),
)  # fmt: skip
jobs = st.builds(
    failed_job, texts, job_id=st.sampled_from(JOBS), submission_id=some("one", "two"), inferred=st.booleans(),
    status=st.sampled_from(("FAILED", "STOPPED", "SUCCEEDED", "RUNNING")), end_ms=times, message=texts,
    exit_code=st.sampled_from((None, 0, 1, -9, 137)), driver_end_ms=times,
)  # fmt: skip
nodes = st.builds(
    NodeFacts, node_id=st.sampled_from(NODES), state=st.sampled_from(("ALIVE", "DEAD")), end_ms=times, message=texts,
    reason=st.sampled_from(("UNEXPECTED_TERMINATION", "EXPECTED_TERMINATION")), inferred=st.booleans(),
    resources=st.sampled_from(({}, {"CPU": 4.0})),
)  # fmt: skip
workers = st.builds(
    WorkerFacts, worker_id=st.sampled_from(WORKERS), node_id=some(*NODES), job_id=some(*JOBS), end_ms=times,
    exit_type=st.sampled_from(("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY", "USER_ERROR", "INTENDED_USER_EXIT")),
    exit_detail=texts, stderr=st.one_of(st.none(), texts), type=st.sampled_from(("WORKER", "DRIVER")),
)  # fmt: skip
actors = st.builds(
    ActorFacts, actor_id=st.sampled_from(ACTORS), class_name=st.sampled_from(("Model", "JobSupervisor")),
    job_id=st.sampled_from(JOBS), state=st.sampled_from(("DEAD", "ALIVE")), text=texts, end_ms=times,
    cause=st.sampled_from(("", "actor_died_error_context", "creation_task_failure_context", "node_died_error_context")),
    reason=st.sampled_from(("", "WORKER_DIED", "NODE_DIED", "OWNER_DIED", "RAY_KILL")), restarts=st.integers(0, 5),
    owner_id=st.sampled_from(("", *WORKERS)), node_id=some(*NODES), worker_id=some(*WORKERS),
    workers=st.lists(st.sampled_from(WORKERS), unique=True, max_size=3).map(tuple),
    restart_times=st.lists(st.integers(START, START + 9_000), max_size=5).map(lambda found: tuple(sorted(found))),
)  # fmt: skip
waiting = st.builds(
    WaitingGroup, job_id=st.sampled_from(JOBS), function=st.just("wait"), type=st.just("NORMAL_TASK"), count=counts,
    state=st.sampled_from(("PENDING_NODE_ASSIGNMENT", "PENDING_ARGS_AVAIL")), since_ms=times, until_ms=times,
    required_resources=st.sampled_from((None, '{"CPU": 1}', '{"GPU": 2}', "[")), label_selector=st.none(),
    task_id=st.just("ab" * 24), actor_id=st.none(),
)  # fmt: skip


def unique(strategy: st.SearchStrategy[Any], *names: str) -> st.SearchStrategy[list[Any]]:
    """Return lists in which no two items have the same value of one of these attributes."""
    return st.lists(strategy, max_size=4, unique_by=tuple(map(attrgetter, names)))


sessions = st.builds(
    SessionFacts, state=st.sampled_from((ENDED, RUNNING, VANISHED)), ended_ms=times, jobs=unique(jobs, "id", "job_id"),
    nodes=unique(nodes, "node_id"), workers=unique(workers, "worker_id"), actors=unique(actors, "actor_id"),
    failures=st.lists(groups, max_size=6).map(lambda found: FailureGroups(found, final(found), len(found))),
    waiting=st.lists(waiting, max_size=2), has_logs=st.booleans(), has_metrics=st.booleans(),
)  # fmt: skip


def final(found: list[FailureGroup]) -> int:
    return sum(group.count for group in found if not group.retried and not group.at_job_end)


@settings(max_examples=50, deadline=None)
@given(sessions)
def test_every_failure_belongs_to_exactly_one_finding(facts: SessionFacts) -> None:
    explained = explain_failures(facts)
    members = [failure.key for each in explained for failure in each.members]
    assert len(members) == len(set(members))
    roots = {failure.key for chain in find_chains(facts) for failure in (chain.root, *chain.consequences)}
    assert set(members) <= roots <= {failure.key for failure in find_failures(facts)}
    assert all(kind == "waiting" for kind, _ in roots - set(members))


@settings(max_examples=30, deadline=None)
@given(sessions)
def test_failed_jobs_are_explained_and_others_have_no_verdict(facts: SessionFacts) -> None:
    found = diagnose(facts)
    failed = [job for job in facts.jobs if job.status in ("FAILED", "STOPPED") and not job.inferred]
    assert sum(finding.counts.jobs for finding in found.findings) == len(failed)
    assert found.verdict or not failed
    if facts.jobs and all(job.status == "SUCCEEDED" and not job.inferred for job in facts.jobs):
        assert found.verdict is None
    assert found.verdict is None or found.verdict.headline == found.findings[found.verdict.finding].headline


@settings(max_examples=30, deadline=None)
@given(sessions, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_change_what_is_counted(facts: SessionFacts, random: Any) -> None:
    shuffled = {
        name: random.sample(found := getattr(facts, name), len(found)) for name in ("nodes", "workers", "actors")
    }
    other = SessionFacts(**{**{name: getattr(facts, name) for name in facts.__struct_fields__}, **shuffled})
    assert _counted(facts) == _counted(other)


def _counted(facts: SessionFacts) -> dict[str, int]:
    findings = diagnose(facts).findings
    return {
        name: sum(getattr(each.counts, name) for each in findings) for name in ("tasks", "actors", "workers", "jobs")
    }


@given(st.integers(1, 100_000), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_tasks_of_a_dead_node_are_consequences_of_one_finding(count: int, dead_workers: int) -> None:
    node = NodeFacts(node_id=NODES[0], ip="10.0.0.7", state="DEAD", end_ms=START + 500, reason="UNEXPECTED_TERMINATION")
    lost = [WorkerFacts(worker_id=WORKERS[number], node_id=NODES[0], job_id=JOBS[0], exit_type="SYSTEM_ERROR",
                        end_ms=START + 600) for number in range(dead_workers)]  # fmt: skip
    tasks = [failed_task("gone", error_type=error, node_id=NODES[0] if error == "NODE_DIED" else None, count=count,
                         first_ms=START + 700, last_ms=START + 30_000)
             for error in ("NODE_DIED", "OWNER_DIED", "OBJECT_LOST")]  # fmt: skip
    job = failed_job("ray.exceptions.NodeDiedError: gone\n", end_ms=START + 31_000)
    facts = SessionFacts(nodes=[node], workers=lost, jobs=[job], failures=FailureGroups(tasks, 3 * count, 3))
    (found,) = diagnose(facts).findings
    assert (found.code, found.counts.nodes, found.counts.tasks) == ("node_lost", 1, 3 * count)
    assert found.consequences == 3 * count + dead_workers + 1


def test_failures_of_several_jobs_stay_apart() -> None:
    """Two jobs fail for reasons of their own, one succeeds with a failure that it handled."""
    traceback = 'User exception:\n  File "/app/{}.py", line 3, in run\nValueError: no data'
    groups = [failed_task(traceback.format(name), job_id=job, count=number, function="run")
              for number, (name, job) in enumerate(zip(("a", "b", "c"), JOBS, strict=True), start=1)]  # fmt: skip
    jobs = [failed_job(f"ray.exceptions.RayTaskError: ray::run(){group.message}\n", job_id=group.job_id,
                       submission_id=f"job-{group.job_id}") for group in groups[:2]]  # fmt: skip
    handled = JobFacts(job_id=JOBS[2], submission_id="fine", status="SUCCEEDED", end_ms=START)
    found = diagnose(SessionFacts(jobs=[*jobs, handled], failures=FailureGroups(groups, 6, 3)))
    assert [(each.root, each.counts.tasks, each.counts.jobs) for each in found.findings] == [
        (True, 2, 1), (True, 1, 1), (False, 3, 0),
    ]  # fmt: skip


def test_fingerprint_of_a_dead_process_is_that_of_its_function() -> None:
    """It is the same in another session, where the process has other ids and another message."""

    def fingerprint(function: str, pid: int, detail: str) -> str | None:
        worker = dead_example_worker(worker_id=f"{pid:056x}", pid=pid, exit_detail=detail)
        task = failed_task("gone", error_type="WORKER_DIED", worker_id=worker.worker_id, function=function)
        (found,) = diagnose(death_facts(worker, failures=FailureGroups([task], 1, 1))).findings
        return found.fingerprint

    first = fingerprint("train", 17, "connection closed")
    assert first is not None
    assert fingerprint("train", 4376, "socket 9 closed") == first
    assert fingerprint("load", 17, "connection closed") != first
