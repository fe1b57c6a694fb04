"""Requests that fit a node but were not scheduled in time."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import duration, one_line, plural
from rayhistory.diagnosis.lenient_json import numbers
from rayhistory.diagnosis.rules.cluster.placement_groups import without_group
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import NodeFacts, NodeSamples, SessionFacts
from rayhistory.index.query.failure_groups import WaitingGroup

_MIN_WAIT_MS = 60_000
_MIN_WAIT_OF_FAILED_MS = 3_000
_MIN_SAMPLES = 2
_TIMEOUT = "GetTimeoutError"


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    group = failure.waiting
    if group is None or group.state != "PENDING_NODE_ASSIGNMENT":
        return None
    job = facts.job(failure.job_id)
    end = group.until_ms or (job.end_ms if job else None) or facts.ended_ms
    waited = end - group.since_ms if end and group.since_ms else 0
    gave_up = job is not None and job.status == "FAILED" and _TIMEOUT in (job.output or job.message)
    if waited < (_MIN_WAIT_OF_FAILED_MS if gave_up else _MIN_WAIT_MS):
        return None
    if group.since_ms and end and _was_available(group, (group.since_ms, end), facts):
        return None
    evidence = Evidence(
        kind="task", id=group.task_id, text=f"requires {group.required_resources}", at_ms=group.since_ms
    )
    return Match(group=f"{failure.job_id} {failure.function}", confidence="likely", evidence=(evidence,),
                 cause=duration(waited))  # fmt: skip


def _was_available(group: WaitingGroup, times: tuple[int, int], facts: SessionFacts) -> bool:
    """Return True if samples show that a node had the resources all the time, so that something else was missing."""
    required, group_id = without_group(numbers(group.required_resources))
    if not required or group_id:
        return False

    def has(samples: NodeSamples, name: str, amount: float) -> bool:
        values = [value for at_ms, value in samples.available.get(name, ()) if times[0] <= at_ms <= times[1]]
        return len(values) >= _MIN_SAMPLES and min(values) >= amount

    return any(
        all(has(samples, name, amount) for name, amount in required.items()) for samples in facts.samples.values()
    )


def _describe(group: Group, facts: SessionFacts) -> Words:
    count = sum(root.count for root in group.roots)
    waiting = group.first.waiting
    needs = f" for {waiting.required_resources}" if waiting and waiting.required_resources else ""
    verb = "was" if count == 1 else "were"
    return Words(
        headline=one_line(f"{plural(count, f'{group.first.function} task')} {verb} still waiting{needs} after "
                          f"{group.match.cause}: the cluster had no free resources"),
        detail="A node of the cluster is large enough for the request, but other tasks and actors used its resources.",
        suggestion="Add nodes, release actors that you no longer need, or increase the timeout.",
    )  # fmt: skip


def _example() -> SessionFacts:
    waiting = WaitingGroup(
        job_id="01000000", function="train", type="NORMAL_TASK", state="PENDING_NODE_ASSIGNMENT",
        required_resources='{"CPU": 2.0}', label_selector=None, count=3, since_ms=1_799_999_990_000,
        until_ms=1_800_000_002_000, task_id="ab" * 24, actor_id=None,
    )  # fmt: skip
    output = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
    node = NodeFacts(node_id="ef" * 28, resources={"CPU": 4.0})
    return SessionFacts(jobs=[failed_job(output)], nodes=[node], waiting=[waiting])


RULE = FailureRule(
    code="pending_for_capacity",
    meaning="Tasks or actors waited for more than a minute, or until their job timed out, for resources that others "
    "used. The rule does not match if samples show that a node had these resources free all the time.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=_example(),
        headline='3 train tasks were still waiting for {"CPU": 2.0} after 12.0 s: the cluster had no free resources',
    ),
)
