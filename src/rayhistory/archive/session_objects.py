"""Everything in a store that belongs to one session, whichever releases wrote it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec

from rayhistory.layout import Layout, Owner, SessionRef
from rayhistory.storage import ObjectInfo, Store

T = TypeVar("T")
Identity = tuple[str, str, str]


class Trees(msgspec.Struct, frozen=True):
    """Where a session's objects are."""

    ref: SessionRef
    metadata: list[str]
    """KubeRay's keys that make the session exist."""
    records: list[str]
    """Prefixes of other things that do."""
    data: list[str]
    """Prefixes of all the rest."""


async def owners_of_all(store: Store, layout: Layout) -> dict[Identity, list[Owner]]:
    """By session, what created its cluster, as far as KubeRay's keys say that something did."""
    owners: dict[Identity, list[Owner]] = {}
    async for info in store.list_all(layout.metadata_prefix()):
        ref = layout.parse_metadata_key(info.key)
        if ref and ref.owner_kind and ref.owner_name:
            owners.setdefault(ref.identity, []).append(Owner(ref.owner_kind, ref.owner_name))
    return owners


async def trees(store: Store, layout: Layout, ref: SessionRef, owners: Iterable[Owner]) -> Trees:
    """With and without an owner, of KubeRay's layouts before and after v1.7, and in all our trees."""
    named = [SessionRef(*ref.identity), *(SessionRef(*ref.identity, owner.kind, owner.name) for owner in owners)]
    own = [tree for tree in (await store.list_folder(layout.own_prefix())).folders if layout.is_tree_of_sessions(tree)]
    records = [layout.own_tree_prefix("sessions", ref), layout.noted_prefix(*ref.identity)]
    prefixes = [
        *(layout.history_prefix(each) for each in named),
        layout.old_history_prefix(ref),
        *layout.old_endpoints_prefixes(ref)[1:],
        *(layout.own_tree_prefix(tree, ref) for tree in own),
    ]
    return Trees(
        ref=ref,
        metadata=[layout.old_metadata_key(ref), *(layout.metadata_key(each) for each in named)],
        records=records,
        data=[prefix for prefix in dict.fromkeys(prefixes) if prefix not in records],
    )


async def objects_below(store: Store, prefixes: Iterable[str]) -> list[ObjectInfo]:
    return [info for prefix in prefixes async for info in store.list_all(prefix)]


async def each(items: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int = 32) -> None:
    """Work on many things, some at a time; the first failure ends it."""
    waiting = iter(list(items))

    async def worker() -> None:
        for item in waiting:
            await work(item)

    workers = [asyncio.create_task(worker()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
