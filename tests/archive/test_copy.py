"""Sessions move between stores whole, verified, and without being seen half."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kept
from folding import NODE, RECORDED, as_lines
from kept import Place, killed_at, rayhistory, session_objects, was_killed
from rayhistory.collector.logs import make_shipper
from rayhistory.collector.metrics import Metrics
from rayhistory.keeping.copying import same_place
from rayhistory.keeping.transfer import PIECE, Transfer
from rayhistory.layout import Layout, SessionRef
from rayhistory.server.catalogue import Catalogue
from rayhistory.settings import COLLECTOR, resolve
from rayhistory.storage import Store
from rayhistory.storage.local import LocalStore

SESSION = "session_2026-11-15_19-18-08_055078_15551"
REF = SessionRef("ns", "c", SESSION, "rayjob", "nightly")


def fill(place: Place, *, ended: bool = True) -> dict[str, bytes]:
    """A session with real events, an object that does not fit into one piece, and a neighbour that is not meant."""
    ended_ms = 1_794_770_600_000 if ended else None
    objects = session_objects(place.layout, REF, ended_ms=ended_ms)
    objects[place.layout.events_key(REF, NODE, "node_events", 10**18, compressed=False)] = as_lines(RECORDED)
    objects[place.layout.log_key(REF, NODE, "large.log")] = os.urandom(PIECE * 2 + 17)
    del objects[f"{place.layout.index_prefix(REF)}/1-abcd/tasks.parquet"]
    place.put(objects | session_objects(place.layout, SessionRef("ns", "c2", SESSION)))
    return objects


def moved(objects: dict[str, bytes], source: Place, target: Place) -> dict[str, bytes]:
    return {source.layout.moved(key, target.layout): data for key, data in objects.items()}


def entries(place: Place) -> dict[str, str]:
    async def work(store: Store) -> dict[str, str]:
        catalogue = Catalogue(store, place.layout, 3600)
        return {entry.ref.path: catalogue.state(entry) for entry in await catalogue.entries()}

    return place.run(work)


@pytest.fixture(params=["to directory", "to bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path, place: Place) -> Place:
    if request.param == "to directory":
        return kept.directory(tmp_path / "target")
    return kept.bucket(request.getfixturevalue("seaweed"), "b")


def copy(place: Place, target: Place, *more: str, at_start: Path | None = None) -> "subprocess.CompletedProcess[str]":
    environment = place.environment | target.environment
    return rayhistory(place, "copy", "ns/c", "--to", target.url, *more, at_start=at_start, **environment)


def test_a_copy_is_the_session_and_nothing_else(place: Place, target: Place) -> None:
    objects = fill(place)
    done = copy(place, target)
    assert done.returncode == 0, done.stderr
    assert f"ns/c/{SESSION}  copied and verified: {len(objects)} objects" in done.stdout
    assert target.objects() == moved(objects, place, target)
    assert entries(target) == {f"ns/c/{SESSION}": "ended"}
    again = copy(place, target)
    assert (
        f"{len(objects) - 3} of them there already" in again.stdout
    )  # all but KubeRay's two keys and the sign of life


@pytest.mark.parametrize("calls", [3, 8, 13, 15, 17, 19])
def test_a_copy_that_is_killed_shows_nothing_and_goes_on(tmp_path: Path, calls: int) -> None:
    place, target = kept.directory(tmp_path / "store"), kept.directory(tmp_path / "target")
    objects = fill(place)
    assert was_killed(copy(place, target, at_start=killed_at(tmp_path / "x", calls)))
    half = target.objects()
    shown = entries(target)
    data = {
        key
        for key in moved(objects, place, target)
        if not any(word in key for word in ("sessions", "meta", "events.log"))
    }
    assert not shown or data <= set(half)
    assert calls > 12 or not shown
    done = copy(place, target)
    assert done.returncode == 0, done.stderr
    assert {key: data for key, data in target.objects().items() if "doctor" not in key} == objects


def test_what_is_there_with_other_bytes_is_replaced(place: Place, target: Place) -> None:
    """Of the same size: a checksum tells."""
    objects = fill(place)
    wrong = {key: bytes(len(data)) for key, data in moved(objects, place, target).items()}
    target.put(wrong)
    assert copy(place, target).returncode == 0
    assert target.objects() == moved(objects, place, target)


def test_a_vanished_session_stays_vanished_with_its_last_sign_of_life(tmp_path: Path) -> None:
    """The copy's own sign of life is as young as the copy."""
    place, target = kept.directory(tmp_path / "store"), kept.directory(tmp_path / "target")
    fill(place, ended=False)
    last = time.time() - 5 * 86_400
    os.utime(tmp_path / "store" / place.layout.alive_key(REF), (last, last))
    assert copy(place, target).returncode == 0
    assert entries(target) == {f"ns/c/{SESSION}": "vanished"}

    async def closing(store: Store) -> int:
        catalogue = Catalogue(store, target.layout, 120)
        closing = await catalogue.closing((await catalogue.entries())[0])
        assert closing is not None
        assert not closing.clean
        return closing.ns

    assert abs(target.run(closing) / 1e9 - last) < 1


