"""The configured store and its session catalog, for commands."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from rayhistory.sessions import Layout
from rayhistory.sessions.catalog import CatalogEntry, SessionCatalog
from rayhistory.settings import Settings
from rayhistory.storage import Store, open_store


class SessionStore(NamedTuple):
    store: Store
    layout: Layout
    catalog: SessionCatalog


@asynccontextmanager
async def open_session_store(settings: Settings, *, writable: bool = False) -> AsyncIterator[SessionStore]:
    """Open the store. With `writable`, fail early if it cannot be written to."""
    store, layout = open_store(settings, writable=writable), Layout(settings.storage_root_dir)
    try:
        yield SessionStore(store, layout, SessionCatalog.from_settings(store, layout, settings))
    finally:
        await store.close()


async def list_sessions(settings: Settings) -> list[CatalogEntry]:
    async with open_session_store(settings) as opened:
        return await opened.catalog.entries()
