"""A replica that compacts runs and sends notifications, in a process of its own that kills itself during a write."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from rayhistory.errors import StoreError, StoreUnavailable
from rayhistory.index import leases
from rayhistory.index.products.product_builder import ProductBuilder
from rayhistory.index.table_cache import TableCache
from rayhistory.notify import outbox
from rayhistory.notify.notifier import Notifier
from rayhistory.notify.notify_rules import NotifyRule, NotifyRules
from rayhistory.runs.run_maintenance import RunMaintenance
from rayhistory.runs.run_table import RunTable
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import resolve
from rayhistory.storage.local import LocalStore
from support.generated_runs import LAYOUT

_RETRY_S = 0.02


class ReplicaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one replica, and the faults that it meets."""

    home: str
    store: str
    receiver: str
    seed: int
    passes: int = 2
    dies_at_write: int = 0
    """SIGKILL at this write, before or after it; 0 for never."""
    dies_after_s: float = 0.0
    """SIGKILL after this time, whatever it does; 0 for never."""
    error_rate: float = 0.0
    """The share of requests that fail, half of them after they were carried out."""
    lease_s: float = 60.0
    """How long a lease lasts: with 0, replicas do all work at the same time."""


class DeadlyStore(LocalStore):
    """A directory store whose writes fail or kill the process."""

    def __init__(self, plan: ReplicaPlan) -> None:
        super().__init__(Path(plan.store))
        self._plan = plan
        self._rng = random.Random(plan.seed)
        self._writes = 0

    async def put(self, key: str, data: bytes | Path) -> None:
        await self._deadly(lambda: super(DeadlyStore, self).put(key, data))

    async def create(self, key: str, data: bytes) -> None:
        await self._deadly(lambda: super(DeadlyStore, self).create(key, data))

    async def delete(self, key: str) -> None:
        await self._deadly(lambda: super(DeadlyStore, self).delete(key))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self._maybe_fail()
        return await super().get_range(key, start, end)

    async def _deadly(self, write: Callable[[], Awaitable[None]]) -> None:
        self._writes += 1
        dies = self._writes == self._plan.dies_at_write
        if dies and self._rng.random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        self._maybe_fail()
        await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.002)))  # let the other replica overtake
        await write()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self._maybe_fail()

    def _maybe_fail(self) -> None:
        if self._rng.random() < self._plan.error_rate / 2:
            raise StoreUnavailable("injected")


def run_replica(data: bytes) -> None:
    """Run the plan in this process."""
    plan = msgspec.json.decode(data, type=ReplicaPlan)
    leases.LEASE_EXPIRES_AFTER_S = plan.lease_s
    outbox._FIRST_RETRY_S = _RETRY_S
    if plan.dies_after_s:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, plan.dies_after_s)
    asyncio.run(_work(plan))


async def _work(plan: ReplicaPlan) -> None:
    store = DeadlyStore(plan)
    maintenance, notifier = _parts(plan, store)
    for _ in range(plan.passes):
        for step in (lambda: maintenance.compact(force=True), notifier.work):
            with contextlib.suppress(StoreError):  # the loops of a server log this and go on
                await step()
        await asyncio.sleep(_RETRY_S)


def _parts(plan: ReplicaPlan, store: DeadlyStore) -> tuple[RunMaintenance, Notifier]:
    home = Path(plan.home)
    settings = resolve("historyserver", {"setting_cache_dir": str(home / "cache")}, {})[0]
    products = ProductBuilder(settings, store, LAYOUT, TableCache(home / "index", store, LAYOUT, 1 << 30), ())
    table = RunTable(store, LAYOUT, home / "cache")
    maintenance = RunMaintenance(table, SessionCatalog(store, LAYOUT, 120.0), products, keep_removed=False)
    rule: dict[str, Any] = {"name": "ops", "webhook": plan.receiver, "allow_networks": ("127.0.0.0/8",)}
    return maintenance, Notifier(NotifyRules(rule=(NotifyRule(**rule),)), table, "auto")
