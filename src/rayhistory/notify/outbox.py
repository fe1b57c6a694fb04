"""The outbox in the store: notifications to send, and marks of sent ones.

    ray-history/notifications/outbox/<id>-<rule>.json   waiting, with the number of attempts
    ray-history/notifications/sent/<id>-<rule>          sent, or given up
    ray-history/notifications/started.json              sessions that had ended when notifications were turned on

An entry is created before its notification is sent, and deleted after the mark is written. A server that is killed in
between sends the notification again, with the same id.
"""

import contextlib
import time
from collections.abc import Callable

import msgspec

from rayhistory.errors import ObjectExists, ObjectNotFound
from rayhistory.notify.notification import MAX_AGE_MS, Notification
from rayhistory.sessions import Layout
from rayhistory.storage import Store

_FIRST_RETRY_S, _MAX_RETRY_S = 15.0, 3600.0
GIVE_UP_AFTER_S = 3 * 86_400.0


class OutboxEntry(msgspec.Struct, kw_only=True):
    rule: str
    notification: Notification
    created: float
    attempts: int = 0
    next_attempt: float = 0.0
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{self.notification.id}-{self.rule}"

    def retry(self, problem: str, now: float) -> "OutboxEntry | None":
        """Return the entry for the next attempt, after a failed one; None to give up."""
        if now - self.created > GIVE_UP_AFTER_S:
            return None
        pause = min(_FIRST_RETRY_S * 2**self.attempts, _MAX_RETRY_S)
        return msgspec.structs.replace(
            self, attempts=self.attempts + 1, next_attempt=now + pause, problem=problem[:500]
        )


class Outbox:
    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._known: set[str] = set()
        """Entries that were queued or sent, so that each is looked up in the store only once."""
        self._before: set[str] | None = None

    @property
    def lease_key(self) -> str:
        return self._layout.notifications_lease_key()

    async def known_sessions(self, now_over: Callable[[], list[str]]) -> set[str]:
        """Return the sessions that had ended before notifications were turned on. They are not reported.

        This is a list and not a time, because clocks of clusters differ.
        """
        key = self._layout.notifications_started_key()
        if self._before is None:
            with contextlib.suppress(ObjectExists):
                await self._store.create(key, msgspec.json.encode(now_over()))
            self._before = set(msgspec.json.decode(await self._store.get(key), type=list[str]))
        return self._before

    async def add(self, rule: str, notification: Notification) -> bool:
        """Queue a notification unless it was queued or sent before; return whether it is new."""
        entry = OutboxEntry(rule=rule, notification=notification, created=time.time())
        if entry.name in self._known:
            return False
        is_new = not await self._exists(self._layout.sent_key(entry.name))
        if is_new:
            try:
                await self._store.create(self._layout.outbox_key(entry.name), msgspec.json.encode(entry))
            except ObjectExists:
                is_new = False
        self._known.add(entry.name)
        return is_new

    async def due(self, now: float) -> list[OutboxEntry]:
        """Return the entries to send now, oldest first. Unreadable entries are removed."""
        entries = []
        async for info in self._store.list_all(self._layout.outbox_prefix()):
            try:
                entry = msgspec.json.decode(await self._store.get(info.key), type=OutboxEntry)
            except ObjectNotFound:
                continue
            except (msgspec.MsgspecError, UnicodeDecodeError):
                await self._store.delete(info.key)
                continue
            if entry.next_attempt <= now:
                entries.append(entry)
        return sorted(entries, key=lambda entry: entry.created)

    async def done(self, entry: OutboxEntry, how: str) -> None:
        """Mark an entry as sent or given up, then remove it."""
        await self._store.put(self._layout.sent_key(entry.name), how.encode())
        await self._store.delete(self._layout.outbox_key(entry.name))

    async def keep(self, entry: OutboxEntry) -> None:
        await self._store.put(self._layout.outbox_key(entry.name), msgspec.json.encode(entry))

    async def waiting(self) -> int:
        return len([info async for info in self._store.list_all(self._layout.outbox_prefix())])

    async def forget(self, now: float) -> None:
        """Delete marks of runs that are too old to be reported again."""
        async for info in self._store.list_all(self._layout.sent_prefix()):
            if now - info.modified > 2 * MAX_AGE_MS / 1000:
                await self._store.delete(info.key)

    async def _exists(self, key: str) -> bool:
        try:
            await self._store.head(key)
        except ObjectNotFound:
            return False
        return True
