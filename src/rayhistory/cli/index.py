"""`rayhistory index`: index sessions now, so that they open faster."""

import argparse
import asyncio
import dataclasses
from typing import TYPE_CHECKING

from rayhistory.cli.progress import BacklogProgress
from rayhistory.cli.session_args import add_session_names_argument, is_selected, select_sessions
from rayhistory.cli.session_store import open_session_store
from rayhistory.errors import RayHistoryError
from rayhistory.index.manifest import Manifest
from rayhistory.index.service.ahead_indexer import AheadIndexer
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.server.products import PRODUCTS
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.settings import Settings
from rayhistory.sizes import format_size
from rayhistory.web.format import plural

if TYPE_CHECKING:
    from rayhistory.index.service.ray_engine import RayEngine

_MIN_CONCURRENT_SESSIONS = 16
_SESSIONS_PER_WORKER = 2
"""Sessions in progress per worker: while one is being indexed, the objects of the next one are being listed."""
_PROGRESS_INTERVAL_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_names_argument(parser, required=False)
    parser.add_argument("--watch", action="store_true", help="keep running, and index sessions as they grow and end")
    parser.add_argument(
        "--missing", action="store_true",
        help="build only what is missing: tables, and products such as the diagnosis and the search index",
    )  # fmt: skip
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local",
        help="index on this machine or on a Ray cluster (default: local)",
    )  # fmt: skip
    parser.add_argument(
        "--address", default="", metavar="ADDRESS", help="with --engine=ray: address of the cluster (default: auto)"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.engine != "ray":
        return asyncio.run(_index(settings, arguments))
    from rayhistory.index.service.ray_engine import RayEngine  # noqa: PLC0415 - Ray is optional

    engine = RayEngine(arguments.address)
    try:
        return asyncio.run(_index(dataclasses.replace(settings, index_workers=engine.cpus), arguments, engine))
    finally:
        engine.close()


async def _index(settings: Settings, arguments: argparse.Namespace, engine: "RayEngine | None" = None) -> int:
    names: list[str] = arguments.sessions
    async with open_session_store(settings) as (store, layout, catalog):
        products = engine.products if engine else None
        builder = IndexBuilder(settings, store, layout, engine, PRODUCTS, product_engine=products)
        indexer = AheadIndexer(catalog, builder, lambda entry: is_selected(entry, names))
        limit = asyncio.Semaphore(max(_MIN_CONCURRENT_SESSIONS, _SESSIONS_PER_WORKER * settings.index_workers))

        async def index_one(entry: CatalogEntry) -> bool:
            async with limit:
                lacks = not arguments.missing or await _lacks_something(indexer, builder, entry)
                succeeded = not lacks or await _index_one(indexer, builder, entry)
            progress.add(succeeded=succeeded)
            return succeeded

        try:
            entries = select_sessions(await catalog.entries(), names)
            progress = BacklogProgress(len(entries), builder.running)
            async with progress.shown(_PROGRESS_INTERVAL_S):
                results = await asyncio.gather(*map(index_one, entries))
            if arguments.watch:
                print(f"watching {', '.join(names) or 'the store'}; press Ctrl-C to stop", flush=True)
                await indexer.run()
        finally:
            await builder.close()
    return 0 if all(results) else 1


async def _lacks_something(indexer: AheadIndexer, builder: IndexBuilder, entry: CatalogEntry) -> bool:
    manifest = await indexer.existing(entry)
    return manifest is None or bool(await builder.products.missing(entry.ref, manifest))


async def _index_one(indexer: AheadIndexer, builder: IndexBuilder, entry: CatalogEntry) -> bool:
    manifest = await indexer.index(entry)
    if manifest is None:
        print(f"{entry.ref.path}  indexing failed", flush=True)
        return False
    size = format_size(manifest.size)
    counts = f"{plural(manifest.events, 'event')}, {plural(manifest.counts.tasks, 'task')}"
    built = f"index of {size}, indexed in {manifest.seconds:.1f} s"
    print(f"{entry.ref.path}  generation {manifest.generation}: {counts}, {built}", flush=True)
    return await _build_products(builder, entry, manifest)


async def _build_products(builder: IndexBuilder, entry: CatalogEntry, manifest: Manifest) -> bool:
    try:
        built = await builder.products.build(entry.ref, manifest)
    except RayHistoryError as error:
        print(f"{entry.ref.path}  {error}", flush=True)
        return False
    for product in built:
        size = format_size(product.size)
        print(f"{entry.ref.path}  {product.product}: {size}, built in {product.seconds:.1f} s", flush=True)
    return True
