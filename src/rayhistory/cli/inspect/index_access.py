"""Indexes of sessions in the store, for commands that read tables without a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rayhistory.cli.session_args import select_session
from rayhistory.cli.session_store import open_session_store
from rayhistory.errors import SessionNotFound, UsageError
from rayhistory.index.query.open_index import OpenIndex
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.server.products import PRODUCTS
from rayhistory.server.resolve import SessionResolver
from rayhistory.sessions import SessionRef
from rayhistory.settings import Settings

INDEX_TIMEOUT_S = 24 * 3600.0

IndexedSession = tuple[SessionRef, OpenIndex]


@asynccontextmanager
async def open_resolver(settings: Settings) -> AsyncIterator[SessionResolver]:
    async with open_session_store(settings) as (store, layout, catalog):
        builder = IndexBuilder(settings, store, layout, products=PRODUCTS)
        try:
            yield SessionResolver(catalog, builder, store, layout)
        finally:
            await builder.close()


async def open_index(resolver: SessionResolver, name: str) -> IndexedSession:
    """Open the index of the named session, or of the newest one. Build it if necessary."""
    try:
        view = await resolver.view(await select_session(resolver.catalog, name), INDEX_TIMEOUT_S)
    except SessionNotFound as error:
        raise UsageError(str(error)) from None
    return view.ref, view.index
