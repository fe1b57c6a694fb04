"""Deaths without a trace: killed, ended by themselves, or either."""

from typing import Any

import msgspec
import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.rules.exceptions.raised import failed_task
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.rules.slowness.costs import example_function
from rayhistory.diagnosis.session_facts import ActorFacts, MemorySample, NodeSamples, SessionFacts, WorkerFacts
from rayhistory.index.query.failure_groups import FailureGroup, FailureGroups

WORKER = dead_example_worker(stderr="")
END = WORKER.end_ms or 0


def dead(worker: WorkerFacts = WORKER, *groups: FailureGroup, used: float = 0.2, **more: Any) -> SessionFacts:
    samples = {worker.node_id or "": NodeSamples(memory=[MemorySample(END - 2_000, used * 100, 100)])}
    facts = death_facts(worker, samples=samples, **more)
    return msgspec.structs.replace(facts, failures=FailureGroups(list(groups), 1, len(groups))) if groups else facts


def task(**more: Any) -> FailureGroup:
    values: dict[str, Any] = {"error_type": "WORKER_DIED", "worker_id": WORKER.worker_id, "started_ms": END - 5_000}
    return failed_task("RpcError: Socket closed", **{**values, **more})


def cause(facts: SessionFacts) -> Finding:
    return diagnose(facts).findings[0]


def test_single_death_of_a_busy_process_names_both_causes() -> None:
    found = cause(dead())
    assert (found.code, found.confidence) == ("worker_killed", "unexplained")
    assert "kill -9" in found.headline and "os._exit()" in found.headline


def test_idle_process_was_killed() -> None:
    """Nothing ran in the actor: its next call was sent after its death."""
    actor = ActorFacts(actor_id="aa" * 16, class_name="Model", job_id="01000000", cause="actor_died_error_context",
                       reason="WORKER_DIED", worker_id=WORKER.worker_id, workers=(WORKER.worker_id,),
                       end_ms=END)  # fmt: skip
    later = task(type="ACTOR_TASK", error_type="ACTOR_DIED", actor_id=actor.actor_id, started_ms=END + 900,
                 worker_id=None)  # fmt: skip
    found = cause(dead(WORKER, later, actors=[actor]))
    assert (found.code, found.confidence) == ("worker_killed", "likely")
    assert "no task ran in it" in found.headline


def test_process_that_dies_at_each_attempt_ended_itself() -> None:
    found = cause(dead(WORKER, task(), task(retried=True, worker_id="99" * 28, count=2)))
    assert (found.code, found.confidence) == ("worker_exited", "likely")
    assert "all 3 attempts of train ended this way" in found.headline


def test_task_that_ends_its_process_at_each_attempt_ended_it_although_other_tasks_succeeded() -> None:
    attempts = [task(retried=number < 2, worker_id=f"{number}" * 56, started_ms=END - 5_000) for number in range(2)]
    facts = dead(WORKER, task(), *attempts, functions=[example_function()])
    found = cause(facts)
    assert (found.code, found.confidence) == ("worker_exited", "likely")
    assert "all 3 attempts of a task of train ended this way" in found.headline


def test_task_that_may_have_filled_the_memory_at_each_attempt_is_not_said_to_have_exited() -> None:
    """A kernel that kills it leaves the same traces, and samples are seconds apart."""
    attempts = [task(retried=number < 2, worker_id=f"{number}" * 56) for number in range(2)]
    facts = dead(WORKER, task(), *attempts, functions=[example_function()], used=0.85)
    assert (cause(facts).code, cause(facts).confidence) == ("worker_killed", "unexplained")


def test_two_deaths_of_a_task_among_others_that_succeeded_may_be_coincidence() -> None:
    facts = dead(WORKER, task(), task(retried=True, worker_id="1" * 56), functions=[example_function()])
    assert (cause(facts).code, cause(facts).confidence) == ("worker_killed", "unexplained")


def test_words_agree_with_the_number_of_processes() -> None:
    other = msgspec.structs.replace(WORKER, worker_id="1" * 56)
    facts = dead(WORKER, task(), task(worker_id="1" * 56, task_id="2" * 48), functions=[example_function()])
    found = cause(msgspec.structs.replace(facts, workers=[WORKER, other]))
    assert found.headline.startswith("2 workers (task train) died without a crash report")
    assert "either a signal (kill -9) killed them, or they called os._exit()" in found.headline


def test_process_that_dies_as_its_task_starts_ended_itself() -> None:
    found = cause(dead(WORKER, task(started_ms=END - 40)))
    assert (found.code, found.confidence) == ("worker_exited", "likely")
    assert "40 ms after train was sent to it" in found.headline


def test_process_whose_own_log_is_missing_is_not_said_to_have_ended_itself() -> None:
    """It may have crashed: all that is known of its output is what Ray forwarded to the driver."""
    worker = dead_example_worker(stderr=None)
    facts = dead(worker, task(started_ms=END - 40))
    said = msgspec.structs.replace(facts.jobs[0], output=f"(crash pid={worker.pid}) hello\n{facts.jobs[0].output}")
    found = cause(msgspec.structs.replace(facts, jobs=[said]))
    assert (found.code, found.confidence) == ("worker_killed", "unexplained")
    assert "its log was not recorded" in found.detail


def test_function_that_succeeded_elsewhere_is_not_blamed() -> None:
    facts = dead(WORKER, task(started_ms=END - 40), functions=[example_function()])
    assert cause(facts).code == "worker_killed"


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ({"exit_status": 7}, "worker_exited", "exited by itself with exit code 7"),
        ({"exit_signal": 9}, "worker_killed", "was killed by signal 9 (SIGKILL)"),
        ({"exit_signal": 11}, "worker_segfault", "segmentation fault"),
        ({"exit_signal": 6}, "worker_aborted", "SIGABRT"),
    ],
)
def test_status_in_the_log_of_the_raylet_is_certain(end: dict[str, int], code: str, words: str) -> None:
    found = cause(death_facts(dead_example_worker(stderr=None, **end)))
    assert (found.code, found.confidence) == (code, "certain")
    assert words in found.headline


def test_full_memory_is_no_silent_death() -> None:
    assert cause(dead(used=0.97)).code == "container_oom_killed"


def test_process_whose_memory_is_not_known_is_unexplained() -> None:
    assert cause(death_facts(WORKER)).code == "unexplained"


def test_samples_that_are_missing_in_the_decisive_minute_are_no_proof() -> None:
    """Memory was free ten minutes before, and after the death there is no sample: nothing is claimed about memory."""
    samples = {WORKER.node_id or "": NodeSamples(memory=[MemorySample(END - 600_000, 20, 100)])}
    found = cause(death_facts(WORKER, samples=samples))
    assert (found.code, found.confidence) == ("unexplained", "unexplained")
    assert "no memory samples (its node has none in the minute before and after)" in found.detail
