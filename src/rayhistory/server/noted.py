"""Sessions in the shape of early field notes: `<namespace>/<cluster>/<session>/events.log`, without any list of them.

They are looked for in the folders of the bucket, which may be full of other things: seldom, and not in too many.
"""

import time

from rayhistory.layout import Layout, SessionRef
from rayhistory.layout.session import is_session_name
from rayhistory.storage import Store

_EVERY = 60.0
_MOST_FOLDERS = 100


class NotedSessions:
    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout
        self._looked = float("-inf")
        self._found: dict[SessionRef, bool] = {}
        """Whether what has a session's name is one: that is looked up once."""

    async def sessions(self) -> list[SessionRef]:
        if time.monotonic() - self._looked > _EVERY:
            known, self._found = self._found, {}
            for ref in await self._candidates():
                self._found[ref] = known.get(ref) or await self._is_session(ref)
            self._looked = time.monotonic()
        return [ref for ref, is_one in self._found.items() if is_one]

    async def _candidates(self) -> list[SessionRef]:
        found = []
        for namespace in await self._folders():
            for cluster in await self._folders(namespace):
                listing = await self._store.list_folder(self._layout.noted_prefix(namespace, cluster))
                found += [SessionRef(namespace, cluster, name) for name in listing.folders if is_session_name(name)]
        return found

    async def _folders(self, *names: str) -> list[str]:
        listing = await self._store.list_folder(self._layout.noted_prefix(*names))
        return [folder for folder in listing.folders if self._layout.is_noted_name(folder)][:_MOST_FOLDERS]

    async def _is_session(self, ref: SessionRef) -> bool:
        listing = await self._store.list_folder(self._layout.noted_prefix(*ref.identity))
        keys = {self._layout.noted_events_key(ref), self._layout.noted_metadata_key(ref)}
        return any(info.key in keys for info in listing.objects)
