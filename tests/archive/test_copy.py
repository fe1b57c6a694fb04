"""`rayhistory copy`: complete, verified and resumable copies, which are never visible in part."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from rayhistory.archive.copy import is_same_store
from rayhistory.archive.transfer import CHUNK_BYTES, Transfer
from rayhistory.collector.logs.series_starts import SeriesStarts
from rayhistory.collector.logs.shipper import make_shipper
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.telemetry import Telemetry
from rayhistory.sessions import EndRecord, Layout, SessionRef, StartRecord
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.settings import COLLECTOR, resolve
from rayhistory.storage import Store
from rayhistory.storage.local import LocalStore
from support import archived_sessions
from support.archived_sessions import StoreLocation, killed_at, rayhistory, session_objects, was_killed
from support.folding import NODE, RECORDED, as_lines

SESSION = "session_2026-11-15_19-18-08_055078_15551"
REF = SessionRef("ns", "c", SESSION, "rayjob", "nightly")


def fill(location: StoreLocation, *, ended: bool = True) -> dict[str, bytes]:
    """Store a session with real events and a large object, and another session that is not to be copied."""
    ended_ms = 1_794_770_600_000 if ended else None
    objects = session_objects(location.layout, REF, ended_ms=ended_ms)
    objects[location.layout.events_key(REF, NODE, "node_events", 10**18, compressed=False)] = as_lines(RECORDED)
    objects[location.layout.log_key(REF, NODE, "large.log")] = os.urandom(CHUNK_BYTES * 2 + 17)
    objects = {key: data for key, data in objects.items() if not key.startswith(location.layout.index_prefix(REF))}
    location.put(objects | session_objects(location.layout, SessionRef("ns", "c2", SESSION)))
    return objects


def moved(objects: dict[str, bytes], source: StoreLocation, target: StoreLocation) -> dict[str, bytes]:
    return {source.layout.moved(key, target.layout): data for key, data in objects.items()}


def copied(target: StoreLocation) -> dict[str, bytes]:
    """Return the objects of a copy that the original has, too."""
    return {key: data for key, data in target.objects().items() if "/first-stored-" not in key}


def states(location: StoreLocation) -> dict[str, str]:
    async def work(store: Store) -> dict[str, str]:
        catalog = SessionCatalog(store, location.layout, 3600)
        return {entry.ref.path: catalog.state(entry) for entry in await catalog.entries()}

    return location.run(work)


@pytest.fixture(params=["to directory", "to bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path, location: StoreLocation) -> StoreLocation:
    if request.param == "to directory":
        return archived_sessions.directory(tmp_path / "target")
    return archived_sessions.bucket(request.getfixturevalue("seaweed"), "b")


def copy(
    location: StoreLocation, target: StoreLocation, *more: str, at_start: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    environment = location.environment | target.environment
    return rayhistory(location, "copy", "ns/c", "--to", target.url, *more, at_start=at_start, **environment)


def test_copy_has_the_objects_of_the_session_only(location: StoreLocation, target: StoreLocation) -> None:
    objects = fill(location)
    done = copy(location, target)
    assert done.returncode == 0, done.stderr
    assert f"ns/c/{SESSION}  copied and verified: {len(objects)} objects" in done.stdout
    assert copied(target) == moved(objects, location, target)
    assert states(target) == {f"ns/c/{SESSION}": "ended"}
    again = copy(location, target)
    # KubeRay's two metadata keys and the heartbeat are always written.
    assert f"{len(objects) - 3} already there" in again.stdout


@pytest.mark.parametrize("calls", [3, 8, 13, 15, 17, 19])
def test_copy_resumes_after_being_killed(tmp_path: Path, calls: int) -> None:
    location, target = archived_sessions.directory(tmp_path / "store"), archived_sessions.directory(tmp_path / "target")
    objects = fill(location)
    assert was_killed(copy(location, target, at_start=killed_at(tmp_path / "x", calls)))
    partial = target.objects()
    visible = states(target)
    data = {
        key
        for key in moved(objects, location, target)
        if not any(word in key for word in ("sessions", "meta", "events.log"))
    }
    assert not visible or data <= set(partial)
    assert calls > 12 or not visible
    done = copy(location, target)
    assert done.returncode == 0, done.stderr
    assert {key: data for key, data in copied(target).items() if "doctor" not in key} == objects


def test_different_object_of_the_same_size_is_replaced(location: StoreLocation, target: StoreLocation) -> None:
    objects = fill(location)
    wrong = {key: bytes(len(data)) for key, data in moved(objects, location, target).items()}
    target.put(wrong)
    assert copy(location, target).returncode == 0
    assert copied(target) == moved(objects, location, target)


def test_copy_of_a_vanished_session_has_its_last_heartbeat(tmp_path: Path) -> None:
    """The modification time of the copied heartbeat is that of the copy."""
    location, target = archived_sessions.directory(tmp_path / "store"), archived_sessions.directory(tmp_path / "target")
    fill(location, ended=False)
    last = time.time() - 5 * 86_400
    os.utime(tmp_path / "store" / location.layout.alive_key(REF), (last, last))
    assert copy(location, target).returncode == 0
    assert states(target) == {f"ns/c/{SESSION}": "vanished"}

    async def closing(store: Store) -> int:
        catalog = SessionCatalog(store, target.layout, 120)
        closing = await catalog.closing((await catalog.entries())[0])
        assert closing is not None
        assert not closing.clean
        return closing.ns

    assert abs(target.run(closing) / 1e9 - last) < 1


def test_records_of_a_copy_have_the_times_of_the_first_store(tmp_path: Path) -> None:
    """Also in a copy of a copy: modification times are those of the copy, and retention and `latest` need these."""
    source, first, second = (archived_sessions.directory(tmp_path / name) for name in "abc")
    keys = source.layout.start_key(REF), source.layout.end_key(REF)
    records = StartRecord(*REF.identity, started_ms=1), EndRecord(ended_ms=1)
    source.put(dict(zip(keys, map(msgspec.json.encode, records), strict=True)))
    for key in keys:
        os.utime(tmp_path / "a" / key, (1_700_000_000, 1_700_000_000))
    for location, target in ((source, first), (first, second)):
        done = copy(location, target)
        assert done.returncode == 0, done.stderr
    objects = second.objects()
    for key, record in zip(keys, records, strict=True):
        expected = msgspec.structs.replace(record, stored_ms=1_700_000_000_000)
        assert msgspec.json.decode(objects[key], type=type(record)) == expected
    assert ", 2 already there" in copy(source, first).stdout


def test_copies_keep_the_order_of_their_sessions(tmp_path: Path) -> None:
    """Also if they are copied in another order, and all of them were recorded today."""
    source, target = archived_sessions.directory(tmp_path / "source"), archived_sessions.directory(tmp_path / "target")
    now = time.time()
    names = [time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_", time.gmtime(now)) + each for each in "12"]
    newer, older = (SessionRef("ns", "c", name) for name in names)
    for ref, age in ((newer, 60), (older, 600)):
        source.put(session_objects(source.layout, ref))
        os.utime(tmp_path / "source" / source.layout.start_key(ref), (now - age, now - age))
    for ref in (newer, older):
        done = rayhistory(source, "copy", ref.path, "--to", target.url)
        assert done.returncode == 0, done.stderr
    assert list(states(target)) == [newer.path, older.path]


def test_repeated_copy_updates_the_state(tmp_path: Path) -> None:
    """A restarted collector deletes the end record, and a vanished session may return."""
    location, target = archived_sessions.directory(tmp_path / "store"), archived_sessions.directory(tmp_path / "target")
    fill(location)

    def set_heartbeat(root: Path, seconds_ago: float) -> None:
        timestamp = time.time() - seconds_ago
        os.utime(root / Layout().alive_key(REF), (timestamp, timestamp))

    def state() -> str:
        assert copy(location, target).returncode == 0
        return states(target)[f"ns/c/{SESSION}"]

    assert state() == "ended"
    (tmp_path / "store" / location.layout.end_key(REF)).unlink()
    set_heartbeat(tmp_path / "target", 86_400)
    assert state() == "running"
    set_heartbeat(tmp_path / "store", 86_400)
    assert state() == "vanished"
    set_heartbeat(tmp_path / "store", 0)
    assert state() == "running"
    set_heartbeat(tmp_path / "target", 86_400)
    assert state() == "running"


def test_copy_has_the_same_tables(tmp_path: Path) -> None:
    location, target = archived_sessions.directory(tmp_path / "store"), archived_sessions.directory(tmp_path / "target")
    fill(location)
    assert copy(location, target).returncode == 0
    lines = [
        rayhistory(each, "index", "ns/c", RAYHISTORY_CACHE_DIR=str(tmp_path / "cache")).stdout
        for each in (location, target)
    ]
    assert "23 tasks" in lines[0]
    assert lines[0].partition("indexed")[0] == lines[1].partition("indexed")[0]


def test_packs_become_plain_files(tmp_path: Path) -> None:
    """Packs of the real shipper, with a large file. Larger plain files in the source are copied unchanged."""
    location, target = archived_sessions.directory(tmp_path / "store"), archived_sessions.directory(tmp_path / "target")
    logs = tmp_path / "logs"
    (logs / "events").mkdir(parents=True)
    files = {"raylet.out": b"of the raylet\n", "empty.log": b"", "events/event_JOBS.log": b"{}\n",
             "big.log": b"".join(b"line %d\n" % number for number in range(1_500_000))}  # fmt: skip
    for name, data in files.items():
        (logs / name).write_bytes(data)
    settings, _ = resolve(COLLECTOR, {"setting_log_layout": "packs"}, {})
    objects = session_objects(location.layout, REF)
    location.put(objects)

    async def ship(store: Store) -> None:
        prefix = location.layout.node_packs_prefix(REF, NODE)
        shipper = make_shipper(
            logs, settings, store, Telemetry(), packs_prefix=lambda: prefix,
            starts=SeriesStarts(PrivateDirectory(tmp_path / "spool")),
            key_of=lambda name: location.layout.log_key(REF, NODE, name),
        )  # fmt: skip
        await shipper.finish()

    location.run(ship)
    assert any(key.endswith(".pack") for key in location.objects())
    for _ in range(2):
        done = copy(location, target, "--log-layout", "plain")
        assert done.returncode == 0, done.stderr
        copied = target.objects()
        assert not [key for key in copied if key.endswith((".pack", ".parquet"))]
        for name, data in files.items():
            plain = objects.get(location.layout.log_key(REF, NODE, name), b"")
            assert copied[location.layout.log_key(REF, NODE, name)] == max(plain, data, key=len), name
    assert "already there" in done.stdout


def test_large_object_is_copied_in_bounded_memory(tmp_path: Path) -> None:
    code = """