def test_a_session_that_is_copied_again_is_what_it_has_become(tmp_path: Path) -> None:
    """A collector that is started again takes the end back; who seemed to be gone comes back."""
    place, target = kept.directory(tmp_path / "store"), kept.directory(tmp_path / "target")
    fill(place)

    def sign_of_life(at: Path, seconds_ago: float) -> None:
        then = time.time() - seconds_ago
        os.utime(at / Layout().alive_key(REF), (then, then))

    def state() -> str:
        assert copy(place, target).returncode == 0
        return entries(target)[f"ns/c/{SESSION}"]

    assert state() == "ended"
    (tmp_path / "store" / place.layout.end_key(REF)).unlink()
    sign_of_life(tmp_path / "target", 86_400)
    assert state() == "running"
    sign_of_life(tmp_path / "store", 86_400)
    assert state() == "vanished"
    sign_of_life(tmp_path / "store", 0)
    assert state() == "running"
    sign_of_life(tmp_path / "target", 86_400)
    assert state() == "running"


def test_a_copy_opens_with_the_same_tables(tmp_path: Path) -> None:
    place, target = kept.directory(tmp_path / "store"), kept.directory(tmp_path / "target")
    fill(place)
    assert copy(place, target).returncode == 0
    lines = [
        rayhistory(each, "index", "ns/c", RAYHISTORY_CACHE_DIR=str(tmp_path / "cache")).stdout
        for each in (place, target)
    ]
    assert "23 tasks" in lines[0]
    assert lines[0].partition("folded")[0] == lines[1].partition("folded")[0]


def test_packs_become_plain_files(tmp_path: Path) -> None:
    """As the real shipper made them, a rotated file and a large one included; files that are whole already stay."""
    place, target = kept.directory(tmp_path / "store"), kept.directory(tmp_path / "target")
    logs = tmp_path / "logs"
    (logs / "events").mkdir(parents=True)
    files = {"raylet.out": b"of the raylet\n", "empty.log": b"", "events/event_JOBS.log": b"{}\n",
             "big.log": b"".join(b"line %d\n" % number for number in range(1_500_000))}  # fmt: skip
    for name, data in files.items():
        (logs / name).write_bytes(data)
    settings, _ = resolve(COLLECTOR, {"setting_log_layout": "packs"}, {})
    objects = session_objects(place.layout, REF)
    place.put(objects)

    async def ship(store: Store) -> None:
        prefix = place.layout.node_packs_prefix(REF, NODE)
        shipper = make_shipper(
            logs, settings, store, Metrics(), packs_at=lambda: prefix,
            key_of=lambda name: place.layout.log_key(REF, NODE, name),
        )  # fmt: skip
        await shipper.finish()

    place.run(ship)
    assert any(key.endswith(".pack") for key in place.objects())
    for _ in range(2):
        done = copy(place, target, "--log-layout", "plain")
        assert done.returncode == 0, done.stderr
        copied = target.objects()
        assert not [key for key in copied if key.endswith((".pack", ".parquet"))]
        for name, data in files.items():
            whole = objects.get(place.layout.log_key(REF, NODE, name), b"")
            assert copied[place.layout.log_key(REF, NODE, name)] == max(whole, data, key=len), name
    assert "already" in done.stdout


