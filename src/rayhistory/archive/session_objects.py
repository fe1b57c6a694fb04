"""The keys and prefixes of one session, in every layout that it may be stored in."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec

from rayhistory.errors import InvalidKeyInStore
from rayhistory.sessions import Layout, Owner, SessionRef
from rayhistory.storage import ObjectInfo, Store
from rayhistory.storage.parallel_listing import list_around_invalid_keys

T = TypeVar("T")
SessionIdentity = tuple[str, str, str]


class SessionPrefixes(msgspec.Struct, frozen=True):
    """Keys and prefixes of all objects of a session."""

    ref: SessionRef
    metadata: list[str]
    """KubeRay's metadata keys. They and the records make a session visible."""
    records: list[str]
    """Prefixes of the session's records."""
    data: list[str]
    """Prefixes of all objects except metadata and records."""


async def list_owners(store: Store, layout: Layout) -> dict[SessionIdentity, list[Owner]]:
    """Return the owners of all sessions, as KubeRay's metadata keys name them."""
    owners: dict[SessionIdentity, list[Owner]] = {}
    try:
        infos = [info async for info in store.list_all(layout.metadata_prefix())]
    except InvalidKeyInStore:
        infos = (await list_around_invalid_keys(store, layout.metadata_prefix())).objects
    for info in infos:
        ref = layout.parse_metadata_key(info.key)
        if ref and ref.owner_kind and ref.owner_name:
            owners.setdefault(ref.identity, []).append(Owner(ref.owner_kind, ref.owner_name))
    return owners


async def session_prefixes(store: Store, layout: Layout, ref: SessionRef, owners: Iterable[Owner]) -> SessionPrefixes:
    """Return all prefixes of a session.

    They are those of KubeRay v1.6 and v1.7, with and without owners, and those below `ray-history/`.
    """
    refs = [SessionRef(*ref.identity), *(SessionRef(*ref.identity, owner.kind, owner.name) for owner in owners)]
    folders = (await store.list_folder(layout.own_prefix())).folders
    own_trees = [tree for tree in folders if layout.is_tree_of_sessions(tree)]
    records = [layout.records_prefix(ref), layout.legacy_prefix(*ref.identity)]
    prefixes = [
        *map(layout.history_prefix, refs),
        layout.v1_6_history_prefix(ref),
        *layout.v1_6_endpoints_prefixes(ref)[1:],
        *(layout.own_tree_prefix(tree, ref) for tree in own_trees),
    ]
    return SessionPrefixes(
        ref=ref,
        metadata=[layout.v1_6_metadata_key(ref), *map(layout.metadata_key, refs)],
        records=records,
        data=[prefix for prefix in dict.fromkeys(prefixes) if prefix not in records],
    )


async def list_objects(store: Store, prefixes: Iterable[str]) -> list[ObjectInfo]:
    return [info for prefix in prefixes async for info in store.list_all(prefix)]


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], concurrency: int = 32) -> None:
    """Await `work` for each item, at most `concurrency` at a time. The first failure cancels the rest."""
    remaining = iter(list(items))

    async def worker() -> None:
        for item in remaining:
            await work(item)

    workers = [asyncio.create_task(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
