"""`rayhistory index`: folds sessions now, so that opening them later costs nothing."""

import argparse
import asyncio
import dataclasses

from rayhistory.cli.choice import chosen, is_meant
from rayhistory.index.builder import IndexBuilder
from rayhistory.index.engine import Engine
from rayhistory.layout import Layout
from rayhistory.server.catalogue import Catalogue, Entry
from rayhistory.server.indexer import Indexer
from rayhistory.settings import Settings
from rayhistory.storage import open_store


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.engine != "ray":
        return asyncio.run(_index(settings, arguments.sessions, watch=arguments.watch))
    from rayhistory.index.rayengine import RayEngine  # noqa: PLC0415 - only then is Ray needed

    engine = RayEngine(arguments.address)
    try:
        wide = dataclasses.replace(settings, folds=engine.width)
        return asyncio.run(_index(wide, arguments.sessions, watch=arguments.watch, engine=engine))
    finally:
        engine.close()


async def _index(settings: Settings, names: list[str], *, watch: bool, engine: Engine | None = None) -> int:
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    catalogue = Catalogue(store, layout, settings.vanished_after)
    builder = IndexBuilder(settings, store, layout, engine)
    indexer = Indexer(catalogue, builder, lambda entry: is_meant(entry, names))
    try:
        entries = chosen(await catalogue.entries(), names)
        results = await asyncio.gather(*(_index_one(indexer, entry) for entry in entries))
        if watch:
            print(f"watching {', '.join(names) or 'the store'}; press Ctrl-C to stop", flush=True)
            await indexer.run()
    finally:
        await builder.close()
        await store.close()
    return 0 if all(results) else 1


async def _index_one(indexer: Indexer, entry: Entry) -> bool:
    manifest = await indexer.index(entry)
    if manifest is None:
        print(f"{entry.ref.path}  could not be indexed", flush=True)
        return False
    size = manifest.size / 1e6
    counts = f"{manifest.events:,} events, {manifest.counts.tasks:,} tasks, {size:.1f} MB"
    print(
        f"{entry.ref.path}  generation {manifest.generation}: {counts}, folded in {manifest.seconds:.1f} s", flush=True
    )
    return True
