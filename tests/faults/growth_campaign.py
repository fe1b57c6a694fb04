"""An index that grows while folds are killed, overtake each other, meet store errors, and lose files.

    python tests/faults/growth_campaign.py [--scenarios N] [SEED …]

Events come in any order, some twice. Two builders may fold at once. Parts are compacted after a few steps, and killed
folds may die in the middle of that. Between steps, files of the index are removed or damaged. Checked for each seed:
after one fold without faults, all tables equal those of a single fold of all events.
"""

import asyncio
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import duckdb
import msgspec

from faults.growth_fold import OUTAGE_STATUS, FoldPlan, run_fold
from faults.seed_campaign import SeedOutcome, run_seeds
from rayhistory.index.manifest import Manifest, read_latest_manifest
from rayhistory.sessions import Layout
from rayhistory.sessions.records import Closing
from rayhistory.storage.local import LocalStore
from support.folding import END, RECORDED, REF, Tables, as_lines, put, tables
from support.skewed_events import EVENTS as SKEWED

EVENTS = RECORDED + SKEWED
_TIMEOUT_S = 120.0
_MAX_REPAIRS = 3
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["rayhistory.index.fold.fold_process", "support.folding"])


class GrowthScenario:
    """One seed: events in steps, each with one or two folds and perhaps a damaged file."""

    def __init__(self, seed: int, home: Path) -> None:
        self.outcome = SeedOutcome(seed)
        self._rng = random.Random(f"growth {seed}")
        self._grown, self._whole = home / "grown" / "store", home / "whole" / "store"
        self._layout = Layout()
        self._damaged = False

    def run(self) -> SeedOutcome:
        began = time.monotonic()
        put(self._whole, 0, as_lines(EVENTS))
        events = self._rng.sample(EVENTS, len(EVENTS)) + self._rng.sample(EVENTS, 40)
        steps = self._rng.randint(5, 9)
        for step in range(steps):
            put(self._grown, step, as_lines(events[step::steps]))
            self._join([self._start(self._grown, **self._fault()) for _ in range(self._rng.choice((1, 1, 2)))])
            if self._rng.random() < 0.2:
                self._damage()
        self._join([self._start(self._whole, closing=END)])
        self._join([self._start(self._grown, closing=END, repair=self._damaged)])
        self._verify(self._read())
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _fault(self) -> dict[str, Any]:
        rng = self._rng
        closing = rng.choice([None, None, Closing(END.ns, clean=False), Closing(0, clean=True)])
        plan: dict[str, Any] = {"closing": closing, "repair": self._damaged}
        kind = rng.choice(("write", "write", "time", "errors", "none"))
        if kind == "write":
            plan["dies_at_write"] = rng.randint(1, 60)
        if kind == "time":
            plan["dies_after_s"] = rng.uniform(0.01, 1.0)
        if kind == "errors":
            plan["error_rate"] = rng.choice((0.01, 0.1))
        return plan

    def _start(self, store: Path, **faults: Any) -> BaseProcess:
        plan = FoldPlan(store=str(store), seed=self._rng.randrange(2**32), **faults)
        process = _PROCESSES.Process(target=run_fold, args=(msgspec.json.encode(plan),))
        process.start()
        return process

    def _join(self, processes: list[BaseProcess]) -> None:
        for process in processes:
            process.join(_TIMEOUT_S)
            if process.exitcode is None:
                process.kill()
                self.outcome.problems.append("a fold hangs")
            elif process.exitcode not in {0, -9, OUTAGE_STATUS}:
                self.outcome.problems.append(f"a fold ended with status {process.exitcode}")
            self._damaged &= process.exitcode != 0  # a fold that ended well has repaired it
            self.outcome.counts.update({
                "folds": 1, "kill -9": process.exitcode == -9, "outages": process.exitcode == OUTAGE_STATUS
            })  # fmt: skip

    def _damage(self) -> None:
        """Remove, truncate or overwrite one file of the index. A server that finds that requests a repair."""
        files = sorted((self._grown / self._layout.index_prefix(REF)).rglob("*.parquet"))
        if not files:
            return
        path = self._rng.choice(files)
        kind = self._rng.choice(("removed", "truncated", "overwritten"))
        if kind == "removed":
            path.unlink()
        elif kind == "truncated":
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.write_bytes(self._rng.randbytes(path.stat().st_size))
        self._damaged = True
        self.outcome.counts[f"files {kind}"] += 1

    def _read(self) -> Tables:
        """Read all tables. As in a server, one that cannot be read is repaired by another fold."""
        for _ in range(_MAX_REPAIRS):
            try:
                return tables(self._grown, self._manifest(self._grown))
            except duckdb.Error:
                self._join([self._start(self._grown, closing=END, repair=True)])
                self.outcome.counts["repairs"] += 1
        self.outcome.problems.append("repairs do not help")
        return {}

    def _verify(self, found: Tables) -> None:
        grown, whole = self._manifest(self._grown), self._manifest(self._whole)
        self.outcome.counts.update(parts=len(grown.parts), compacted=_has_compacted(grown))
        expected = tables(self._whole, whole)
        self.outcome.problems += [f"{name} differs" for name in expected if found.get(name) != expected[name]]
        if grown.counts.tasks != whole.counts.tasks:
            self.outcome.problems.append(f"{grown.counts.tasks} tasks are counted, not {whole.counts.tasks}")

    def _manifest(self, store: Path) -> Manifest:
        manifest = asyncio.run(read_latest_manifest(LocalStore(store), self._layout, REF))
        assert manifest, "there is no index"
        return manifest


def _has_compacted(manifest: Manifest) -> bool:
    return any(sum(last - first + 1 for first, last in part.batches) > 1 for part in manifest.parts)


def run_scenario(seed: int) -> SeedOutcome:
    home = Path(tempfile.mkdtemp(prefix="rhg"))
    try:
        return GrowthScenario(seed, home).run()
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__ or "", run_scenario, 100))
