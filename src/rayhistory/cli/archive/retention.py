"""`rayhistory retention`: remove old sessions."""

import argparse
import asyncio
from pathlib import Path

from rayhistory.archive.removal import list_tombstones, remove_session
from rayhistory.archive.retention import RetentionCandidate, RetentionDecision, RetentionPolicy, decide
from rayhistory.archive.retention_scan import RetentionScan
from rayhistory.archive.session_objects import for_each, list_owners
from rayhistory.archive.store_time import read_store_time
from rayhistory.cli.arguments import parse_retention_age, value_type
from rayhistory.cli.session_store import SessionStore, open_session_store
from rayhistory.errors import StoreError, UsageError
from rayhistory.names import parse_dns_name
from rayhistory.runs.run_compaction import RunCompactor
from rayhistory.runs.run_table import RunTable
from rayhistory.sessions import SessionRef, Tombstone
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import Settings, parse_positive, parse_size
from rayhistory.sizes import format_size
from rayhistory.web.format import plural

_CONCURRENT_REMOVALS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-age", type=value_type(parse_retention_age), metavar="AGE",
        help="remove sessions that ended longer ago than this, such as 30d, 2w or 12h",
    )  # fmt: skip
    parser.add_argument(
        "--failed-max-age", type=value_type(parse_retention_age), metavar="AGE",
        help="maximum age of sessions that failed or are not indexed (default: twice --max-age)",
    )  # fmt: skip
    parser.add_argument(
        "--max-sessions", type=value_type(parse_positive), metavar="N",
        help="keep at most N sessions; remove the oldest first, failed ones last",
    )  # fmt: skip
    parser.add_argument(
        "--max-bytes", type=value_type(_parse_size_limit), metavar="SIZE",
        help="keep at most this size in total, such as 500G; remove the oldest first, failed ones last",
    )  # fmt: skip
    parser.add_argument(
        "--namespace", type=value_type(parse_dns_name), metavar="NAME", help="only sessions of this namespace"
    )
    parser.add_argument("--yes", action="store_true", help="remove the sessions (default: only list them)")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    limits = (arguments.max_age, arguments.failed_max_age, arguments.max_sessions, arguments.max_bytes)
    if all(limit is None for limit in limits):
        raise UsageError("set a limit: --max-age, --failed-max-age, --max-sessions or --max-bytes")
    failed_max_age = arguments.failed_max_age
    if failed_max_age is None and arguments.max_age is not None:
        failed_max_age = 2 * arguments.max_age
    max_bytes, max_bytes_text = arguments.max_bytes or (None, "")
    policy = RetentionPolicy(
        max_age=arguments.max_age,
        failed_max_age=failed_max_age,
        max_sessions=arguments.max_sessions,
        max_bytes=max_bytes,
        max_bytes_text=max_bytes_text,
        namespace=arguments.namespace,
    )
    return asyncio.run(_run(settings, policy, dry_run=not arguments.yes))


async def _run(settings: Settings, policy: RetentionPolicy, *, dry_run: bool) -> int:
    async with open_session_store(settings) as opened:
        store, layout, catalog = opened
        owners = await list_owners(store, layout)
        unfinished = [r for r in await list_tombstones(store, layout) if policy.namespace in (None, r.namespace)]
        now = await read_store_time(store, layout)
        scan = RetentionScan(store, layout, catalog, settings.vanished_after, now)
        candidates, session_count = await scan.candidates(policy, owners)
        decisions = decide(candidates, policy, now)
        _print_decisions(decisions, unfinished, session_count, dry_run=dry_run)
        if dry_run:
            return 0
        reasons = dict.fromkeys(unfinished, "removal started by an earlier run")
        reasons |= {decision.candidate.ref: decision.reason for decision in decisions if decision.remove}
        results: list[bool] = []

        async def remove(ref: SessionRef) -> None:
            tombstone = Tombstone(int(now * 1000), reasons[ref], owners.get(ref.identity, []))
            results.append(await _remove(opened, ref, tombstone, settings.vanished_after, now))

        await for_each(reasons, remove, _CONCURRENT_REMOVALS)
        if reasons and not settings.keep_runs:
            await _drop_runs(opened, settings, {ref.identity for ref in reasons})
    return 0 if all(results) else 1


async def _drop_runs(opened: SessionStore, settings: Settings, removed: set[tuple[str, str, str]]) -> None:
    """Remove the rows of removed sessions from the run table. If this fails, servers do it later."""
    catalog = SessionCatalog.from_settings(opened.store, opened.layout, settings)  # without what was listed before
    existing = {entry.ref.identity for entry in await catalog.entries()}
    table = RunTable(opened.store, opened.layout, Path(settings.cache_dir))
    try:
        await RunCompactor(table).compact(removed - existing)
    except StoreError as error:
        print(f"the run table still lists runs of removed sessions, servers remove them later: {error}", flush=True)


async def _remove(
    opened: SessionStore, ref: SessionRef, tombstone: Tombstone, vanished_after: float, now: float
) -> bool:
    try:
        kept = await remove_session(opened.store, opened.layout, ref, tombstone, vanished_after=vanished_after, now=now)
    except StoreError as error:
        print(f"{ref.path}  not removed, the next run retries: {error}", flush=True)
        return False
    print(f"{ref.path}  {f'kept: {kept}' if kept else 'removed'}", flush=True)
    return True


def _print_decisions(
    decisions: list[RetentionDecision], unfinished: list[SessionRef], session_count: int, *, dry_run: bool
) -> None:
    verb = "would remove" if dry_run else "removing"
    for ref in unfinished:
        print(f"{ref.path}  {verb}: removal started by an earlier run")
    for decision in decisions:
        if decision.remove:
            print(f"{decision.candidate.ref.path}  {verb}, {_sizes(decision.candidate)}: {decision.reason}")
        elif decision.reason:
            print(f"{decision.candidate.ref.path}  keep: {decision.reason}")
    removed = [decision.candidate for decision in decisions if decision.remove]
    size = format_size(sum(candidate.size for candidate in removed))
    print(f"{verb} {len(removed)} of {plural(session_count, 'session')}, {size}", flush=True)
    if dry_run and (removed or unfinished):
        print("Nothing was removed: add --yes to remove these sessions.")


def _sizes(candidate: RetentionCandidate) -> str:
    """Return the sizes of a session and its index, as lists of sessions show them, and of what is not listed there."""
    stored = format_size(candidate.size - candidate.index_size - candidate.derived_size)
    index = f" and an index of {format_size(candidate.index_size)}" if candidate.index_size else ""
    derived = (
        f", {format_size(candidate.derived_size)} of other data that can be rebuilt" if candidate.derived_size else ""
    )
    return f"{stored}{index}{derived}"


def _parse_size_limit(text: str) -> tuple[int, str]:
    return parse_size(text), text
