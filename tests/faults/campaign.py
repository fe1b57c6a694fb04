"""Many bad days, one line for each; writes their figures into docs/reliability.md.

python tests/faults/campaign.py [--days N] [--at-once N] [--figures] [SEED …]
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

from faults.day import live
from faults.plan import Outcome
from faults.stores import Stores, s3_server, stores

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- figures of the last campaign: written by make test-faults -->", "<!-- end of figures -->"


class Campaign:
    """Days that are lived two at a time, on one S3 server; a day is begun when somebody can live it."""

    def __init__(self, at_once: int = 2, keep: Path | None = None) -> None:
        self._over = ExitStack()
        self._keep = keep
        work = Path(self._over.enter_context(tempfile.TemporaryDirectory(prefix="rhc")))
        behind = self._over.enter_context(s3_server(work))
        self._free: queue.SimpleQueue[Stores] = queue.SimpleQueue()
        for _ in range(at_once):
            self._free.put(self._over.enter_context(stores(behind)))
        self._pool = self._over.enter_context(ThreadPoolExecutor(at_once))

    def __enter__(self) -> "Campaign":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._over.close()

    def begin(self, seed: int) -> "Future[Outcome]":
        return self._pool.submit(self._live, seed)

    def _live(self, seed: int) -> Outcome:
        mine = self._free.get()
        try:
            return live(seed, mine, self._keep)
        finally:
            self._free.put(mine)


def figures(outcomes: list[Outcome], seconds: float) -> str:
    faults: Counter[str] = sum((outcome.faults for outcome in outcomes), Counter())
    skipped = sorted(set().union(*(outcome.skipped for outcome in outcomes)))
    failed = [outcome.plan.seed for outcome in outcomes if outcome.problems]
    lines = [
        f"Last campaign: {time.strftime('%Y-%m-%d', time.gmtime())}, {len(outcomes)} seeds "
        f"({min(each.plan.seed for each in outcomes)} to {max(each.plan.seed for each in outcomes)}) "
        f"in {seconds / 60:.0f} minutes, {len(outcomes) - len(failed)} survived"
        f"{f', not {failed}' if failed else ''}.",
        "",
        f"{sum(each.events for each in outcomes):,} acknowledged events in "
        f"{sum(each.posts for each in outcomes):,} posts, "
        f"{sum(each.log_bytes for each in outcomes):,} bytes of logs, "
        f"{sum(each.requests for each in outcomes):,} requests to the S3 server. "
        f"Slowest day: {max(each.seconds for each in outcomes):.0f} s.",
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {what} | {times:,} |" for what, times in sorted(faults.items())),
        *(["", *(f"Left out: {what}." for what in skipped)] if skipped else []),
    ]
    return "\n".join(lines)


def write_figures(text: str) -> None:
    before = DOCUMENT.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    assert pattern.search(before), f"{DOCUMENT} has no place for figures"
    DOCUMENT.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", before))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED", help="days to live again")
    parser.add_argument("--days", type=int, default=200, help="seeds from 1, when none is named (default: 200)")
    parser.add_argument("--at-once", type=int, default=2, help="days at the same time (default: 2)")
    parser.add_argument("--minutes", type=float, default=60, help="begin no more days after this (default: 60)")
    parser.add_argument("--figures", action="store_true", help="write the figures into docs/reliability.md")
    parser.add_argument("--keep", type=Path, help="a directory for what is left of days that were not survived")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # days that are being lived come to their end
    began, printing = time.monotonic(), threading.Lock()

    def told(day: "Future[Outcome]") -> None:
        if not day.cancelled():
            with printing:
                print(day.result().line(), flush=True)

    with Campaign(arguments.at_once, arguments.keep) as campaign:
        days = [campaign.begin(seed) for seed in arguments.seeds or range(1, arguments.days + 1)]
        for day in days:
            day.add_done_callback(told)
        wait(days, max(0.0, began + arguments.minutes * 60 - time.monotonic()))
        begun = [day for day in days if not day.cancel()]
        outcomes = [day.result() for day in begun]
    text = figures(outcomes, time.monotonic() - began)
    print(f"\n{text}")
    if arguments.figures:
        write_figures(text)
    return any(outcome.problems for outcome in outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
