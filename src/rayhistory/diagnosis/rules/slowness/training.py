"""Ray Train and Ray Data: loops that waited for data or checkpoints, and ranks that were slower than others.

Both libraries report these times as metrics. Used by the rules `idle_resources` and `stragglers`.
"""

from statistics import median

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import SessionFacts

_BLOCKED_SHARE, _CHECKPOINT_SHARE = 0.10, 0.05
_MIN_ITERATION_S, _MIN_SPAN_MS = 10.0, 60_000
_MIN_RANKS, _RANK_FACTOR, _MIN_RANK_S = 3, 1.5, 10.0


def blocked_on_data(facts: SessionFacts) -> list[Finding]:
    """Find loops over Ray Data that waited for data."""
    blocked = sum(samples.data_blocked_s for samples in facts.samples.values())
    total = sum(samples.data_total_s for samples in facts.samples.values())
    if total < _MIN_ITERATION_S or blocked < _BLOCKED_SHARE * total:
        return []
    return [
        slow(
            "idle_resources",
            f"Loops over Ray Data spent {blocked / total:.0%} of the time waiting for their next batch "
            f"({duration(blocked * 1000)} of {duration(total * 1000)})",
            suggestion="Prefetch more batches (prefetch_batches), or give preprocessing more CPUs.",
        )
    ]


def blocked_on_checkpoints(facts: SessionFacts) -> list[Finding]:
    """Find training loops that waited for their checkpoints to be stored."""
    times = _ranks(facts)
    span = max((samples.train_span_ms for samples in facts.samples.values()), default=0)
    usual = median(times.values()) * 1000 if times else 0.0
    if span < _MIN_SPAN_MS or usual < _CHECKPOINT_SHARE * span:
        return []
    return [
        slow(
            "idle_resources",
            f"Training spent {usual / span:.0%} of the time on reports and checkpoints ({duration(usual)} of "
            f"{duration(span)})",
            suggestion="Store checkpoints less often, make them smaller, or use faster storage.",
        )
    ]


def slow_ranks(facts: SessionFacts) -> list[Finding]:
    """Find ranks of Ray Train that took longer to report than the others."""
    times = _ranks(facts)
    if len(times) < _MIN_RANKS:
        return []
    usual = median(times.values())
    rank = max(times, key=lambda each: times[each])
    if times[rank] < _RANK_FACTOR * usual or times[rank] - usual < _MIN_RANK_S:
        return []
    return [
        slow(
            "stragglers",
            f"Training rank {rank} spent {duration(times[rank] * 1000)} on its reports; the median of {len(times)} "
            f"ranks is {duration(usual * 1000)}",
            suggestion="Check the disk, the network and other processes on the node of that rank.",
        )
    ]


def _ranks(facts: SessionFacts) -> dict[str, float]:
    return {rank: value for samples in facts.samples.values() for rank, value in samples.train_ranks.items()}
