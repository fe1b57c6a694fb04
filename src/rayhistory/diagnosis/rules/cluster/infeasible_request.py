"""Requests for resources that no node of the cluster has."""

from rayhistory.diagnosis.failures import Failure
from rayhistory.diagnosis.findings import Evidence
from rayhistory.diagnosis.headlines import one_line, plural
from rayhistory.diagnosis.lenient_json import numbers
from rayhistory.diagnosis.roots import is_infeasible
from rayhistory.diagnosis.rules.exceptions.raised import failed_job
from rayhistory.diagnosis.rules.rule import Example, FailureRule, Group, Match, Words
from rayhistory.diagnosis.session_facts import NodeFacts, SessionFacts
from rayhistory.index.query.failure_groups import WaitingGroup

_ERRORS = ("TASK_UNSCHEDULABLE_ERROR", "ACTOR_UNSCHEDULABLE_ERROR")


def _match(failure: Failure, facts: SessionFacts) -> Match | None:
    if failure.error_type in _ERRORS:
        text = one_line(failure.text, 600)
        return Match(group=failure.function, cause=text,
                     evidence=(Evidence(kind="task", id=failure.id, text=text, at_ms=failure.at_ms),))  # fmt: skip
    if not is_infeasible(failure, facts) or failure.waiting is None:
        return None
    wanted, best = _missing(failure.waiting, facts)
    evidence = Evidence(kind="task", id=failure.waiting.task_id, at_ms=failure.at_ms,
                        text=f"requires {failure.waiting.required_resources}")  # fmt: skip
    return Match(group=f"{failure.job_id} {failure.function} {wanted}", evidence=(evidence,), cause=f"{wanted}; {best}")


def _missing(group: WaitingGroup, facts: SessionFacts) -> tuple[str, str]:
    """Describe the requested resources that no node has, and the largest amount on a node."""
    required = numbers(group.required_resources)
    most = {name: max((node.resources.get(name, 0.0) for node in facts.nodes), default=0.0) for name in required}
    short = [name for name, amount in required.items() if most[name] < amount] or list(required)
    wanted = ", ".join(f"{required[name]:g} {name}" for name in short)
    return wanted, "no node has more than " + ", ".join(f"{most[name]:g} {name}" for name in short)


def _describe(group: Group, facts: SessionFacts) -> Words:
    waiting = group.first.waiting
    count = sum(root.count for root in group.roots)
    is_actor = waiting is not None and waiting.type == "ACTOR_CREATION_TASK"
    name = group.first.function.removesuffix(".__init__")
    noun = "Actor" if is_actor else "Task"
    who = f"{noun} {name}" if count == 1 else plural(count, f"{name} {noun.lower()}")
    return Words(
        headline=one_line(
            f"{who} can never be scheduled: {'it needs' if count == 1 else 'each needs'} {group.match.cause}"
        ),
        detail="No node of the cluster has had these resources, so the request would wait forever.",
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
