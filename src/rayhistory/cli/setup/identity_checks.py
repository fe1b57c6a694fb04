"""Checks of `rayhistory doctor --as ROLE`: the credentials must have exactly the permissions of that role.

- A collector creates objects of its own namespace, and deletes nothing.
- The server reads all objects. It writes and deletes only data that it derives: indexes, products, the run table and
  notifications.
- Only retention deletes sessions.

The policies in `deploy/policies` grant exactly these permissions.
"""

from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from enum import StrEnum

import msgspec

from rayhistory.cli.setup.check_result import CheckResult
from rayhistory.errors import ObjectNotFound, StoreDenied, StoreError
from rayhistory.sessions import Layout, SessionRef
from rayhistory.storage import PART_BYTES, Store
from rayhistory.storage.permissions import Permissions

_PROBE = "doctor"
_OTHER_NAMESPACE = "doctor-other-namespace"
_OWNER_KINDS = ("rayjob", "rayservice")


class Identity(StrEnum):
    COLLECTOR = "collector"
    SERVER = "server"
    RETENTION = "retention"


class Grant(msgspec.Struct, frozen=True):
    """The operations that a role may do below a prefix."""

    prefix: str
    read: bool = True
    write: bool = False
    delete: bool = False


def grants_of(identity: Identity, layout: Layout, namespace: str) -> list[Grant]:
    """Return one prefix for every rule of the role's policy, with the granted operations."""
    own, other = (SessionRef(name, _PROBE, _PROBE) for name in (namespace, _OTHER_NAMESPACE))
    if identity is Identity.COLLECTOR:
        return _collector_grants(layout, own, other)
    derived = [Grant(prefix, write=True, delete=True) for prefix in (layout.index_prefix(own), layout.runs_prefix())]
    if identity is Identity.SERVER:
        return [
            *derived,
            Grant(layout.notifications_prefix(), write=True, delete=True),
            *(Grant(prefix) for prefix in (layout.history_prefix(own), *_own_trees(layout, own))),
        ]
    return [
        Grant(layout.scratch_prefix(), write=True, delete=True),
        Grant(layout.tombstones_prefix(), write=True, delete=True),
        Grant(layout.packs_prefix(own), write=True, delete=True),
        Grant(layout.history_prefix(own), delete=True),
        *derived,
    ]


def _collector_grants(layout: Layout, own: SessionRef, other: SessionRef) -> list[Grant]:
    """Return the prefixes that a collector may write, and some that it must not read or write.

    The latter belong to another namespace, or to indexes. Only a policy that is too wide includes them.
    """
    owners = [SessionRef(*own.identity, kind, _PROBE) for kind in _OWNER_KINDS]
    written = [
        *(prefix for ref in (own, *owners) for prefix in (layout.history_prefix(ref), layout.metadata_key(ref))),
        *_own_trees(layout, own),
    ]
    return [
        *(Grant(prefix, write=True) for prefix in written),
        Grant(layout.packs_prefix(other), read=False),
        Grant(layout.index_prefix(own), read=False),
        Grant(f"{layout.history_prefix(other)}/{_PROBE}/{own.namespace}", read=False),
        Grant(f"{layout.metadata_key(other)}/{own.namespace}_{_PROBE}", read=False),
    ]


def _own_trees(layout: Layout, ref: SessionRef) -> list[str]:
    return [
        layout.packs_prefix(ref),
        layout.node_seals_prefix(ref),
        layout.dashboard_responses_prefix(ref),
        layout.metrics_prefix(ref),
    ]


async def identity_checks(store: Store, grants: list[Grant], permissions: Permissions) -> AsyncIterator[CheckResult]:
    """Try each operation below each prefix, and compare with the grants. Test objects have fixed names.

    The first object is large enough to be uploaded in parts, because some stores need a separate permission for this.
    The second object replaces it.
    """
    prefix = next(grant.prefix for grant in grants if grant.write)
    in_parts = store.put(f"{prefix}/{_PROBE}", bytes(PART_BYTES + 1))
    yield await _check(f"write in parts below {prefix}/", True, permissions.write, in_parts)
    for grant in grants:
        key = f"{grant.prefix}/{_PROBE}"
        for operation, granted, permission, attempt in (
            ("write", grant.write, permissions.write, store.put(key, b"doctor")),
            ("read", grant.read, permissions.read, _read(store, key)),
            ("list", grant.read, permissions.list, store.list_folder(grant.prefix)),
            ("delete", grant.delete, permissions.delete, store.delete(key)),
        ):
            implied = operation == "delete" and grant.write and permissions.overwriting_needs_delete
            yield await _check(f"{operation} below {grant.prefix}/", granted or implied, permission, attempt)
        if grant.write and not grant.delete:
            continue  # the next check overwrites the object
        with suppress(StoreError):
            await store.delete(key)


async def _read(store: Store, key: str) -> None:
    with suppress(ObjectNotFound):
        await store.get_range(key, 0, 1)


async def _check(operation: str, granted: bool, permission: str, attempt: Awaitable[object]) -> CheckResult:
    try:
        await attempt
    except StoreDenied as error:
        if not granted:
            return CheckResult(True, f"store: may not {operation}")
        return CheckResult(False, f"store: {operation}: {error}", f"It needs {permission} there.")
    except StoreError as error:
        return CheckResult(False, f"store: {operation}: {error}", "Check that the store is reachable.")
    if granted:
        return CheckResult(True, f"store: {operation}")
    hint = "It should not have this permission: use the policies in deploy/policies."
    return CheckResult(False, f"store: may {operation}", hint, required=False)
