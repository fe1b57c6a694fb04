"""Check the indexes of a store: damage, unused objects, and unfinished removals.

Only indexes, which can be rebuilt, are deleted or rebuilt. Events, logs and records of sessions are never touched.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable

import msgspec

from rayhistory.archive.removal import list_tombstones
from rayhistory.errors import ObjectNotFound
from rayhistory.index.index_objects import PromisedObject, product_objects, table_objects
from rayhistory.index.manifest import read_latest_manifest, used_generations
from rayhistory.index.products.product_manifest import used_product_manifests
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.keys import PRODUCTS_FOLDER
from rayhistory.sessions.ref import is_safe_component
from rayhistory.storage import ObjectInfo, Store

TABLES = "tables"
_MIN_AGE_S = 3600.0
"""Unused objects are reported only if they are older than this, because newer ones may belong to a running build."""
_BLOCK_BYTES = 8 << 20


class StoreProblem(msgspec.Struct, frozen=True):
    """One problem of one session."""

    code: str
    """The kind of problem, which decides what a repair does.

    `missing_file`, `wrong_size`, `wrong_checksum`: rebuilt. `unused`, `no_session`: deleted. `unfinished_removal`: left
    to retention.
    """
    ref: SessionRef
    what: str
    """The part of the index with the problem: `tables`, or the name of a product."""
    detail: str
    size: int = 0
    """Number of bytes that a repair frees."""
    keys: tuple[str, ...] = ()
    """Objects that a repair deletes."""

    @property
    def is_damage(self) -> bool:
        return self.code in {"missing_file", "wrong_size", "wrong_checksum"}


class StoreCheck:
    """Checks a store. `now` is the store's time. With `checksums`, all bytes that have a checksum are read."""

    def __init__(self, store: Store, layout: Layout, now: float, *, checksums: bool = False) -> None:
        self._store = store
        self._layout = layout
        self._now = now
        self._checksums = checksums

    async def session(self, ref: SessionRef) -> list[StoreProblem]:
        """Check the index of one session."""
        objects = {info.key: info async for info in self._store.list_all(self._layout.index_prefix(ref))}
        products = {product for key in objects if (product := self._product_of(ref, key))}
        problems = await self._tables(ref, objects)
        for product in sorted(products):
            problems += await self._product(ref, product, objects)
        return problems

    async def orphans(self, known: Iterable[SessionRef]) -> AsyncIterator[StoreProblem]:
        """Find indexes of sessions that do not exist, and unfinished removals."""
        removed = await list_tombstones(self._store, self._layout)
        for ref in removed:
            yield StoreProblem("unfinished_removal", ref, TABLES, "run `rayhistory retention` to finish its removal")
        existing = {ref.identity for ref in (*known, *removed)}
        async for ref in self._indexed():
            if ref.identity not in existing:
                infos = [info async for info in self._store.list_all(self._layout.index_prefix(ref))]
                if all(map(self._is_settled, infos)):
                    yield _unused("no_session", ref, TABLES, "the index of a session that does not exist", infos)

    async def _indexed(self) -> AsyncIterator[SessionRef]:
        """Yield all sessions that have an index."""
        prefix = self._layout.own_prefix() + "/index"
        for namespace in (await self._store.list_folder(prefix)).folders:
            for cluster in (await self._store.list_folder(f"{prefix}/{namespace}")).folders:
                for session in (await self._store.list_folder(f"{prefix}/{namespace}/{cluster}")).folders:
                    yield SessionRef(namespace, cluster, session)

    async def _tables(self, ref: SessionRef, objects: dict[str, ObjectInfo]) -> list[StoreProblem]:
        own = {key: info for key, info in objects.items() if self._product_of(ref, key) is None}
        latest = await read_latest_manifest(self._store, self._layout, ref)
        promised = table_objects(self._layout, ref, latest) if latest else {}
        damage = await self._damage(ref, TABLES, promised, objects)
        generations, folders = await used_generations(self._store, self._layout, ref)
        unused = [
            info
            for key, info in own.items()
            if key not in promised
            and self._layout.parse_manifest_key(key) not in generations
            and _folder(self._layout.index_prefix(ref), key) not in folders
            and self._is_settled(info)
        ]
        return damage + ([_unused("unused", ref, TABLES, "no manifest refers to them", unused)] if unused else [])

    async def _product(self, ref: SessionRef, product: str, objects: dict[str, ObjectInfo]) -> list[StoreProblem]:
        prefix = self._layout.product_prefix(ref, product)
        manifests = await used_product_manifests(self._store, self._layout, ref, product)
        if manifests is None:  # of a later release
            return []
        used: dict[str, PromisedObject] = {}
        damage: list[StoreProblem] = []
        for manifest in manifests:
            promised = product_objects(self._layout, ref, manifest)
            key = self._layout.product_manifest_key(ref, product, manifest.generation)
            found = await self._damage(ref, product, promised, objects)
            damage += [msgspec.structs.replace(problem, keys=(key,)) for problem in found]
            used |= promised | {key: PromisedObject(0)}
        unused = [
            info
            for key, info in objects.items()
            if key.startswith(prefix + "/") and key not in used and self._is_settled(info)
        ]
        return damage + ([_unused("unused", ref, product, "no manifest refers to them", unused)] if unused else [])

    async def _damage(
        self, ref: SessionRef, what: str, promised: dict[str, PromisedObject], objects: dict[str, ObjectInfo]
    ) -> list[StoreProblem]:
        """Compare the objects that a manifest lists with the objects in the store."""
        problems = []
        for key, expected in promised.items():
            info = objects.get(key)
            if info is None:
                problems.append(StoreProblem("missing_file", ref, what, key))
            elif info.size != expected.size:
                problems.append(StoreProblem("wrong_size", ref, what, f"{key}: {info.size} bytes, not {expected.size}"))
            elif self._checksums and expected.sha256 and await self._sha256(key, info.size) != expected.sha256:
                problems.append(StoreProblem("wrong_checksum", ref, what, key))
        return problems

    async def _sha256(self, key: str, size: int) -> str:
        digest = hashlib.sha256()
        try:
            for start in range(0, size, _BLOCK_BYTES):
                digest.update(await self._store.get_range(key, start, start + _BLOCK_BYTES))
        except ObjectNotFound:
            return "missing"
        return digest.hexdigest()

    def _is_settled(self, info: ObjectInfo) -> bool:
        return self._now - info.modified > _MIN_AGE_S

    def _product_of(self, ref: SessionRef, key: str) -> str | None:
        """Return the product that an object of an index belongs to; None for tables."""
        parts = key.removeprefix(self._layout.index_prefix(ref) + "/").split("/")
        return parts[1] if len(parts) > 2 and parts[0] == PRODUCTS_FOLDER and is_safe_component(parts[1]) else None


def _folder(prefix: str, key: str) -> str:
    return key.removeprefix(prefix + "/").partition("/")[0]


def _unused(code: str, ref: SessionRef, what: str, detail: str, infos: list[ObjectInfo]) -> StoreProblem:
    size = sum(info.size for info in infos)
    return StoreProblem(code, ref, what, f"{len(infos)} objects: {detail}", size, tuple(info.key for info in infos))
