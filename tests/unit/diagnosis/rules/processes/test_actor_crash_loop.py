"""Actors that die after each restart: how their processes ended, and actors whose incarnations ended differently."""

from typing import Any

import pytest

from rayhistory.diagnosis.diagnose import diagnose
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker
from rayhistory.diagnosis.session_facts import ActorFacts, MemorySample, NodeSamples, SessionFacts, WorkerFacts

START = 1_800_000_000_000
ACTOR = "aa" * 16
CRASH = (
    'Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n  File "/app/a.py", line 9 in decode\n'
)


def worker(number: int, **more: Any) -> WorkerFacts:
    return dead_example_worker(worker_id=f"{number}" * 56, pid=100 + number, end_ms=START + number * 1_000, **more)


def session(*workers: WorkerFacts) -> SessionFacts:
    """Return a session whose job failed because an actor died, with one incarnation of the actor per worker."""
    text = "The actor is dead because its worker process has died. Some common causes include: (1) the OOM killer"
    last = workers[-1].end_ms or 0
    actor = ActorFacts(
        actor_id=ACTOR, class_name="Decoder", job_id="01000000", cause="actor_died_error_context", reason="WORKER_DIED",
        text=text, restarts=len(workers) - 1, restart_times=tuple(each.end_ms or 0 for each in workers[:-1]),
        worker_id=workers[-1].worker_id, workers=tuple(each.worker_id for each in workers), end_ms=last,
    )  # fmt: skip
    output = f"ray.exceptions.ActorDiedError: The actor died unexpectedly.\n actor_id: {ACTOR}\n"
    samples = {"ef" * 28: NodeSamples(memory=[MemorySample(START, 20, 100)])}
    return SessionFacts(jobs=[failed_job(output)], actors=[actor], workers=list(workers), samples=samples)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"stderr": CRASH}, "its last process crashed with a segmentation fault (a.py:9 in decode)"),
        ({"exit_status": 7}, "its last process exited by itself (exit code 7)"),
        ({"exit_signal": 9}, "its last process died without a crash report (signal 9 (SIGKILL))"),
        ({"exit_type": "NODE_OUT_OF_MEMORY"}, "Ray's memory monitor killed its last process"),
    ],
)
def test_loop_says_how_its_last_process_ended(more: dict[str, Any], words: str) -> None:
    found = diagnose(session(*(worker(number, **more) for number in range(4))))
    loop = next(each for each in found.findings if each.code == "actor_crash_loop")
    assert loop.headline == f"Actor Decoder was restarted 3 times within 2.0 s and died each time: {words}"
    assert "common causes" not in loop.detail
    assert {each.kind for each in loop.evidence} >= {"actor", "worker"}


def test_actor_with_several_incarnations_is_explained_by_the_last_one() -> None:
    """The first one was killed for memory, and Ray restarted the actor. Then a crash ended it."""
    found = diagnose(session(worker(0, exit_type="NODE_OUT_OF_MEMORY"), worker(1, stderr=CRASH)))
    assert found.verdict and found.verdict.code == "worker_segfault"
    assert sorted(each.code for each in found.findings) == ["worker_oom_killed", "worker_segfault"]
    assert sum(each.counts.workers for each in found.findings) == 2