import asyncio, resource, sys
from pathlib import Path
from rayhistory.archive.transfer import Transfer
from rayhistory.storage.local import LocalStore
async def work():
    source, target = LocalStore(Path(sys.argv[1])), LocalStore(Path(sys.argv[2]))
    await Transfer(source, target, Path(sys.argv[2])).copy(await source.head("big"), "big", None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
asyncio.run(work())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    target.mkdir()
    with (source / "big").open("wb") as file:
        for _ in range(60):
            file.write(os.urandom(CHUNK_BYTES))
    growth_kib = subprocess.check_output([sys.executable, "-c", code, source, target])
    assert int(growth_kib) < 48 * 1024
    digests = [hashlib.sha256((each / "big").read_bytes()).hexdigest() for each in (source, target)]
    assert digests[0] == digests[1]


class CorruptingStore(LocalStore):
    """Stores zeros instead of the given bytes."""

    async def put(self, key: str, data: bytes | Path) -> None:
        await super().put(key, bytes(len(data) if isinstance(data, bytes) else os.stat(data).st_size))  # noqa: PTH116


@pytest.mark.parametrize("size", [100, CHUNK_BYTES + 1])
def test_corrupted_write_is_detected(tmp_path: Path, size: int) -> None:
    source, target = LocalStore(tmp_path / "a"), CorruptingStore(tmp_path / "b")

    async def work() -> None:
        await source.put("x", os.urandom(size))
        with pytest.raises(Exception, match="differ from the bytes that were written"):
            await Transfer(source, target, tmp_path).copy(await source.head("x"), "x", None)

    asyncio.run(work())


class GrowingStore(LocalStore):
    """Appends to objects while they are read."""

    remaining_appends = 1

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if start and self.remaining_appends:
            self.remaining_appends -= 1
            with (self._directory / key).open("ab") as file:
                file.write(b"more")
        return await super().get_range(key, start, end)


@pytest.mark.parametrize("times", [1, 100])
def test_growing_object_is_copied_consistently(tmp_path: Path, times: int) -> None:
    source, target = GrowingStore(tmp_path / "a"), LocalStore(tmp_path / "b")
    source.remaining_appends = times

    async def work() -> None:
        await source.put("x", os.urandom(CHUNK_BYTES * 2))
        copy_task = Transfer(source, target, tmp_path).copy(await source.head("x"), "x", None)
        if times > 1:
            with pytest.raises(Exception, match="changed while it was copied"):
                await copy_task
            return
        assert await copy_task
        assert await target.get("x") == await source.get("x")

    asyncio.run(work())


def test_copy_to_the_same_store_is_rejected(tmp_path: Path) -> None:
    location = archived_sessions.directory(tmp_path / "store")
    fill(location)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    before = location.objects()
    for url in (location.url, str(tmp_path / "link"), f"{location.url}/"):
        done = rayhistory(location, "copy", "ns/c", "--to", url)
        assert done.returncode == 2
        assert "is the store that the sessions are in" in done.stderr
    assert location.objects() == before
    stores = LocalStore(tmp_path / "store"), LocalStore(tmp_path)
    assert not asyncio.run(is_same_store((stores[0], Layout()), (stores[1], Layout("store"))))


def test_target_has_its_own_configuration(tmp_path: Path, seaweed: str) -> None:
    """Store variables of the environment apply to the source only."""
    location, target = archived_sessions.directory(tmp_path / "store"), archived_sessions.bucket(seaweed)
    objects = fill(location)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"s3Endpoint": seaweed, "s3Region": "us-east-1", "s3ForcePathStyle": True}))
    credentials = {name: value for name, value in target.environment.items() if name.startswith("AWS_")}
    done = rayhistory(
        location, "copy", "ns/c", "--to", target.url, "--to-config", str(config), at_start=None, STORAGE_ROOT_DIR="",
        **credentials,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert copied(target) == objects


def test_copy_is_rejected_while_the_target_removes_the_session(tmp_path: Path) -> None:
    location, target = archived_sessions.directory(tmp_path / "store"), archived_sessions.directory(tmp_path / "target")
    fill(location)
    target.put({target.layout.tombstone_key(REF): b"{}"})
    done = copy(location, target)
    assert done.returncode == 2
    assert "is being removed" in done.stderr


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["unknown", "--to", "{tmp}/t"], "no session 'unknown' in the store"),
        (["ns/c"], "the following arguments are required: --to"),
        (["ns/c", "--to", "s3://"], "the bucket is missing"),
        (["ns/c", "--to", "tape://x/y"], "unknown storage backend 'tape'"),
        (["ns/c", "--to", "file://x"], "three slashes"),
        (["ns/c", "--to", "/proc/x"], "--to=file:///proc/x: cannot create the directory"),
        (["ns/c", "--to", "s3://bucket", "--to-config", "/nowhere"], "--to-config=/nowhere"),
        (["ns/c", "--to", "{tmp}/t", "--log-layout", "packs"], "invalid choice: 'packs'"),
    ],
)
def test_invalid_arguments_are_one_line_errors(tmp_path: Path, argv: list[str], error: str) -> None:
    location = archived_sessions.directory(tmp_path / "store")
    location.put(session_objects(location.layout, REF))
    done = rayhistory(location, "copy", *(each.format(tmp=tmp_path) for each in argv))
    assert done.returncode == 2
    assert error in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_products_are_copied_with_their_manifests_and_without_leases(tmp_path: Path) -> None:
    source, target = (archived_sessions.directory(tmp_path / name) for name in ("source", "target"))
    fill(source)
    product = {
        source.layout.product_file_key(REF, "counted", "1-b", "names.json"): b"{}",
        source.layout.product_manifest_key(REF, "counted", 1): b"{}",
    }
    source.put(product | {source.layout.product_lease_key(REF, "counted"): b"token"})
    assert copy(source, target).returncode == 0
    prefix = target.layout.products_prefix(REF)
    assert {key: data for key, data in target.objects().items() if key.startswith(prefix)} == product
