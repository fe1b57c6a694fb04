"""Run one scenario per seed, print its outcome, and sum up: for campaigns besides that of whole clusters."""

import argparse
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field


@dataclass
class SeedOutcome:
    seed: int
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def line(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"seed {self.seed}: {'; '.join(self.problems) or 'passed'}, in {self.seconds:.1f} s: {counts}"


def run_seeds(description: str, run_scenario: Callable[[int], SeedOutcome], scenarios: int) -> int:
    """Run the seeds of the command line, or 1 to `scenarios`; return the exit status."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED", help="seeds of the scenarios to run")
    parser.add_argument("--scenarios", type=int, default=scenarios, help="run seeds 1 to N if none is given")
    parser.add_argument("--parallel", type=int, default=2, help="scenarios at the same time (default: 2)")
    arguments = parser.parse_args()
    outcomes = []
    with ThreadPoolExecutor(arguments.parallel) as pool:
        for outcome in pool.map(run_scenario, arguments.seeds or range(1, arguments.scenarios + 1)):
            outcomes.append(outcome)
            print(outcome.line(), flush=True)
    total: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    failed = [outcome.seed for outcome in outcomes if outcome.problems]
    figures = ", ".join(f"{count:,} {name}" for name, count in sorted(total.items()))
    print(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} seeds passed: {figures}; failed: {failed or 'none'}")
    return 1 if failed else 0
