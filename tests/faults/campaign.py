"""Run many scenarios, print one line for each, and write their figures into docs/explanation/reliability.md.

python tests/faults/campaign.py [--scenarios N] [--parallel N] [--figures] [SEED …]
"""

import argparse
import queue
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.fault_schedule import Outcome
from faults.scenario import run_scenario
from faults.scenario_stores import Stores, s3_server, stores

DOCUMENT = Path(__file__).parents[2] / "docs/explanation/reliability.md"
BEGIN, END = "<!-- figures of the last campaign: written by make test-faults -->", "<!-- end of figures -->"


class Campaign:
    """Runs a few scenarios at a time against one S3 server."""

    def __init__(self, parallel: int = 2, keep: Path | None = None) -> None:
        self._resources = ExitStack()
        self._keep = keep
        directory = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="rhc")))
        upstream = self._resources.enter_context(s3_server(directory))
        self._idle_stores: queue.SimpleQueue[Stores] = queue.SimpleQueue()
        for _ in range(parallel):
            self._idle_stores.put(self._resources.enter_context(stores(upstream)))
        self._pool = self._resources.enter_context(ThreadPoolExecutor(parallel))

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._resources.close()

    def submit(self, seed: int) -> "Future[Outcome]":
        return self._pool.submit(self._run, seed)

    def _run(self, seed: int) -> Outcome:
        own_stores = self._idle_stores.get()
        try:
            return run_scenario(seed, own_stores, self._keep)
        finally:
            self._idle_stores.put(own_stores)


def figures(outcomes: list[Outcome], seconds: float) -> str:
    faults: Counter[str] = sum((outcome.faults for outcome in outcomes), Counter())
    skipped = sorted(set().union(*(outcome.skipped for outcome in outcomes)))
    failed = [outcome.schedule.seed for outcome in outcomes if outcome.problems]
    lines = [
        f"Last campaign: {time.strftime('%Y-%m-%d', time.gmtime())}, {len(outcomes)} seeds "
        f"({min(each.schedule.seed for each in outcomes)} to {max(each.schedule.seed for each in outcomes)}) "
        f"in {seconds / 60:.0f} minutes, {len(outcomes) - len(failed)} passed"
        f"{f', failed: {failed}' if failed else ''}.",
        "",
        f"{sum(each.events for each in outcomes):,} acked events in "
        f"{sum(each.posts for each in outcomes):,} posts, "
        f"{sum(each.log_bytes for each in outcomes):,} bytes of logs, "
        f"{sum(each.requests for each in outcomes):,} requests to the S3 server. "
        f"Slowest scenario: {max(each.seconds for each in outcomes):.0f} s.",
        "",
        "| fault | count |",
        "|---|---|",
        *(f"| {fault} | {count:,} |" for fault, count in sorted(faults.items())),
        *(["", *(f"Skipped: {reason}." for reason in skipped)] if skipped else []),
    ]
    return "\n".join(lines)


def write_figures(text: str) -> None:
    before = DOCUMENT.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    assert pattern.search(before), f"{DOCUMENT} has no markers for the figures"
    DOCUMENT.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", before))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED", help="seeds of the scenarios to run")
    parser.add_argument("--scenarios", type=int, default=200, help="run seeds 1 to N if none is given (default: 200)")
    parser.add_argument("--parallel", type=int, default=2, help="scenarios at the same time (default: 2)")
    parser.add_argument("--minutes", type=float, default=60, help="start no scenario after this time (default: 60)")
    parser.add_argument("--figures", action="store_true", help="write the figures into docs/explanation/reliability.md")
    parser.add_argument("--keep", type=Path, help="directory for the files of failed scenarios")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM received"))  # running scenarios are finished first
    start, print_lock = time.monotonic(), threading.Lock()

    def print_outcome(future: "Future[Outcome]") -> None:
        if not future.cancelled():
            with print_lock:
                print(future.result().line(), flush=True)

    with Campaign(arguments.parallel, arguments.keep) as campaign:
        futures = [campaign.submit(seed) for seed in arguments.seeds or range(1, arguments.scenarios + 1)]
        for future in futures:
            future.add_done_callback(print_outcome)
        wait(futures, max(0.0, start + arguments.minutes * 60 - time.monotonic()))
        started = [future for future in futures if not future.cancel()]
        outcomes = [future.result() for future in started]
    text = figures(outcomes, time.monotonic() - start)
    print(f"\n{text}")
    if arguments.figures:
        write_figures(text)
    return any(outcome.problems for outcome in outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
