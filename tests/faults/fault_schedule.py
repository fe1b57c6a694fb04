"""What is to go wrong on a day, drawn from its seed; and what came of it."""

import random
from collections import Counter
from dataclasses import dataclass, field

SMALL, LARGE = 3, 200
HURTS = (
    "kill", "kill", "kill and rotate", "stop and start", "full disk", "failing disk", "slow disk",
    "store", "store", "store", "clock", "Ray starts again", "node lost", "server killed", "fold killed",
)  # fmt: skip


@dataclass
class Plan:
    seed: int
    store: str
    nodes: int
    budget_mb: int
    rotation_ms: int
    hurts: list[tuple[float, str, int]]
    """When, what, and to which node."""

    @classmethod
    def of(cls, seed: int) -> "Plan":
        dice = random.Random(f"day {seed}")
        nodes = dice.choice([1, 1, 2, 2, 3])
        hurts = sorted(
            (round(dice.uniform(0.2, 3.2), 2), dice.choice(HURTS), dice.randrange(nodes))
            for _ in range(dice.randrange(2, 6))
        )
        return cls(
            seed,
            dice.choice(["directory", "S3"]),
            nodes,
            dice.choice([SMALL, LARGE]),
            dice.choice([200, 600, 60_000]),
            hurts,
        )

    def __str__(self) -> str:
        hurts = ", ".join(f"{at} s {what} ({node})" for at, what, node in self.hurts)
        return f"{self.nodes} nodes, {self.store}, {self.budget_mb} MB, {self.rotation_ms} ms: {hurts}"

    def has(self, *kinds: str) -> bool:
        return any(what in kinds for _, what, _ in self.hurts)


@dataclass
class Outcome:
    plan: Plan
    problems: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    skipped: set[str] = field(default_factory=set)
    events: int = 0
    log_bytes: int = 0
    requests: int = 0
    posts: int = 0
    seconds: float = 0.0

    def line(self) -> str:
        what = "; ".join(self.problems) or "survived"
        return (
            f"seed {self.plan.seed}: {what}, in {self.seconds:.1f} s: {self.events} events, {self.log_bytes} log bytes "
            f"({self.plan})"
        )
