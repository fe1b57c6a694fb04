"""`rayhistory index`: index sessions now, so that they open at once later."""

import argparse
import asyncio
import dataclasses

from rayhistory.cli.session_args import add_session_names_argument, is_selected, select_sessions
from rayhistory.cli.session_store import open_session_store
from rayhistory.index.service.ahead_indexer import AheadIndexer
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.index.service.fold_engine import FoldEngine
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_names_argument(parser, required=False)
    parser.add_argument("--watch", action="store_true", help="continue as sessions grow and end")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local",
        help="index on this machine or on a Ray cluster (default: local)",
    )  # fmt: skip
    parser.add_argument(
        "--address", default="", metavar="ADDRESS", help="with --engine=ray: address of the cluster (default: auto)"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.engine != "ray":
        return asyncio.run(_index(settings, arguments.sessions, watch=arguments.watch))
    from rayhistory.index.service.ray_engine import RayEngine  # noqa: PLC0415 - Ray is optional

    engine = RayEngine(arguments.address)
    try:
        settings = dataclasses.replace(settings, index_workers=engine.cpus)
        return asyncio.run(_index(settings, arguments.sessions, watch=arguments.watch, engine=engine))
    finally:
        engine.close()


async def _index(settings: Settings, names: list[str], *, watch: bool, engine: FoldEngine | None = None) -> int:
    async with open_session_store(settings) as (store, layout, catalog):
        builder = IndexBuilder(settings, store, layout, engine)
        indexer = AheadIndexer(catalog, builder, lambda entry: is_selected(entry, names))
        try:
            entries = select_sessions(await catalog.entries(), names)
            results = await asyncio.gather(*(_index_one(indexer, entry) for entry in entries))
            if watch:
                print(f"watching {', '.join(names) or 'the store'}; press Ctrl-C to stop", flush=True)
                await indexer.run()
        finally:
            await builder.close()
    return 0 if all(results) else 1


async def _index_one(indexer: AheadIndexer, entry: CatalogEntry) -> bool:
    manifest = await indexer.index(entry)
    if manifest is None:
        print(f"{entry.ref.path}  indexing failed", flush=True)
        return False
    counts = f"{manifest.events:,} events, {manifest.counts.tasks:,} tasks, {manifest.size / 1e6:.1f} MB"
    print(
        f"{entry.ref.path}  generation {manifest.generation}: {counts}, indexed in {manifest.seconds:.1f} s", flush=True
    )
    return True
