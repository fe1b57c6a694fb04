"""`rayhistory doctor`: checks of the store, Ray and ports, with hints for those that fail."""

import argparse
import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from rayhistory.cli.arguments import add_namespace_argument
from rayhistory.cli.local_ray.ray_head import find_ray, ray_version
from rayhistory.cli.setup.check_result import CheckResult
from rayhistory.cli.setup.env import DEFAULT_RAY_VERSION
from rayhistory.cli.setup.identity_checks import Identity, grants_of, identity_checks
from rayhistory.errors import BucketNotFound, ObjectExists, RayHistoryError, StoreError, UsageError
from rayhistory.ray_env import export_environment
from rayhistory.server import frontend
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.sessions.legacy_layout import probe_legacy_sessions
from rayhistory.settings import Settings
from rayhistory.storage import PART_BYTES, Store, open_store
from rayhistory.storage.permissions import Permissions, permissions_of

_COLLECTOR_PORT = 8084
_CORRECT_SETTING = "Correct this setting, or use another store. A collector creates a missing directory."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--as", dest="identity", choices=[each.value for each in Identity],
        help="check that the current credentials have exactly the permissions that this program needs",
    )  # fmt: skip
    add_namespace_argument(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.identity:
        results = asyncio.run(check_identity(settings, Identity(arguments.identity), arguments.namespace))
    else:
        results = asyncio.run(run_checks(settings))
    for result in results:
        label = "ok  " if result.passed else "FAIL" if result.required else "note"
        print(f"{label}  {result.text}")
        if not result.passed and result.hint:
            print(f"      {result.hint}")
    return 0 if all(result.passed or not result.required for result in results) else 1


async def run_checks(settings: Settings) -> list[CheckResult]:
    results = [result async for result in _store_checks(settings)]
    results += [result async for result in _ray_checks(settings)]
    results += [_port_check(settings.port, "historyserver"), _port_check(_COLLECTOR_PORT, "collector")]
    return results


async def check_identity(settings: Settings, identity: Identity, namespace: str) -> list[CheckResult]:
    """Check the credentials of one program. For a collector, check one namespace."""
    try:
        store = open_store(settings)
    except RayHistoryError as error:
        return [CheckResult(False, f"store: {error}", _CORRECT_SETTING)]
    if _is_missing_directory(settings):
        return [_missing_directory_note(store)]
    try:
        grants = grants_of(identity, Layout(settings.storage_root_dir), namespace)
        checks = identity_checks(store, grants, permissions_of(settings.storage_backend))
        return [CheckResult(True, f"store: {store.url}"), *[result async for result in checks]]
    finally:
        await store.close()


async def _store_checks(settings: Settings) -> AsyncIterator[CheckResult]:
    is_missing = _is_missing_directory(settings)
    try:
        store = open_store(settings, writable=not is_missing)  # a writable store creates its directory
    except RayHistoryError as error:
        yield CheckResult(False, f"store: {error}", _CORRECT_SETTING)
        return
    try:
        if is_missing:
            yield _missing_directory_note(store)
            return
        yield CheckResult(True, f"store: {store.url}")
        layout = Layout(settings.storage_root_dir)
        permissions = permissions_of(settings.storage_backend)
        try:
            entries = await SessionCatalog.from_settings(store, layout, settings).entries()
            yield CheckResult(True, f"store: list sessions ({len(entries)} found)")
            if not settings.read_legacy_layout and (legacy := await probe_legacy_sessions(store, layout)):
                yield _legacy_layout_note(legacy)
        except BucketNotFound as error:
            action = permissions.create_bucket
            hint = f"The collector creates it at its first write, if it has {action}." if action else "Create it."
            yield CheckResult(False, f"store: {error}", hint)
            return
        except StoreError as error:
            yield CheckResult(False, f"store: list sessions: {error}", f"Collector and server need {permissions.list}.")
        async for result in _object_checks(store, f"{layout.scratch_prefix()}/{secrets.token_hex(8)}", permissions):
            yield result
    finally:
        await store.close()


def _is_missing_directory(settings: Settings) -> bool:
    return settings.storage_backend == "local" and not Path(settings.local_storage_dir).exists()


def _missing_directory_note(store: Store) -> CheckResult:
    """Describe the default directory before its first use. Any other missing directory is an error."""
    hint = "`rayhistory run`, `rayhistory demo` and the collector create it."
    return CheckResult(False, f"store: {store.url} does not exist yet", hint, required=False)


def _legacy_layout_note(sessions: list[SessionRef]) -> CheckResult:
    text = f"store: has sessions in the legacy layout, such as {sessions[0].path}, which are not read"
    return CheckResult(False, text, "Set --read-legacy-layout to read them.", required=False)


async def _object_checks(store: Store, key: str, permissions: Permissions) -> AsyncIterator[CheckResult]:
    """Check every operation on objects, with temporary test objects."""

    async def check(operation: str, work: Callable[[], Awaitable[str]], hint: str) -> CheckResult:
        try:
            problem = await work()
        except StoreError as error:
            problem = str(error)
        return CheckResult(not problem, f"store: {operation}" + (f": {problem}" if problem else ""), hint)

    async def write() -> str:
        await store.put(key, b"doctor")
        return ""

    async def write_in_parts() -> str:
        await store.put(f"{key}-large", bytes(PART_BYTES + 1))
        return ""

    async def read() -> str:
        return "" if await store.get_range(key, 1, 4) == b"oct" else "the store returned different bytes"

    async def create() -> str:
        await store.create(f"{key}-once", b"doctor")
        with suppress(ObjectExists):
            await store.create(f"{key}-once", b"again")
            return "the store allowed creating the same key twice"
        return ""

    async def delete() -> str:
        await store.delete(key)
        await store.delete(f"{key}-once")
        await store.delete(f"{key}-large")
        return ""

    role = f" (or the role {permissions.role!r})" if permissions.role else ""
    write_hint = f"The collector needs {permissions.write}{role}. The server works without it."
    yield await check("write objects", write, write_hint)
    yield await check("write objects in parts", write_in_parts, write_hint)
    yield await check("read ranges of objects", read, f"Collector and server need {permissions.read}{role}.")
    yield await check(
        "create objects only once", create, f"Without it, two servers may index the same session. {write_hint}"
    )
    yield await check("delete objects", delete, f"Only retention needs {permissions.delete}{role}.")


async def _ray_checks(settings: Settings) -> AsyncIterator[CheckResult]:
    version, problem = await _local_ray_version()
    yield CheckResult(
        not problem,
        problem or f"Ray {version} is installed",
        "Only `rayhistory run` and `rayhistory demo` need it: pip install 'ray[default]'",
        required=False,
    )
    versions = ", ".join(each.version for each in frontend.Frontends(settings.dashboard_dir).installed())
    yield CheckResult(
        bool(versions),
        f"dashboard frontends: {versions}" if versions else frontend.NOT_INSTALLED,
        frontend.INSTALL_HINT,
    )
    variables = export_environment("", version or DEFAULT_RAY_VERSION)
    missing = [name for name in variables if not os.environ.get(name)]
    yield CheckResult(
        not missing,
        f"Ray's export variables: {f'{len(missing)} are not set' if missing else 'all are set'} in this environment",
        "A driver that starts here does not export events, so its tasks have no name or error. To export from all "
        'drivers, start the head with: ray start --head --system-config="$(rayhistory env --system-config)". On '
        'other nodes, run this before `ray start`: eval "$(rayhistory env)". `rayhistory run` does both',
        required=False,
    )


async def _local_ray_version() -> tuple[str | None, str]:
    """Return the version of the Ray that `rayhistory run` starts, or None and why there is none."""
    try:
        return await ray_version(find_ray()), ""
    except (UsageError, OSError) as error:
        return None, f"Ray: {error}"


def _port_check(port: int, program: str) -> CheckResult:
    with socket.socket() as probe:
        is_free = probe.connect_ex(("127.0.0.1", port)) != 0
    return CheckResult(
        is_free,
        f"port {port} ({program}) is {'free' if is_free else 'in use'}",
        f"This is fine if {program} is running; otherwise choose another port.",
        required=False,
    )
