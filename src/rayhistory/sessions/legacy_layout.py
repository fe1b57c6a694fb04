"""Sessions in the legacy layout: `<namespace>/<cluster>/<session>/events.log` or `metadata.json`.

This layout has no list of sessions, so every folder of the bucket must be checked. A scan takes up to 10,000 listings.
So this layout is read only with `--read-legacy-layout`.
"""

import math
import time
from collections.abc import AsyncIterator

from rayhistory.sessions.keys import Layout
from rayhistory.sessions.ref import SessionRef, is_session_name
from rayhistory.storage import Listing, Store

_SCAN_INTERVAL_S = 60.0
_MAX_FOLDERS_PER_LEVEL = 100
_MAX_PROBE_LISTINGS = 16


class LegacySessionScanner:
    """Finds the sessions of the legacy layout, at most once a minute."""

    def __init__(self, store: Store, layout: Layout, max_listings: float = math.inf) -> None:
        self._store = store
        self._layout = layout
        self._listings_left = max_listings
        self._scanned = -math.inf
        self._sessions: list[SessionRef] = []

    async def sessions(self) -> list[SessionRef]:
        if time.monotonic() - self._scanned > _SCAN_INTERVAL_S:
            self._sessions = [ref async for ref in self._scan()]
            self._scanned = time.monotonic()
        return self._sessions

    async def _scan(self) -> AsyncIterator[SessionRef]:
        verified = set(self._sessions)
        for namespace in await self._folders():
            for cluster in await self._folders(namespace):
                for name in (await self._list(namespace, cluster)).folders:
                    ref = SessionRef(namespace, cluster, name)
                    if is_session_name(name) and (ref in verified or await self._is_session(ref)):
                        yield ref

    async def _folders(self, *names: str) -> list[str]:
        folders = (await self._list(*names)).folders
        return [name for name in folders if self._layout.is_legacy_folder_name(name)][:_MAX_FOLDERS_PER_LEVEL]

    async def _is_session(self, ref: SessionRef) -> bool:
        keys = {self._layout.legacy_events_key(ref), self._layout.legacy_metadata_key(ref)}
        return any(info.key in keys for info in (await self._list(*ref.identity)).objects)

    async def _list(self, *names: str) -> Listing:
        if self._listings_left <= 0:
            return Listing([], [])
        self._listings_left -= 1
        return await self._store.list_folder(self._layout.legacy_prefix(*names))


async def probe_legacy_sessions(store: Store, layout: Layout) -> list[SessionRef]:
    """Return the sessions that a few listings find, to point users to `--read-legacy-layout`."""
    return await LegacySessionScanner(store, layout, _MAX_PROBE_LISTINGS).sessions()
