"""Failures that no rule explains."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.headlines import one_line, utc
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.rules.processes.deaths import (
    dead_worker,
    exit_evidence,
    function_of,
    log_evidence,
    process_name,
)
from rayhistory.diagnosis.rules.processes.silent_death import memory_near
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts, WorkerFacts


def _match(failure: Failure, facts: SessionFacts) -> Match:
    worker = dead_worker(failure, facts)
    seen = [exit_evidence(worker), log_evidence(worker, facts)] if worker else []
    own = failure.evidence(one_line(failure.text, 1_000))
    group = f"{failure.kind} {failure.job_id} {failure.error_type} {function_of(failure, facts)}"
    return Match(group=group, confidence="unexplained", evidence=tuple(seen or [own]))


def _describe(group: Group, facts: SessionFacts) -> Words:
    first = group.first
    looked = _looked_at(first, facts)
    if dead_worker(first, facts):
        headline = f"{process_name(group, facts)} died at {utc(first.at_ms)}, cause unknown"
    else:
        what = first.error_type or first.kind
        name = f" {first.function}" if first.function else ""
        noun = "Tasks" if first.kind == "tasks" else first.kind.capitalize()
        headline = f"{noun}{name} failed with {what}, cause unknown"
    return Words(
        headline=one_line(headline),
        detail=f"The recorded data does not explain it. Checked: {', '.join(looked)}.",
        suggestion=_suggestion(facts),
    )


def _suggestion(facts: SessionFacts) -> str:
    missing = [name for name, has in (("logs", facts.has_logs), ("metrics", facts.has_metrics)) if not has]
    record = f"Record {' and '.join(missing)} of all nodes. " if missing else ""
    return (
        f"{record}On Kubernetes, set RAY_DASHBOARD_INGEST_PLATFORM_EVENTS=1, so that Ray exports OOM kills and "
        "evictions. On the node, search the kernel log (dmesg) for this time."
    )


def _looked_at(failure: Failure, facts: SessionFacts) -> list[str]:
    worker = dead_worker(failure, facts)
    if worker is None:
        missing = [name for name, has in (("logs", facts.has_logs), ("metrics", facts.has_metrics)) if not has]
        unknown = f", and the session has no {' and no '.join(missing)}" if missing else ""
        return ["Ray's error", f"no dead worker process is known{unknown}"]
    return [
        "Ray's exit details",
        "the end of its stderr" if worker.stderr is not None else "no stderr (its log was not recorded)",
        _memory_looked_at(worker, facts),
        "platform events" if facts.platform_events else "no platform events",
    ]


def _memory_looked_at(worker: WorkerFacts, facts: SessionFacts) -> str:
    if worker.node_id not in facts.samples:
        return "no memory samples (none were recorded for its node)"
    if memory_near(worker, facts) is None:
        return "no memory samples (its node has none in the minute before and after)"
    return "memory samples of its node"


RULE = FailureRule(
    code="unexplained",
    meaning="The recorded data does not explain the failure. The finding lists the data that was checked.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=death_facts(dead_example_worker(stderr=None)),
        headline="Worker 4376 on 10.0.0.7 (task train) died at 2027-01-15 08:00:00 UTC, cause unknown",
    ),
)
