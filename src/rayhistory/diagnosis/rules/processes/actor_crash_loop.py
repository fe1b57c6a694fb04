"""Actors that died again after every restart."""

from itertools import pairwise

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import duration, one_line
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.rules.processes import (
    container_oom_killed,
    worker_aborted,
    worker_exited,
    worker_killed,
    worker_oom_killed,
    worker_segfault,
)
from rayhistory.diagnosis.rules.processes.deaths import dead_worker, exit_evidence, log_evidence
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import ActorFacts, SessionFacts

_ENDS = (
    (worker_oom_killed.RULE, "Ray's memory monitor killed its last process"),
    (worker_segfault.RULE, "its last process crashed with a segmentation fault"),
    (worker_aborted.RULE, "its last process aborted"),
    (worker_exited.RULE, "its last process exited by itself"),
    (container_oom_killed.RULE, "the kernel killed its last process, because memory was full"),
    (worker_killed.RULE, "its last process died without a crash report"),
)
"""Rules about a process, in their order, and what they say about the last process of an actor."""
_MIN_RESTARTS = 3
_MAX_LIFE_MS = 60_000


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    actor = failure.actor
    if failure.kind != "actor" or actor is None or not _is_loop(actor):
        return None
    death = Evidence(kind="actor", id=actor.actor_id, text=one_line(actor.text, 600), at_ms=actor.end_ms)
    cause, evidence = _last_end(failure, facts)
    return Match(group=f"{failure.job_id} {actor.class_name}", evidence=(death, *evidence), cause=cause)


def _last_end(failure: Failure, facts: SessionFacts) -> tuple[str, tuple[Evidence, ...]]:
    """Return how the actor's last process ended, as the rules about processes explain it, with their evidence."""
    for rule, words in _ENDS:
        if found := rule.match(failure, facts):
            return words + (f" ({found.cause})" if found.cause else ""), found.evidence
    worker = dead_worker(failure, facts)
    if worker is None:
        return "", ()
    return "", (exit_evidence(worker), *([log_evidence(worker, facts)] if worker.stderr is not None else []))


def _is_loop(actor: ActorFacts) -> bool:
    if actor.restarts < _MIN_RESTARTS:
        return False
    gaps = [after - before for before, after in pairwise(actor.restart_times)]
    return sum(gap < _MAX_LIFE_MS for gap in gaps) >= _MIN_RESTARTS - 1


def _describe(group: Group, facts: SessionFacts) -> Words:
    actor = group.first.actor
    times = actor.restart_times if actor else ()
    took = f" within {duration(times[-1] - times[0])}" if len(times) > 1 else ""
    restarts = actor.restarts if actor else 0
    cause = group.match.cause
    last = f": {cause}" if cause else ""
    died = f"was restarted {restarts} times{took} and died each time{last}"
    return Words(
        headline=one_line(f"Actor {group.first.function} {died}"),
        detail="" if cause or actor is None else one_line(actor.text, 600),
        suggestion="The evidence has the log lines from before the actor's last death. More restarts (max_restarts) "
                   "only delay the failure.",
    )  # fmt: skip


def _example() -> SessionFacts:
    start = 1_800_000_000_000
    actor = ActorFacts(
        actor_id="aa" * 16, class_name="Worker", job_id="01000000", cause="actor_died_error_context",
        reason="WORKER_DIED", text="The actor is dead because its worker process has died.", restarts=4,
        restart_times=(start, start + 900, start + 1_800, start + 2_700), end_ms=start + 3_600,
    )  # fmt: skip
    output = f"ray.exceptions.ActorDiedError: The actor died unexpectedly.\n actor_id: {actor.actor_id}\n"
    return SessionFacts(jobs=[failed_job(output)], actors=[actor])


RULE = FailureRule(
    code="actor_crash_loop",
    meaning=(
        "An actor was restarted at least three times, lived for less than a minute each time, and then Ray gave up."
    ),
    match=_match,
    describe=_describe,
    example=Example(facts=_example(), headline="Actor Worker was restarted 4 times within 2.7 s and died each time"),
)
