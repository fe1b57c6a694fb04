"""Failures that no rule explains."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, utc
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.rules.processes.deaths import (
    dead_worker,
    exit_evidence,
    function_of,
    log_evidence,
    process_name,
)
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import SessionFacts


def _match(failure: Failure, facts: SessionFacts) -> Match:
    worker = dead_worker(failure, facts)
    seen = [exit_evidence(worker), log_evidence(worker, facts)] if worker else []
    own = Evidence(kind=failure.kind, id=failure.id, text=one_line(failure.text, 1_000), at_ms=failure.at_ms)
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
        suggestion="Record logs and metrics of all nodes. On Kubernetes, set RAY_DASHBOARD_INGEST_PLATFORM_EVENTS=1, "
        "so that Ray exports OOM kills and evictions.",
    )


def _looked_at(failure: Failure, facts: SessionFacts) -> list[str]:
    worker = dead_worker(failure, facts)
    has_stderr = worker is not None and worker.stderr is not None
    has_samples = worker is not None and worker.node_id in facts.samples
    return [
        "Ray's exit details",
        "the end of its stderr" if has_stderr else "no stderr (its log was not recorded)",
        "memory samples of its node" if has_samples else "no memory samples (no metrics were recorded)",
        "platform events" if facts.platform_events else "no platform events",
    ]


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
