"""One fold of a growing session in a process of its own, which meets store faults and kills itself during a write."""

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from rayhistory.errors import StoreError, StoreUnavailable
from rayhistory.index.fold import part_compaction
from rayhistory.index.fold.fold_process import FoldJob, fold
from rayhistory.sessions.records import Closing
from rayhistory.storage.local import LocalStore
from support.folding import REF, settings_for

FAN_IN = 3
"""Parts of a size that are compacted: fewer than usual, so that a few steps compact several times."""
OUTAGE_STATUS = 3


class FoldPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One fold, and the faults that it meets."""

    store: str
    seed: int
    closing: Closing | None = None
    repair: bool = False
    dies_at_write: int = 0
    """SIGKILL at this write, before or after it; 0 for never."""
    dies_after_s: float = 0.0
    error_rate: float = 0.0
    """The share of writes that fail, half of them after they were carried out."""


class _Faults:
    """Makes the writes of every local store of this process fail or kill it."""

    def __init__(self, plan: FoldPlan) -> None:
        self._plan = plan
        self._rng = random.Random(plan.seed)
        self._writes = 0

    def install(self) -> None:
        for name in ("put", "create", "delete"):
            setattr(LocalStore, name, self._faulty(getattr(LocalStore, name)))

    def _faulty(self, write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def faulty(*arguments: Any, **options: Any) -> Any:
            self._writes += 1
            dies = self._writes == self._plan.dies_at_write
            if dies and self._rng.random() < 0.5:
                os.kill(os.getpid(), signal.SIGKILL)
            self._maybe_fail()
            result = await write(*arguments, **options)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            self._maybe_fail()
            return result

        return faulty

    def _maybe_fail(self) -> None:
        if self._rng.random() < self._plan.error_rate / 2:
            raise StoreUnavailable("injected")


def run_fold(data: bytes) -> None:
    """Run the plan in this process."""
    plan = msgspec.json.decode(data, type=FoldPlan)
    part_compaction.FAN_IN = FAN_IN
    _Faults(plan).install()
    if plan.dies_after_s:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, plan.dies_after_s)
    try:
        try:
            _fold(plan, repair=plan.repair)
        except duckdb.Error:  # the server requests a repair when a fold fails
            _fold(plan, repair=True)
    except StoreError:
        raise SystemExit(OUTAGE_STATUS) from None


def _fold(plan: FoldPlan, *, repair: bool) -> None:
    with tempfile.TemporaryDirectory(dir=Path(plan.store).parent) as scratch:
        settings = msgspec.to_builtins(settings_for(Path(plan.store)))
        job = FoldJob(settings, REF, plan.closing, scratch, repair=repair)
        asyncio.run(fold(job, lambda progress, detail: None))
