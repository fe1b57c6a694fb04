"""Replicas that compact runs and send notifications at once, killed at any moment.

    python tests/faults/run_campaign.py [--scenarios N] [SEED …]

Checked for each seed: no summary is lost, no row of a removed session stays, every event arrives at least once, and
what arrives twice has the same id.
"""

import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import defaultdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec

from faults.run_replica import ReplicaPlan, run_replica
from faults.seed_campaign import SeedOutcome, run_seeds
from rayhistory.notify.notification import notifications_for
from rayhistory.runs.run_table import RunTable
from rayhistory.runs.session_summary import StoredSummary
from rayhistory.storage.local import LocalStore
from support.generated_runs import LAYOUT, announce, generated, ref_of
from support.webhook_receiver import WebhookReceiver, webhook_receiver

HOUR_MS = 3_600_000
_TIMEOUT_S = 60.0
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["rayhistory.server.app", "rayhistory.notify.notifier", "starlette.testclient"])


class RunScenario:
    """One seed: rounds of new sessions, each with two replicas at work."""

    def __init__(self, seed: int, home: Path, receiver: WebhookReceiver) -> None:
        self.outcome = SeedOutcome(seed)
        self._rng = random.Random(f"runs {seed}")
        self._home, self._receiver = home, receiver
        self._store = LocalStore(home / "store")
        self._now_ms = int(time.time() * 1000) - 200 * HOUR_MS
        self._before: list[StoredSummary] = []
        self._after: list[StoredSummary] = []
        self._removed: set[tuple[str, str, str]] = set()
        self._processes = 0

    def run(self) -> SeedOutcome:
        began = time.monotonic()
        self._before = self._add(3)
        self._join([self._start()])  # switches notifications on: what was over before is not reported
        for _ in range(self._rng.randint(3, 5)):
            self._round()
        self._receiver.statuses.clear()
        self._join([self._start(passes=6)])
        self._verify()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _round(self) -> None:
        rng = self._rng
        self._after += self._add(rng.randint(1, 5))
        self._receiver.statuses = [rng.choice((200, 500, 302)) for _ in range(rng.choice((0, 0, 4)))]
        replicas = [self._start(**self._fault()) for _ in range(2)]
        if rng.random() < 0.5:
            self._after += self._add(rng.randint(1, 3))
        if rng.random() < 0.3:
            self._remove(rng.choice(self._after))
        self._join(replicas)

    def _fault(self) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choice(("write", "write", "time", "errors", "none"))
        fault: dict[str, Any] = {"lease_s": rng.choice((0.0, 0.0, 0.05)), "passes": rng.randint(1, 3)}
        if kind == "write":
            fault["dies_at_write"] = rng.randint(1, 30)
        if kind == "time":
            fault["dies_after_s"] = rng.uniform(0.001, 0.3)
        if kind == "errors":
            fault["error_rate"] = rng.choice((0.02, 0.2))
        return fault

    def _add(self, count: int) -> list[StoredSummary]:
        """Let sessions end: their records first, then their summaries."""
        added: list[StoredSummary] = []
        for _ in range(count):
            self._now_ms += HOUR_MS
            status, state = self._rng.choice((("SUCCEEDED", "ended"), ("FAILED", "ended"), ("FAILED", "vanished")))
            number = len(self._before) + len(self._after) + len(added)
            added.append(generated(
                number, name=f"job-{number % 3}", namespace=f"team-{number % 2}", started_ms=self._now_ms,
                duration_ms=self._rng.choice((600_000, 1_800_000)), status=status, state=state,
                fingerprint="ab" if status == "FAILED" else None,
            ))  # fmt: skip
        asyncio.run(self._put(added))
        return added

    async def _put(self, added: list[StoredSummary]) -> None:
        for stored in added:
            await self._store.put(LAYOUT.metadata_key(ref_of(stored)), b"")
        await announce(self._store, added)
        if self._rng.random() < 0.3:  # a later build of the same tables, which replaces the first
            await announce(self._store, added, generation=2)

    def _remove(self, stored: StoredSummary) -> None:
        self._removed.add(stored.summary.identity)
        asyncio.run(self._store.delete(LAYOUT.metadata_key(ref_of(stored))))

    def _start(self, **faults: Any) -> BaseProcess:
        self._processes += 1
        faults = {"lease_s": 0.0, "passes": 1} | faults
        plan = ReplicaPlan(
            home=str(self._home / f"replica-{self._processes}"), store=str(self._home / "store"),
            receiver=self._receiver.url, seed=self._rng.randrange(2**32), **faults,
        )  # fmt: skip
        process = _PROCESSES.Process(target=run_replica, args=(msgspec.json.encode(plan),))
        process.start()
        return process

    def _join(self, processes: list[BaseProcess]) -> None:
        for process in processes:
            process.join(_TIMEOUT_S)
            if process.exitcode is None:
                process.kill()
                self.outcome.problems.append("a replica hangs")
            elif process.exitcode > 0:
                self.outcome.problems.append(f"a replica ended with status {process.exitcode}")
            self.outcome.counts["kill -9"] += process.exitcode == -9
            self.outcome.counts["replicas"] += 1

    def _verify(self) -> None:
        everything = [*self._before, *self._after]
        problems, counts = self.outcome.problems, self.outcome.counts
        table = RunTable(self._store, LAYOUT, self._home / "reader")
        rows = asyncio.run(table.load())
        expected = {each.summary.identity for each in everything} - self._removed
        counts.update(summaries=len(expected), parts=len(table.manifest.parts))
        if lost := expected - rows.summaries.keys():
            problems.append(f"{len(lost)} summaries are lost")
        if stayed := self._removed & rows.summaries.keys():
            problems.append(f"{len(stayed)} rows of removed sessions are listed")
        left = len(table.inbox.newest)
        if rows.damaged or rows.quarantined or left:
            problems.append(f"{len(rows.damaged)} damaged, {rows.quarantined} quarantined, {left} in the inbox")
        problems += self._event_problems(everything)

    def _event_problems(self, everything: list[StoredSummary]) -> list[str]:
        bodies = [json.loads(body) for _, body in self._receiver.requests]
        ids = defaultdict(set)
        for body in bodies:
            ids[body["type"], body["subject"], body["data"].get("job")].add(body["id"])
        self.outcome.counts.update(events=len(ids), duplicates=len(bodies) - len({body["id"] for body in bodies}))
        stayed = {each.summary.identity: each.summary for each in everything}
        known = {each.summary.path for each in self._before}
        due = notifications_for(stayed, run_key="auto", since_ms=0, known=known)
        kinds = ("failed", "vanished")  # whether a run recovered or regressed depends on the runs that are left
        required = {each.id for each in due if each.kind in kinds and _identity(each) not in self._removed}
        received = {body["id"] for body in bodies}
        return [
            *([f"{len(required - received)} events are lost"] if required - received else []),
            *(f"{key} was sent with {len(found)} ids" for key, found in ids.items() if len(found) > 1),
            *(f"{body['subject']} was over before" for body in bodies if body["subject"] in known),
        ]


def _identity(notification: Any) -> tuple[str, str, str]:
    return notification.namespace, notification.cluster, notification.session


def run_scenario(seed: int) -> SeedOutcome:
    with tempfile.TemporaryDirectory(prefix="rhr") as home, webhook_receiver() as receiver:
        return RunScenario(seed, Path(home), receiver).run()


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__ or "", run_scenario, 200))
