"""`rayhistory retention`, `pin` and `unpin`: which sessions are kept, and for how long."""

import argparse
import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rayhistory.cli.choice import chosen
from rayhistory.errors import StoreError, UsageError
from rayhistory.keeping import pins
from rayhistory.keeping.objects import owners_of_all
from rayhistory.keeping.removal import remove, tombstones
from rayhistory.keeping.retention import DAY, Rules, Verdict, decide, shown_size
from rayhistory.keeping.survey import Survey
from rayhistory.layout import Layout, SessionRef, Tombstone
from rayhistory.server.catalogue import Catalogue
from rayhistory.settings import Parser, Settings, parse_duration, parse_name, parse_positive, parse_size
from rayhistory.storage import Store, open_store

T = TypeVar("T")
Mark = Callable[[Store, Layout, SessionRef], Awaitable[None]]


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--max-age", type=read_as(parse_age), metavar="AGE", help="remove sessions that ended longer ago: 30d, 2w, 12h"
    )
    parser.add_argument(
        "--failed-max-age",
        type=read_as(parse_age),
        metavar="AGE",
        help="the same of sessions that failed, or may have (default: twice --max-age)",
    )
    parser.add_argument(
        "--max-sessions",
        type=read_as(parse_positive),
        metavar="N",
        help="keep so many sessions: the oldest go first, failed ones last",
    )
    parser.add_argument(
        "--max-bytes",
        type=read_as(parse_size),
        metavar="SIZE",
        help="keep so much, as 500G: the oldest go first, failed ones last",
    )
    parser.add_argument("--namespace", type=read_as(parse_name), metavar="NS", help="only sessions of this namespace")
    parser.add_argument("--yes", action="store_true", help="remove them: without it, only what would go is shown")


def parse_age(text: str) -> float:
    """Seconds; besides Go's units there are days and weeks."""
    if match := re.fullmatch(r"(\d+)([dw])", text):
        return int(match[1]) * DAY * (7 if match[2] == "w" else 1)
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError("use an age such as 30d, 2w or 12h") from None


def read_as(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The type of a flag whose value cannot always be read."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return read


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    limits = (arguments.max_age, arguments.failed_max_age, arguments.max_sessions, arguments.max_bytes)
    if all(limit is None for limit in limits):
        raise UsageError("say what to keep: --max-age, --failed-max-age, --max-sessions or --max-bytes")
    failed = arguments.failed_max_age
    if failed is None and arguments.max_age is not None:
        failed = 2 * arguments.max_age
    rules = Rules(arguments.max_age, failed, arguments.max_sessions, arguments.max_bytes, arguments.namespace)
    return asyncio.run(_retention(settings, rules, really=arguments.yes))


async def _retention(settings: Settings, rules: Rules, *, really: bool) -> int:
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    try:
        owners = await owners_of_all(store, layout)
        begun = [r for r in await tombstones(store, layout) if rules.namespace in (None, r.namespace)]
        survey = Survey(store, layout, Catalogue(store, layout, settings.vanished_after), settings.vanished_after)
        facts, number = await survey.facts(rules, owners)
        verdicts = decide(facts, rules, time.time())
        _show(verdicts, begun, number, really=really)
        if not really:
            return 0
        going = dict.fromkeys(begun, "begun by an earlier run")
        going |= {verdict.facts.ref: verdict.why for verdict in verdicts if verdict.goes}
        now, results = int(time.time() * 1000), []
        for ref, why in going.items():
            tombstone = Tombstone(now, why, owners.get(ref.identity, []))
            results.append(await _remove(store, layout, ref, tombstone, settings.vanished_after))
    finally:
        await store.close()
    return 0 if all(results) else 1


async def _remove(store: Store, layout: Layout, ref: SessionRef, tombstone: Tombstone, vanished_after: float) -> bool:
    try:
        stays = await remove(store, layout, ref, tombstone, vanished_after=vanished_after)
    except StoreError as error:
        print(f"{ref.path}  could not be removed, and goes with the next run: {error}", flush=True)
        return False
    print(f"{ref.path}  {f'stays: {stays}' if stays else 'removed'}", flush=True)
    return True


def _show(verdicts: list[Verdict], begun: list[SessionRef], number: int, *, really: bool) -> None:
    goes = "goes" if really else "would go"
    for ref in begun:
        print(f"{ref.path}  {goes}: an earlier run has begun to remove it")
    for verdict in verdicts:
        if verdict.goes:
            print(f"{verdict.facts.ref.path}  {goes}, {shown_size(verdict.facts.size)}: {verdict.why}")
        elif verdict.why:
            print(f"{verdict.facts.ref.path}  stays: {verdict.why}")
    going = [verdict.facts for verdict in verdicts if verdict.goes]
    size = shown_size(sum(facts.size for facts in going))
    print(f"{len(going)} of {number} sessions {'go' if really else 'would go'}, {size}.", flush=True)
    if not really and (going or begun):
        print("Nothing was removed: add --yes to do it.")


def pin(arguments: argparse.Namespace, settings: Settings) -> int:
    return asyncio.run(_mark(settings, arguments.sessions, pins.pin, "pinned"))


def unpin(arguments: argparse.Namespace, settings: Settings) -> int:
    return asyncio.run(_mark(settings, arguments.sessions, pins.unpin, "no longer pinned"))


async def _mark(
    settings: Settings, names: list[str], work: Callable[[Store, Layout, SessionRef], Awaitable[None]], done: str
) -> int:
    store, layout = open_store(settings), Layout(settings.storage_root_dir)
    try:
        for entry in chosen(await Catalogue(store, layout, settings.vanished_after).entries(), names):
            await work(store, layout, entry.ref)
            print(f"{entry.ref.path}  {done}")
    finally:
        await store.close()
    return 0
