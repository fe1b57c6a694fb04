"""Resources that were reserved but not used."""

from statistics import fmean

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration, plural
from rayhistory.diagnosis.rules.rule import Example, SessionRule
from rayhistory.diagnosis.rules.slowness.costs import cluster_cpus, slow
from rayhistory.diagnosis.rules.slowness.training import blocked_on_checkpoints, blocked_on_data
from rayhistory.diagnosis.session_facts import NodeFacts, NodeSamples, SessionFacts

_MIN_SPAN_MS = 600_000
_LOW_GPU, _LOW_CPU = 30.0, 50.0
_MIN_OCCUPIED = 0.5


def _find(facts: SessionFacts) -> list[Finding]:
    return [*_idle_gpus(facts), *_idle_cpus(facts), *blocked_on_data(facts), *blocked_on_checkpoints(facts)]


def _idle_gpus(facts: SessionFacts) -> list[Finding]:
    idle = [fmean(value for _, value in samples.gpu) for samples in facts.samples.values() if _span(samples.gpu)]
    idle = [value for value in idle if value < _LOW_GPU]
    if not idle:
        return []
    return [
        slow(
            "idle_resources",
            f"GPUs of {plural(len(idle), 'node')} had an average utilization of {fmean(idle):.0f}%",
            suggestion="Load data faster (more data loading tasks, larger batches), share GPUs (num_gpus=0.5), or "
            "use fewer GPUs.",
            nodes=len(idle),
        )
    ]


def _idle_cpus(facts: SessionFacts) -> list[Finding]:
    """Find CPUs that tasks reserve but do not use."""
    cpus, start, end = cluster_cpus(facts), facts.started_ms, facts.ended_ms
    used = [fmean(value for _, value in samples.cpu) for samples in facts.samples.values() if _span(samples.cpu)]
    if not used or not cpus or start is None or end is None or end - start < _MIN_SPAN_MS:
        return []
    occupied = facts.times.running_ms / (cpus * (end - start))
    if occupied < _MIN_OCCUPIED or fmean(used) >= _LOW_CPU:
        return []
    return [
        slow(
            "idle_resources",
            f"Tasks reserved {min(occupied, 1):.0%} of {cpus:g} CPUs for {duration(end - start)}, but the CPUs "
            f"had an average utilization of {fmean(used):.0f}%",
            suggestion="Request fewer CPUs per task (num_cpus=0.5), so that more tasks run at once.",
            nodes=len(used), severity="info",
        )
    ]  # fmt: skip


def _span(points: list[tuple[int, float]]) -> bool:
    return bool(points) and points[-1][0] - points[0][0] >= _MIN_SPAN_MS


RULE = SessionRule(
    code="idle_resources",
    meaning="GPU utilization was below 30 % for ten minutes; or tasks used less than half of the CPUs that they "
    "reserved; or a loop over Ray Data spent 10 % of its time waiting for data; or Ray Train spent 5 % of its "
    "time storing checkpoints.",
    needs=("metrics",),
    find=_find,
    example=Example(
        facts=SessionFacts(
            nodes=[NodeFacts(node_id="ef" * 28, resources={"GPU": 1.0})],
            samples={"ef" * 28: NodeSamples(gpu=[(0, 10.0), (600_000, 14.0)])},
        ),
        headline="GPUs of 1 node had an average utilization of 12%",
    ),
)
