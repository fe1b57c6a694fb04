"""Ray Train and Ray Data: loops that waited for data or checkpoints, and ranks that were slower than others.

Both libraries report these times as metrics. Used by the rules `idle_resources` and `stragglers`.
"""

from collections import defaultdict
from collections.abc import Sized
from statistics import median

import msgspec

from rayhistory.diagnosis.findings import Finding
from rayhistory.diagnosis.headlines import duration, plural
from rayhistory.diagnosis.rules.slowness.costs import slow
from rayhistory.diagnosis.session_facts import SessionFacts, TrainRank

_BLOCKED_SHARE, _CHECKPOINT_SHARE = 0.10, 0.05
_MIN_ITERATION_S, _MIN_SPAN_S = 10.0, 60.0
_MIN_RANKS, _RANK_FACTOR = 3, 1.5
_MIN_RANK_S = 20.0
"""Minimum time by which a slow rank is slower than the median rank.

Ray exports metrics of a worker every 10 s, so that both ends of its span are uncertain by that much.
"""


def blocked_on_data(facts: SessionFacts) -> list[Finding]:
    """Find loops over Ray Data that waited for data."""
    blocked = sum(samples.data_blocked_s for samples in facts.samples.values())
    total = blocked + sum(samples.data_used_s for samples in facts.samples.values())
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
    """Find the run of Ray Train that spent most time storing its checkpoints."""
    stored = {run: median(each.stored_s for each in ranks.values()) for run, ranks in _train_runs(facts).items()}
    spans = {run: _span_s(ranks) for run, ranks in _train_runs(facts).items()}
    slow_runs = [run for run, span in spans.items() if span >= _MIN_SPAN_S and stored[run] >= _CHECKPOINT_SHARE * span]
    if not slow_runs:
        return []
    run = max(slow_runs, key=lambda each: stored[each])
    return [
        slow(
            "idle_resources",
            f"Training spent {stored[run] / spans[run]:.0%} of the time storing checkpoints "
            f"({duration(stored[run] * 1000)} of {duration(spans[run] * 1000)}){_others(slow_runs)}",
            suggestion="Store checkpoints less often, make them smaller, or use faster storage.",
        )
    ]


def slow_ranks(facts: SessionFacts) -> list[Finding]:
    """Find the rank of Ray Train for which the other ranks of its run waited most.

    Each report waits until all ranks have reported. So the rank that waits least is the slowest.
    """
    found = [each for ranks in _train_runs(facts).values() if (each := _slow_rank(ranks))]
    if not found:
        return []
    worst = max(found, key=lambda each: each.busy_s - each.usual_s)
    storing = f" ({duration(worst.stored_s * 1000)} to store checkpoints)" if worst.is_storage_slow else ""
    return [
        slow(
            "stragglers",
            f"Training rank {worst.rank} needed {duration(worst.busy_s * 1000)}{storing}; the median of "
            f"{worst.ranks} ranks was {duration(worst.usual_s * 1000)}, and the other ranks waited{_others(found)}",
            suggestion="Check the disk, the network and other processes on the node of that rank, and its share of "
            "the data.",
        )
    ]


class _SlowRank(msgspec.Struct, frozen=True):
    rank: str
    ranks: int
    busy_s: float
    usual_s: float
    stored_s: float
    usual_stored_s: float

    @property
    def is_storage_slow(self) -> bool:
        return self.stored_s - self.usual_stored_s > (self.busy_s - self.usual_s) / 2


def _slow_rank(ranks: dict[str, TrainRank]) -> _SlowRank | None:
    if len(ranks) < _MIN_RANKS:
        return None
    span_s = _span_s(ranks)
    busy = {rank: span_s - each.waited_s for rank, each in ranks.items()}
    rank, usual = max(busy, key=lambda each: busy[each]), median(busy.values())
    if busy[rank] < _RANK_FACTOR * usual or busy[rank] - usual < _MIN_RANK_S:
        return None
    usual_stored = median(each.stored_s for each in ranks.values())
    return _SlowRank(rank, len(ranks), busy[rank], usual, ranks[rank].stored_s, usual_stored)


def _train_runs(facts: SessionFacts) -> dict[str, dict[str, TrainRank]]:
    """Return the ranks of each Train run. If a rank had several workers in turn, their times are added."""
    runs: dict[str, dict[str, TrainRank]] = defaultdict(dict)
    for samples in facts.samples.values():
        for each in samples.train_ranks:
            before = runs[each.run_id].get(each.rank)
            runs[each.run_id][each.rank] = _sum(before, each) if before else each
    return runs


def _sum(one: TrainRank, other: TrainRank) -> TrainRank:
    return TrainRank(
        run_id=one.run_id, rank=one.rank, span_s=one.span_s + other.span_s, waited_s=one.waited_s + other.waited_s,
        stored_s=one.stored_s + other.stored_s,
    )  # fmt: skip


def _span_s(ranks: dict[str, TrainRank]) -> float:
    return max(each.span_s for each in ranks.values())


def _others(found: Sized) -> str:
    return f", as in {plural(len(found) - 1, 'other run')}" if len(found) > 1 else ""
