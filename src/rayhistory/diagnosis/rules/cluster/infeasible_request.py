"""Requests for resources that no node of the cluster has."""

import re

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, plural
from rayhistory.diagnosis.lenient_json import numbers
from rayhistory.diagnosis.roots import is_infeasible
from rayhistory.diagnosis.rules.cluster.placement_groups import (
    impossible,
    resources_text,
    unplaced_group,
    without_group,
)
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import NodeFacts, PlacementGroupFacts, SessionFacts
from rayhistory.diagnosis.tracebacks import last_traceback, own_output, plain_text
from rayhistory.index.query.failure_groups import WaitingGroup

_ERRORS = ("TASK_UNSCHEDULABLE_ERROR", "ACTOR_UNSCHEDULABLE_ERROR")
_REPORTED = re.compile(r"No available node types can fulfill resource requests? ([^\n]{1,300}?)\. Add suitable node")
"""The autoscaler's line in the output of a driver. It is the only report about placement groups that fit nowhere."""
_TIMEOUTS = ("GetTimeoutError", "PlacementGroupSchedulingError", "TimeoutError")


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    if failure.error_type in _ERRORS:
        text = one_line(failure.text, 600)
        return Match(group=failure.function, cause=text,
                     evidence=(Evidence(kind="task", id=failure.id, text=text, at_ms=failure.at_ms),))  # fmt: skip
    if failure.kind == "job":
        return _match_job(failure, facts)
    if not is_infeasible(failure, facts) or failure.waiting is None:
        return None
    required, group_id = without_group(numbers(failure.waiting.required_resources))
    if placement := facts.placement_group(group_id):
        evidence = Evidence(kind="task", id=failure.waiting.task_id, text=_bundles(placement), at_ms=failure.at_ms)
        return Match(group=f"{failure.job_id} {group_id}", confidence="likely", evidence=(evidence,),
                     cause=impossible(placement, facts))  # fmt: skip
    wanted, best = _missing(required, facts)
    evidence = Evidence(kind="task", id=failure.waiting.task_id, at_ms=failure.at_ms,
                        text=f"requires {failure.waiting.required_resources}")  # fmt: skip
    return Match(group=f"{failure.job_id} {failure.function} {wanted}", evidence=(evidence,), cause=f"{wanted}; {best}")


def _match_job(failure: Failure, facts: SessionFacts) -> Match | None:
    """Match a driver whose wait timed out: for a placement group, or for a request that the autoscaler reported."""
    error = last_traceback(own_output(failure.text))[-2_000:]
    if not any(f"{name}:" in error for name in _TIMEOUTS):
        return None
    group = unplaced_group(failure.job_id, facts)
    if group and (reason := impossible(group, facts)):
        evidence = Evidence(kind="job", id=failure.id, text=f"{_bundles(group)}\n{error}", at_ms=failure.at_ms)
        return Match(group=failure.id, confidence="likely", evidence=(evidence,),
                     cause=f"placement group {group.group_id[:8]} was never placed: {reason}")  # fmt: skip
    if found := _REPORTED.findall(plain_text(failure.text)):
        evidence = Evidence(kind="job", id=failure.id, at_ms=failure.at_ms,
                            text=f"(autoscaler) no node can fulfill {found[-1]}\n{error}")  # fmt: skip
        return Match(group=failure.id, confidence="likely", evidence=(evidence,), cause=f"no node has {found[-1]}")
    return None


def _bundles(group: PlacementGroupFacts) -> str:
    bundles = "; ".join(resources_text(bundle) for bundle in group.bundles[:20])
    return f"placement group {group.group_id} with the bundles {bundles} was never placed"


def _missing(required: dict[str, float], facts: SessionFacts) -> tuple[str, str]:
    """Describe the requested resources that no node has, and the largest amount on a node."""
    most = {name: max((node.resources.get(name, 0.0) for node in facts.nodes), default=0.0) for name in required}
    short = [name for name, amount in required.items() if most[name] < amount] or list(required)
    wanted = ", ".join(f"{required[name]:g} {name}" for name in short)
    return wanted, "no node has more than " + ", ".join(f"{most[name]:g} {name}" for name in short)


def _suggestion(group: Group, facts: SessionFacts) -> str:
    """Suggest to check the spelling if no node has a resource of this name, else to request less or to add nodes."""
    waiting = group.first.waiting
    required, _ = without_group(numbers(waiting.required_resources if waiting else None))
    known = {name for node in facts.nodes for name in node.resources if ":" not in name}
    unknown = [name for name in required if name not in known and name not in ("GPU", "TPU")]
    if unknown and known:
        return (f"No node defines the resource {', '.join(unknown)}. Check its spelling (nodes have "
                f"{', '.join(sorted(known)[:8])}), or add a node that has it.")  # fmt: skip
    return "Request fewer resources, or add a node or worker group that has them."


def _describe(group: Group, facts: SessionFacts) -> Words:
    if group.first.kind == "job":
        return _words_of_job(group)
    waiting = group.first.waiting
    count = sum(root.count for root in group.roots)
    _, group_id = without_group(numbers(waiting.required_resources if waiting else None))
    is_actor = waiting is not None and waiting.type == "ACTOR_CREATION_TASK"
    name = group.first.function.removesuffix(".__init__")
    noun = "Actor" if is_actor else "Task"
    who = f"{noun} {name}" if count == 1 else plural(count, f"{name} {noun.lower()}")
    if group_id:
        return Words(
            headline=one_line(f"{who} waited for placement group {group_id[:8]}, which was never placed: "
                              f"{group.match.cause}"),
            detail="The tasks and actors of a placement group start when all its bundles have their resources.",
            suggestion="Request fewer or smaller bundles, use the strategy PACK or SPREAD, or add nodes.",
        )  # fmt: skip
    return Words(
        headline=one_line(
            f"{who} can never be scheduled: {'it needs' if count == 1 else 'each needs'} {group.match.cause}"
        ),
        detail="No node of the cluster has had these resources, so the request would wait forever.",
        suggestion=_suggestion(group, facts),
    )


def _words_of_job(group: Group) -> Words:
    return Words(
        headline=one_line(f"Job {group.first.id} waited in vain: {group.match.cause}"),
        detail="The driver gave up waiting for a task, an actor or a placement group that was never scheduled.",
        suggestion="Request fewer resources, or add a node or worker group that has them.",
    )


def _example() -> SessionFacts:
    waiting = WaitingGroup(
        job_id="01000000", function="train", type="NORMAL_TASK", state="PENDING_NODE_ASSIGNMENT",
        required_resources='{"CPU": 1.0, "GPU": 2.0}', label_selector=None, count=1, since_ms=1_800_000_000_000,
        until_ms=None, task_id="ab" * 24, actor_id=None,
    )  # fmt: skip
    output = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
    node = NodeFacts(node_id="ef" * 28, resources={"CPU": 4.0})
    return SessionFacts(jobs=[failed_job(output)], nodes=[node], waiting=[waiting])


RULE = FailureRule(
    code="infeasible_request",
    meaning="A task or actor requests resources that no node of the cluster has. It would wait forever, so it is "
    "reported without waiting for a timeout.",
    match=_match,
    describe=_describe,
    example=Example(
        facts=_example(),
        headline="Task train can never be scheduled: it needs 2 GPU; no node has more than 0 GPU",
    ),
)