def test_an_object_of_any_size_needs_little_memory(tmp_path: Path) -> None:
    code = """
import asyncio, resource, sys
from pathlib import Path
from rayhistory.keeping.transfer import Transfer
from rayhistory.storage.local import LocalStore
async def work():
    source, target = LocalStore(Path(sys.argv[1])), LocalStore(Path(sys.argv[2]))
    await Transfer(source, target, Path(sys.argv[2])).copy(await source.head("big"), "big", None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
asyncio.run(work())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir(), target.mkdir()
    with (source / "big").open("wb") as file:
        for _ in range(60):
            file.write(os.urandom(PIECE))
    grown = subprocess.check_output([sys.executable, "-c", code, source, target])
    assert int(grown) < 48 * 1024
    digests = [hashlib.sha256((each / "big").read_bytes()).hexdigest() for each in (source, target)]
    assert digests[0] == digests[1]


class Lying(LocalStore):
    """A store that keeps other bytes than it was given."""

    async def put(self, key: str, data: bytes | Path) -> None:
        await super().put(key, bytes(len(data) if isinstance(data, bytes) else os.stat(data).st_size))  # noqa: PTH116


@pytest.mark.parametrize("size", [100, PIECE + 1])
def test_a_store_that_gives_back_other_bytes_is_found_out(tmp_path: Path, size: int) -> None:
    source, target = LocalStore(tmp_path / "a"), Lying(tmp_path / "b")

    async def work() -> None:
        await source.put("x", os.urandom(size))
        with pytest.raises(Exception, match="not what it was given"):
            await Transfer(source, target, tmp_path).copy(await source.head("x"), "x", None)

    asyncio.run(work())


class Growing(LocalStore):
    """An object that is appended to while it is read."""

    left = 1

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if start and self.left:
            self.left -= 1
            with (self._directory / key).open("ab") as file:
                file.write(b"more")
        return await super().get_range(key, start, end)


@pytest.mark.parametrize("times", [1, 100])
def test_an_object_that_grows_is_copied_as_it_was_at_one_moment(tmp_path: Path, times: int) -> None:
    source, target = Growing(tmp_path / "a"), LocalStore(tmp_path / "b")
    source.left = times

    async def work() -> None:
        await source.put("x", os.urandom(PIECE * 2))
        copying = Transfer(source, target, tmp_path).copy(await source.head("x"), "x", None)
        if times > 1:
            with pytest.raises(Exception, match="changes while it is copied"):
                await copying
            return
        assert await copying
        assert await target.get("x") == await source.get("x")

    asyncio.run(work())


def test_the_same_store_is_known_by_any_name(tmp_path: Path) -> None:
    place = kept.directory(tmp_path / "store")
    fill(place)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    before = place.objects()
    for url in (place.url, str(tmp_path / "link"), f"{place.url}/"):
        done = rayhistory(place, "copy", "ns/c", "--to", url)
        assert done.returncode == 2
        assert "is the store that the sessions are in" in done.stderr
    assert place.objects() == before
    stores = LocalStore(tmp_path / "store"), LocalStore(tmp_path)
    assert not asyncio.run(same_place((stores[0], Layout()), (stores[1], Layout("store"))))


def test_the_target_has_its_own_configuration(tmp_path: Path, seaweed: str) -> None:
    """What the environment says is about the source."""
    place, target = kept.directory(tmp_path / "store"), kept.bucket(seaweed)
    objects = fill(place)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"s3Endpoint": seaweed, "s3Region": "us-east-1", "s3ForcePathStyle": True}))
    credentials = {name: value for name, value in target.environment.items() if name.startswith("AWS_")}
    done = rayhistory(
        place, "copy", "ns/c", "--to", target.url, "--to-config", str(config), **credentials, STORAGE_ROOT_DIR=""
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert target.objects() == objects


def test_what_is_being_removed_there_is_not_copied_into_it(tmp_path: Path) -> None:
    place, target = kept.directory(tmp_path / "store"), kept.directory(tmp_path / "target")
    fill(place)
    target.put({target.layout.tombstone_key(REF): b"{}"})
    done = copy(place, target)
    assert done.returncode == 2
    assert "is being removed" in done.stderr


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["nobody", "--to", "{tmp}/t"], "no session 'nobody' in the store"),
        (["ns/c"], "the following arguments are required: --to"),
        (["ns/c", "--to", "s3://"], "name a bucket"),
        (["ns/c", "--to", "tape://x/y"], "unknown storage backend 'tape'"),
        (["ns/c", "--to", "file://x"], "three slashes"),
        (["ns/c", "--to", "/proc/x"], "--to /proc/x: cannot be made"),
        (["ns/c", "--to", "s3://bucket", "--to-config", "/nowhere"], "--to-config=/nowhere"),
        (["ns/c", "--to", "{tmp}/t", "--log-layout", "packs"], "invalid choice: 'packs'"),
    ],
)
def test_a_wrong_call_is_one_line(tmp_path: Path, argv: list[str], complaint: str) -> None:
    place = kept.directory(tmp_path / "store")
    place.put(session_objects(place.layout, REF))
    done = rayhistory(place, "copy", *(each.format(tmp=tmp_path) for each in argv))
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
