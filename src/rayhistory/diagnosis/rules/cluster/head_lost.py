"""Sessions whose head disappeared."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, plural, size, utc
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import VANISHED, JobFacts, NodeFacts, NodeSamples, SessionFacts

_FULL = 0.95
_BEFORE_MS = 120_000
_KILLED = re.compile(r"OOMKill|Evicted|Preempt|Killing", re.IGNORECASE)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    if failure.kind != "session":
        return None
    head = facts.head
    cause, evidence = _cause(head, facts)
    last = Evidence(kind="node", id=head.node_id if head else "", at_ms=facts.ended_ms,
                    text="last data of the session; no shutdown was recorded")  # fmt: skip
    return Match(evidence=(*evidence, last), cause=cause)


def _cause(head: NodeFacts | None, facts: SessionFacts) -> tuple[str, list[Evidence]]:
    end = facts.ended_ms or 0
    for event in facts.platform_events:
        if abs(event.at_ms - end) <= _BEFORE_MS and _KILLED.search(f"{event.reason} {event.message}"):
            text = one_line(f"{event.reason} {event.object_name}: {event.message}", 300)
            return text, [Evidence(kind="platform_event", text=text, at_ms=event.at_ms)]
    samples = facts.samples.get(head.node_id, NodeSamples()) if head else NodeSamples()
    near = [each for each in (samples.cgroup_memory or samples.memory) if 0 <= end - each.at_ms <= _BEFORE_MS]
    peak = max(near, key=lambda each: each.share, default=None)
    if head and peak and peak.share >= _FULL:
        text = f"its memory was full ({size(peak.used)} of {size(peak.total)})"
        return text, [Evidence(kind="metric", id=head.node_id, text=text, at_ms=peak.at_ms)]
    return "", []


def _describe(group: Group, facts: SessionFacts) -> Words:
    open_jobs = sum(job.inferred for job in facts.jobs)
    jobs = f" while {plural(open_jobs, 'job')} {'was' if open_jobs == 1 else 'were'} running" if open_jobs else ""
    cause = f": {group.match.cause}" if group.match.cause else ""
    return Words(
        headline=one_line(f"The cluster disappeared at {utc(facts.ended_ms)}{jobs}{cause}"),
        detail="The head stopped sending data without a shutdown. Data from its last seconds may be missing.",
        suggestion="Check the head's pod or machine: events, restarts and memory limit.",
    )


RULE = FailureRule(
    code="head_lost",
    meaning="The head of the cluster disappeared without a shutdown.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=SessionFacts(
            state=VANISHED,
            ended_ms=1_800_000_000_500,
            jobs=[JobFacts(job_id="01000000", status="FAILED", inferred=True)],
        ),
        headline="The cluster disappeared at 2027-01-15 08:00:00 UTC while 1 job was running",
    ),
)
