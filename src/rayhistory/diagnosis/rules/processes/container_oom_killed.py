"""Workers that the kernel killed because a container or node was out of memory."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, size
from rayhistory.diagnosis.rules.processes.crash import dead_example_worker, death_facts
from rayhistory.diagnosis.rules.processes.deaths import (
    dead_worker,
    exit_evidence,
    function_of,
    process_name,
)
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples, PlatformEvent, SessionFacts, WorkerFacts

_FULL = 0.95
_HEADROOM = 1.2
_BEFORE_MS, _EVENT_WINDOW_MS = 60_000, 120_000
_AFTER_MS = 5_000
"""Ray measures memory every 5 s, so that a sample taken after a death may show the memory before it."""
_OOM_REASON = re.compile(r"OOMKill|Evicted|SystemOOM", re.IGNORECASE)


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    worker = dead_worker(failure, facts)
    if failure.kind not in ("worker", "actor") or worker is None or worker.exit_type != "SYSTEM_ERROR":
        return None
    group = f"{failure.job_id} {function_of(failure, facts)}"
    if event := _platform_event(worker, facts):
        text = one_line(f"{event.reason} {event.object_name}: {event.message}", 600)
        found = Evidence(kind="platform_event", text=text, at_ms=event.at_ms)
        return Match(group=group, evidence=(found, exit_evidence(worker)), cause=event.reason)
    if sample := _full_memory(worker, facts):
        kind, text = sample[0], f"{size(sample[1].used)} of {size(sample[1].total)}"
        found = Evidence(kind="metric", id=worker.node_id or "", text=f"{kind} {text}", at_ms=sample[1].at_ms)
        return Match(group=group, confidence="likely", evidence=(found, exit_evidence(worker)), cause=f"{kind} {text}",
                     suggestion=_suggestion(*sample))  # fmt: skip
    return None


def _platform_event(worker: WorkerFacts, facts: SessionFacts) -> PlatformEvent | None:
    near = (event for event in facts.platform_events
            if worker.end_ms and abs(event.at_ms - worker.end_ms) <= _EVENT_WINDOW_MS)  # fmt: skip
    return next((event for event in near if _OOM_REASON.search(f"{event.reason} {event.message}")), None)


def _full_memory(worker: WorkerFacts, facts: SessionFacts) -> tuple[str, MemorySample] | None:
    samples = facts.samples.get(worker.node_id or "", NodeSamples())
    for kind, series in (("container memory", samples.cgroup_memory), ("node memory", samples.memory)):
        near = [each for each in series if worker.end_ms and -_AFTER_MS <= worker.end_ms - each.at_ms <= _BEFORE_MS]
        peak = max(near, key=lambda each: each.share, default=None)
        if peak and peak.share >= _FULL:
            return kind, peak
    return None


def _suggestion(kind: str, sample: MemorySample) -> str:
    place = "the container" if kind.startswith("container") else "the node"
    more = f"{size(sample.total * _HEADROOM)} instead of {size(sample.total)}"
    return (
        f"Give {place} more memory, such as {more}, or request the memory that the task needs, so that fewer tasks run "
        "at once: @ray.remote(memory=…)."
    )


def _describe(group: Group, facts: SessionFacts) -> Words:
    cause = f": {group.match.cause}" if group.match.cause else ""
    return Words(
        headline=one_line(f"{process_name(group, facts)} was killed by the kernel because memory was full{cause}"),
        detail="The process died without output while memory was full.",
        suggestion="Give the container more memory, or request memory for the task, so that fewer tasks run at once: "
        "@ray.remote(memory=…).",
    )


def _example() -> SessionFacts:
    worker = dead_example_worker()
    gib = 1 << 30
    samples = NodeSamples(cgroup_memory=[MemorySample(1_800_000_000_000, 7.9 * gib, 8 * gib)])
    return death_facts(worker, samples={worker.node_id: samples})


RULE = FailureRule(
    code="container_oom_killed",
    meaning="The kernel or the kubelet killed a worker because its container or node was out of memory.",
    needs=("metrics",),
    match=_match,
    describe=_describe,
    example=Example(
        facts=_example(),
        headline="Worker 4376 on 10.0.0.7 (task train) was killed by the kernel because memory was full: container "
        "memory 7.9 GiB of 8.0 GiB",
    ),
)
