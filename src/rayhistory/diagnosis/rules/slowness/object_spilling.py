"""Object stores that spilled objects to disk."""

from rayhistory.diagnosis.findings import Evidence, Finding
from rayhistory.diagnosis.headlines import plural, size
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import MemorySample, NodeSamples, SessionFacts

_MIN_BYTES = 1 << 20


def _find(facts: SessionFacts) -> list[Finding]:
    spilled = {node: samples for node, samples in facts.samples.items() if samples.spilled_bytes >= _MIN_BYTES}
    if not spilled:
        return []
    total = sum(samples.spilled_bytes for samples in spilled.values())
    capacity = max((each.total for samples in spilled.values() for each in samples.object_store), default=0.0)
    room = f"; the object store has {size(capacity)}" if capacity else ""
    return [
        slow(
            RULE.code,
            f"{size(total)} of objects were spilled to disk on {plural(len(spilled), 'node')}{room}",
            suggestion="Give the object store more memory (--object-store-memory), process fewer objects at a time, "
                       "or delete references that you no longer need.",
            nodes=len(spilled),
            evidence=[Evidence(kind="metric", id=node, text=f"spilled {size(samples.spilled_bytes)}")
                      for node, samples in list(spilled.items())[:5]],
        )
    ]  # fmt: skip


RULE = SessionRule(
    code="object_spilling",
    meaning="The object store of a node was too small for the objects in use, so Ray spilled some of them to disk.",
    needs=("metrics",),
    find=_find,
    example=Example(
        facts=SessionFacts(
            samples={"ef" * 28: NodeSamples(spilled_bytes=3 << 30, object_store=[MemorySample(0, 1 << 30, 2 << 30)])}
        ),
        headline="3.0 GiB of objects were spilled to disk on 1 node; the object store has 2.0 GiB",
    ),
)
