"""The fault schedule of a scenario, drawn from a seed, and the scenario's outcome."""

import random
from collections import Counter
from dataclasses import dataclass, field

SMALL_BUDGET_MB, LARGE_BUDGET_MB = 3, 200
FAULT_KINDS = (
    "kill", "kill", "kill and rotate", "restart", "full disk", "failing disk", "slow disk",
    "store", "store", "store", "clock", "Ray restart", "node lost", "server killed", "fold killed",
)  # fmt: skip
"""Repeated kinds are drawn more often. The order is part of what a seed means."""


@dataclass
class FaultSchedule:
    seed: int
    store: str
    nodes: int
    budget_mb: int
    rotation_ms: int
    faults: list[tuple[float, str, int]]
    """Start in seconds, kind, and node number."""

    @classmethod
    def from_seed(cls, seed: int) -> "FaultSchedule":
        rng = random.Random(f"day {seed}")  # changing this string changes the schedule of every seed
        nodes = rng.choice([1, 1, 2, 2, 3])
        faults = sorted(
            (round(rng.uniform(0.2, 3.2), 2), rng.choice(FAULT_KINDS), rng.randrange(nodes))
            for _ in range(rng.randrange(2, 6))
        )
        return cls(
            seed,
            rng.choice(["directory", "S3"]),
            nodes,
            rng.choice([SMALL_BUDGET_MB, LARGE_BUDGET_MB]),
            rng.choice([200, 600, 60_000]),
            faults,
        )

    def __str__(self) -> str:
        faults = ", ".join(f"{at} s {kind} ({node})" for at, kind, node in self.faults)
        return f"{self.nodes} nodes, {self.store}, {self.budget_mb} MB, {self.rotation_ms} ms: {faults}"

    def includes(self, *kinds: str) -> bool:
        return any(kind in kinds for _, kind, _ in self.faults)


@dataclass
class Outcome:
    schedule: FaultSchedule
    problems: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    skipped: set[str] = field(default_factory=set)
    events: int = 0
    log_bytes: int = 0
    requests: int = 0
    posts: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        result = "; ".join(self.problems) or "passed"
        if self.skipped:
            result += f", skipped: {'; '.join(sorted(self.skipped))}"
        return (
            f"seed {self.schedule.seed}: {result}, in {self.seconds:.1f} s: {self.events} events, "
            f"{self.log_bytes} log bytes ({self.schedule})"
        )
