"""Queue and send notifications in the background. If several servers share a store, one of them works at a time."""

import asyncio
import logging
import time
from collections.abc import Callable

from rayhistory.errors import RayHistoryError
from rayhistory.index.leases import Leases
from rayhistory.notify.delivery import deliver
from rayhistory.notify.notification import MAX_AGE_MS, notifications_for
from rayhistory.notify.notify_rules import NotifyRules
from rayhistory.notify.outbox import Outbox, OutboxEntry
from rayhistory.runs.run_table import RunTable

log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 10.0
_CLEAN_EVERY_S = 86_400.0
_CONCURRENT_DELIVERIES = 8


class Notifier:
    def __init__(
        self, rules: NotifyRules, table: RunTable, run_key: str, count: Callable[[str], None] = lambda _: None
    ) -> None:
        """`count` is called with the outcome of each attempt: sent, failed or given_up."""
        self._rules = rules
        self._table = table
        self._run_key = run_key
        self._outbox = Outbox(table.store, table.layout)
        self._leases = Leases(table.store)
        self._seen_version: int | None = None
        self._cleaned = time.monotonic()
        self._count = count

    async def run(self, poll_interval_s: float = _POLL_INTERVAL_S) -> None:
        """Send notifications until cancelled."""
        while True:
            try:
                await self.work()
            except RayHistoryError as error:
                log.warning("cannot send notifications, retrying later", extra={"reason": str(error)})
            except Exception:
                log.exception("unexpected error while sending notifications, retrying later")
            await asyncio.sleep(poll_interval_s)

    async def work(self) -> None:
        """Queue new notifications and send due ones, unless another server does."""
        async with self._leases.hold(self._outbox.lease_key) as held:
            if held:
                await self._queue()
                await self._send()

    async def _queue(self) -> None:
        rows = await self._table.load()
        if rows.version == self._seen_version:
            return
        known = await self._outbox.known_sessions(
            lambda: [each.path for each in rows.summaries.values() if each.is_over]
        )
        since_ms = int(time.time() * 1000) - MAX_AGE_MS
        found = await asyncio.to_thread(
            notifications_for, rows.summaries, run_key=self._run_key, since_ms=since_ms, known=known
        )
        for notification in found:
            for rule in self._rules.rule:
                if rule.matches(notification):
                    await self._outbox.add(rule.name, notification)
        self._seen_version = rows.version

    async def _send(self) -> None:
        slots = asyncio.Semaphore(_CONCURRENT_DELIVERIES)

        async def send(entry: OutboxEntry) -> None:
            async with slots:
                await self._send_one(entry)

        await asyncio.gather(*map(send, await self._outbox.due(time.time())))
        if time.monotonic() - self._cleaned > _CLEAN_EVERY_S:
            self._cleaned = time.monotonic()
            await self._outbox.forget(time.time())

    async def _send_one(self, entry: OutboxEntry) -> None:
        rule = self._rules.named(entry.rule)
        if rule is None:
            await self._outbox.done(entry, "no rule")
            return
        try:
            await deliver(rule, entry.notification, self._rules.server_url)
        except RayHistoryError as error:
            self._count("failed")
            await self._retry_later(entry, error)
            return
        self._count("sent")
        await self._outbox.done(entry, "sent")

    async def _retry_later(self, entry: OutboxEntry, error: RayHistoryError) -> None:
        later = entry.retry(str(error), time.time())
        extra = {"rule": entry.rule, "session": entry.notification.subject, "reason": str(error)}
        if later is not None:
            log.warning("notification not delivered, retrying later", extra=extra | {"attempts": later.attempts})
            await self._outbox.keep(later)
            return
        self._count("given_up")
        log.error("notification not delivered for three days, giving up", extra=extra)
        await self._outbox.done(entry, "given up")
