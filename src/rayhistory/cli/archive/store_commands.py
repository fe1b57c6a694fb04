"""`rayhistory store`: check and repair indexes, and compact logs."""

import argparse
import asyncio
from collections.abc import Sequence

from rayhistory.archive.session_objects import for_each
from rayhistory.archive.store_check import TABLES, StoreCheck, StoreProblem
from rayhistory.archive.store_time import read_store_time
from rayhistory.cli.actions import Actions, run_action
from rayhistory.cli.arguments import INDEX_SETTINGS, value_type
from rayhistory.cli.inspect.index_access import INDEX_TIMEOUT_S
from rayhistory.cli.session_args import add_session_names_argument, select_sessions
from rayhistory.cli.session_store import SessionStore, open_session_store
from rayhistory.errors import RayHistoryError
from rayhistory.index.overlay import index_store
from rayhistory.index.service.builder import IndexBuilder
from rayhistory.logs.session_pack_compaction import compact_session
from rayhistory.server.products import PRODUCTS
from rayhistory.sessions.catalog import CatalogEntry
from rayhistory.settings import Settings, parse_positive
from rayhistory.sizes import format_size
from rayhistory.storage.bulk_delete import delete_keys
from rayhistory.web.format import plural

_CONCURRENT_SESSIONS = 8
_CONCURRENT_COMPACTIONS = 2
_MIN_PACKS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = Actions(parser, "store", INDEX_SETTINGS)
    check = actions.add("check", _check, "check that indexes are complete, and find unused files")
    add_session_names_argument(check, required=False)
    check.add_argument("--checksums", action="store_true", help="also compare all checksums")
    check.add_argument("--repair", action="store_true", help="rebuild damaged files, and delete unused ones")

    compact = actions.add("compact", _compact, "combine old log packs into few large objects")
    add_session_names_argument(compact, required=False)
    compact.add_argument(
        "--min-packs", type=value_type(parse_positive), default=_MIN_PACKS, metavar="N",
        help=f"skip nodes with fewer old packs (default: {_MIN_PACKS})",
    )  # fmt: skip


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    return run_action(arguments, settings)


def _check(arguments: argparse.Namespace, settings: Settings) -> int:
    return asyncio.run(_check_store(arguments, settings))


async def _check_store(arguments: argparse.Namespace, settings: Settings) -> int:
    async with open_session_store(settings) as opened:
        entries = await opened.catalog.entries()
        chosen = select_sessions(entries, arguments.sessions)
        indexes = index_store(opened.store, settings)
        now = await read_store_time(opened.store, opened.layout)
        check = StoreCheck(indexes, opened.layout, now, checksums=arguments.checksums)
        repair = _Repair(settings, opened) if arguments.repair else None
        tally = _Tally()

        async def check_one(entry: CatalogEntry) -> None:
            problems = await check.session(entry.ref)
            tally.add(problems, repaired=await repair.session(entry, problems) if repair else False)

        try:
            await for_each(chosen, check_one, _CONCURRENT_SESSIONS)
            if not arguments.sessions:
                async for problem in check.orphans(entry.ref for entry in entries):
                    tally.add([problem], repaired=await repair.delete(problem) if repair else False)
        finally:
            if repair:
                await repair.close()
    print(f"{plural(len(chosen), 'session')} checked: {tally.summary(repaired=arguments.repair)}", flush=True)
    return 1 if tally.damaged else 0


def _compact(arguments: argparse.Namespace, settings: Settings) -> int:
    return asyncio.run(_compact_store(arguments, settings))


async def _compact_store(arguments: argparse.Namespace, settings: Settings) -> int:
    failed = 0
    async with open_session_store(settings) as (store, layout, catalog):

        async def compact(entry: CatalogEntry) -> None:
            nonlocal failed
            try:
                done = await compact_session(store, layout, entry.ref, min_packs=arguments.min_packs)
            except (RayHistoryError, OSError) as error:  # such as a full disk for temporary files
                print(f"{entry.ref.path}  not compacted: {error}", flush=True)
                failed += 1
                return
            if done.packs:
                moved = f"{plural(done.packs, 'pack')} moved into {plural(done.objects, 'object')}"
                print(f"{entry.ref.path}  {moved}, {format_size(done.copied_bytes)}", flush=True)

        chosen = select_sessions(await catalog.entries(), arguments.sessions)
        await for_each(chosen, compact, _CONCURRENT_COMPACTIONS)
    print(f"{plural(len(chosen), 'session')} compacted", flush=True)
    return 1 if failed else 0


class _Tally:
    """Prints problems, and counts those that are not repaired."""

    def __init__(self) -> None:
        self.damaged = 0
        self._repaired = 0
        self._free_bytes = 0

    def add(self, problems: Sequence[StoreProblem], *, repaired: bool) -> None:
        for problem in problems:
            size = f", {format_size(problem.size)}" if problem.size else ""
            print(f"{problem.ref.path}  {problem.what}  {problem.code}: {problem.detail}{size}", flush=True)
            self._free_bytes += problem.size
            self._repaired += problem.is_damage and repaired
            self.damaged += problem.is_damage and not repaired

    def summary(self, *, repaired: bool) -> str:
        freed = f"{format_size(self._free_bytes)} {'freed' if repaired else 'could be freed with --repair'}"
        return f"{plural(self.damaged, 'damaged file')}, {self._repaired} repaired, {freed}"


class _Repair:
    """Rebuilds damaged files of indexes, and deletes unused ones."""

    def __init__(self, settings: Settings, opened: SessionStore) -> None:
        self._opened = opened
        self._store = index_store(opened.store, settings)
        self._builder = IndexBuilder(settings, opened.store, opened.layout, products=PRODUCTS)

    async def session(self, entry: CatalogEntry, problems: Sequence[StoreProblem]) -> bool:
        """Repair a session. Print the reason and return False on failure."""
        try:
            for problem in problems:
                await self.delete(problem)
            damaged = {problem.what for problem in problems if problem.is_damage}
            if damaged:
                await self._rebuild(entry, damaged)
        except RayHistoryError as error:
            print(f"{entry.ref.path}  not repaired: {error}", flush=True)
            return False
        return True

    async def delete(self, problem: StoreProblem) -> bool:
        """Delete the objects of a store problem. For a damaged product, delete only its manifest."""
        await delete_keys(self._store, problem.keys)
        return True

    async def close(self) -> None:
        await self._builder.close()

    async def _rebuild(self, entry: CatalogEntry, damaged: set[str]) -> None:
        closing = await self._opened.catalog.closing(entry)
        index = await self._builder.open(entry.ref, closing, INDEX_TIMEOUT_S, rebuild=TABLES in damaged)
        await self._builder.products.build(entry.ref, index.manifest)
