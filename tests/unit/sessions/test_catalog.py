"""The catalog lists sessions and derives their states from listings alone."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rayhistory.errors import SessionNotFound, StoreUnavailable
from rayhistory.sessions import Layout, SessionRef, StartRecord
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.storage.local import LocalStore
from rayhistory.storage.store import ObjectInfo

LAYOUT = Layout()


def ref(cluster: str, day: int, owner: str | None = None) -> SessionRef:
    session = f"session_2026-11-{day:02}_19-18-08_055078_1"
    return SessionRef("default", cluster, session, "rayjob" if owner else None, owner)


def write_session(root: Path, session: SessionRef, *, alive: float | None = None, ended: bool = False) -> None:
    """Write a session with our records, or without `alive` one of KubeRay's collector."""
    keys = {LAYOUT.metadata_key(session): b""}
    if alive is not None:
        keys |= {LAYOUT.start_key(session): b"{}", LAYOUT.alive_key(session): b""}
    if ended:
        keys[LAYOUT.end_key(session)] = b'{"ended_ms": 1794770400000}'
    for key, data in keys.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if alive is not None:
            os.utime(path, (alive, alive))


def catalog(root: Path) -> SessionCatalog:
    return SessionCatalog(LocalStore(root), LAYOUT, vanished_after=120)


def test_state_follows_heartbeat_and_seal(tmp_path: Path) -> None:
    """By the store's clock. Sessions of KubeRay have no heartbeat and count as ended."""
    now = time.time()
    write_session(tmp_path, ref("running", 1), alive=now)
    write_session(tmp_path, ref("ended", 2), alive=now, ended=True)
    write_session(tmp_path, ref("vanished", 3), alive=now - 500)
    write_session(tmp_path, ref("kuberay", 4))

    async def states() -> dict[str, str]:
        listed = catalog(tmp_path)
        return {entry.ref.cluster: listed.state(entry) for entry in await listed.entries()}

    found = asyncio.run(states())
    assert found == {"running": "running", "ended": "ended", "vanished": "vanished", "kuberay": "ended"}
    assert list(found) == ["running", "kuberay", "vanished", "ended"]


def end_at(root: Path, session: SessionRef, modified: float) -> None:
    path = root / LAYOUT.end_key(session)
    path.write_bytes(b'{"ended_ms": 1794770400000}')
    os.utime(path, (modified, modified))


def test_heartbeat_after_the_end_record_voids_it(tmp_path: Path) -> None:
    """A head resumed its session in a new pod, whose collector leaves the record of the other one."""
    now = time.time()
    for day, (cluster, heartbeat) in enumerate({"resumed": now, "lost-again": now - 400, "copied": now - 999}.items()):
        session = ref(cluster, day + 1)
        write_session(tmp_path, session, alive=heartbeat)
        end_at(tmp_path, session, now - 1000)
    found = states(catalog(tmp_path))
    assert found == {"resumed": "running", "lost-again": "vanished", "copied": "ended"}


def test_start_record_after_the_end_record_is_no_heartbeat(tmp_path: Path) -> None:
    """A copy writes it last."""
    session = ref("copied", 1)
    write_session(tmp_path, session, alive=time.time())
    (tmp_path / LAYOUT.alive_key(session)).unlink()
    end_at(tmp_path, session, time.time() - 1000)
    assert states(catalog(tmp_path)) == {"copied": "ended"}


def test_latest_session_is_found_by_cluster_and_by_owner(tmp_path: Path) -> None:
    for day in (1, 3, 2):
        write_session(tmp_path, ref("c", day))
    write_session(tmp_path, ref("generated-x1", 4, "nightly"))
    write_session(tmp_path, ref("generated-x2", 5, "nightly"))

    async def work() -> None:
        listed = catalog(tmp_path)
        assert (await listed.find("default", "c", "latest")).ref == ref("c", 3)
        assert (await listed.find("default", "c", ref("c", 1).session)).ref == ref("c", 1)
        assert (await listed.find_owned("default", "rayjob", "nightly", "latest")).ref.cluster == "generated-x2"
        for names in (("default", "c", ref("c", 9).session), ("default", "d", "latest"), ("other", "c", "live")):
            with pytest.raises(SessionNotFound):
                await listed.find(*names)

    asyncio.run(work())


def write_start(root: Path, session: SessionRef, *, modified: float, stored: float | None = None) -> None:
    """Write the keys of a session that has no heartbeat; `stored` is the store's time inside its start record."""
    write_session(root, session, alive=modified, ended=True)
    record = StartRecord(*session.identity, started_ms=0, stored_ms=int(stored * 1000) if stored else None)
    path = root / LAYOUT.start_key(session)
    path.write_bytes(msgspec.json.encode(record))
    os.utime(path, (modified, modified))


def latest(root: Path) -> SessionRef:
    return asyncio.run(catalog(root).find("default", "c", "latest")).ref


def test_latest_goes_by_the_clock_of_the_store_and_not_by_names(tmp_path: Path) -> None:
    """A name has the head's local time: an hour is repeated when summer time ends, and a clock may be wrong."""
    now = time.time()
    future = SessionRef("default", "c", "session_9999-01-01_00-00-00_000000_1")
    write_start(tmp_path, future, modified=now - 300, stored=now - 300)
    write_start(tmp_path, ref("c", 17), modified=now - 200, stored=now - 200)
    write_start(tmp_path, ref("c", 16), modified=now - 100, stored=now - 100)
    assert latest(tmp_path) == ref("c", 16)


def test_latest_session_of_kuberay_goes_by_modification_times(tmp_path: Path) -> None:
    """Unless they are those of a copy, more than a day after the time in the name."""
    now = time.time()
    names = [
        time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_1", time.gmtime(now + offset)) for offset in (-7200, -3600, 0)
    ]
    ages = {names[0]: 100, names[1]: 300, names[2]: 200, "session_2020-01-01_00-00-00_000000_1": 0}
    for name, age in ages.items():
        write_session(tmp_path, SessionRef("default", "c", name))
        os.utime(tmp_path / LAYOUT.metadata_key(SessionRef("default", "c", name)), (now - age, now - age))
    assert latest(tmp_path).session == names[0]


def test_latest_in_a_copy_goes_by_the_clock_of_the_first_store(tmp_path: Path) -> None:
    """All keys of a copy have its time; more sessions than records are read at once."""
    now = time.time()
    for day in range(1, 29):
        write_start(tmp_path, ref("c", day), modified=now - day, stored=now - 90_000 - 60 * abs(day - 20))
    assert latest(tmp_path) == ref("c", 20)


def test_imports_and_copies_are_listed_by_the_time_of_their_key_bounded_by_the_store(tmp_path: Path) -> None:
    """The names of all sessions are too recent to tell, because their time zone is unknown."""
    now = time.time()
    recent = time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_", time.gmtime(now))
    imported, recorded, future = (SessionRef("default", "c", recent + each) for each in "123")
    stored = {imported: now - 7200, future: now + 10**6}
    for session, modified in ((imported, now - 10), (recorded, now - 20), (future, now - 30)):
        write_start(tmp_path, session, modified=modified, stored=stored.get(session))
    for session, at in stored.items():
        key = tmp_path / LAYOUT.first_stored_key(session, int(at * 1000))
        key.write_bytes(b"")
        os.utime(key, (now - 10, now - 10))
    assert [entry.ref for entry in asyncio.run(catalog(tmp_path).entries())] == [recorded, future, imported]
    assert latest(tmp_path) == recorded


def test_time_of_an_import_alone_is_no_session(tmp_path: Path) -> None:
    key = tmp_path / LAYOUT.first_stored_key(ref("c", 1), 1_794_770_300_123)
    key.parent.mkdir(parents=True)
    key.write_bytes(b"")
    assert asyncio.run(catalog(tmp_path).entries()) == []


def test_logs_that_were_uploaded_late_are_not_the_latest_session(tmp_path: Path) -> None:
    """The logs of a session that ended before its collector started have no records. They arrive during a later one."""
    now = time.time()
    names = [time.strftime("session_%Y-%m-%d_%H-%M-%S_000000_1", time.gmtime(now + each)) for each in (-7200, -3600, 0)]
    older, recorded, newer = (SessionRef("default", "c", name) for name in names)
    write_start(tmp_path, recorded, modified=now - 3600, stored=now - 3600)
    for session, age in ((older, 60), (newer, 30)):
        write_session(tmp_path, session)
        os.utime(tmp_path / LAYOUT.metadata_key(session), (now - age, now - age))
        expected = recorded if session == older else newer
        assert latest(tmp_path) == expected
        assert asyncio.run(catalog(tmp_path).entries())[0].ref == expected


def test_latest_is_a_running_session_if_there_is_one(tmp_path: Path) -> None:
    now = time.time()
    write_session(tmp_path, ref("c", 1), alive=now - 20)
    write_start(tmp_path, ref("c", 2), modified=now - 10)
    assert latest(tmp_path) == ref("c", 1)


def test_start_record_cannot_claim_a_time_after_its_own_modification(tmp_path: Path) -> None:
    now = time.time()
    write_start(tmp_path, ref("c", 1), modified=now - 20, stored=now + 10**6)
    write_start(tmp_path, ref("c", 2), modified=now - 10, stored=now - 10)
    assert latest(tmp_path) == ref("c", 2)


def states(listed: SessionCatalog) -> dict[str, str]:
    return {entry.ref.cluster: listed.state(entry) for entry in asyncio.run(listed.entries())}


def test_no_session_vanishes_while_no_heartbeat_in_the_store_is_fresh(tmp_path: Path) -> None:
    """The store or a clock has a problem. A session that was silent before that had vanished already."""
    now = time.time()
    write_session(tmp_path, ref("a", 1), alive=now - 300)
    write_session(tmp_path, ref("b", 1), alive=now - 310)
    write_session(tmp_path, ref("gone", 1), alive=now - 600)
    assert states(catalog(tmp_path)) == {"a": "running", "b": "running", "gone": "vanished"}


def test_vanished_session_stays_vanished_when_the_newest_heartbeat_gets_old(tmp_path: Path) -> None:
    now = time.time()
    for age, expected in ((10, "vanished"), (119, "vanished"), (121, "vanished"), (600, "vanished")):
        write_session(tmp_path, ref("newest", 1), alive=now - age)
        write_session(tmp_path, ref("gone", 1), alive=now - age - 121)
        write_session(tmp_path, ref("slow", 1), alive=now - age - 60)
        assert states(catalog(tmp_path)) == {"newest": "running", "gone": expected, "slow": "running"}, age


def test_all_sessions_have_vanished_after_a_long_silence(tmp_path: Path) -> None:
    write_session(tmp_path, ref("a", 1), alive=time.time() - 3600)
    assert states(catalog(tmp_path)) == {"a": "vanished"}


def test_heartbeats_that_advance_are_fresh_whatever_our_clock_says(tmp_path: Path) -> None:
    hours_ago = time.time() - 7200
    write_session(tmp_path, ref("a", 1), alive=hours_ago)

    async def work() -> str:
        listed = catalog(tmp_path)
        await listed.entries()
        os.utime(tmp_path / LAYOUT.alive_key(ref("a", 1)), (hours_ago + 30, hours_ago + 30))
        await asyncio.sleep(2.1)  # a listing is cached for two seconds
        [entry] = await listed.entries()
        return listed.state(entry)

    assert asyncio.run(work()) == "running"


def test_server_with_a_slow_clock_notices_vanished_sessions(tmp_path: Path) -> None:
    later = time.time() + 7200
    write_session(tmp_path, ref("a", 1), alive=later)
    write_session(tmp_path, ref("gone", 1), alive=later - 600)
    assert states(catalog(tmp_path)) == {"a": "running", "gone": "vanished"}


def test_end_in_the_future_is_the_time_of_its_record(tmp_path: Path) -> None:
    """The head's clock was wrong."""
    now = int(time.time())
    write_session(tmp_path, ref("c", 1), alive=now, ended=True)
    path = tmp_path / LAYOUT.end_key(ref("c", 1))
    path.write_bytes(b'{"ended_ms": 2082758400000}')
    os.utime(path, (now, now))

    async def work() -> int:
        listed = catalog(tmp_path)
        [entry] = await listed.entries()
        closing = await listed.closing(entry)
        assert closing is not None
        return closing.ns

    assert asyncio.run(work()) == now * 10**9


@pytest.mark.slow
def test_many_sessions_are_listed_completely(tmp_path: Path) -> None:
    """Long listings run in parallel by cluster, or by namespace if there are many clusters."""
    session = ref("c", 1).session
    sealed_by_ref = {SessionRef("few", f"c{i % 3}", f"{session}{i:04}"): bool(i % 2) for i in range(300)}
    sealed_by_ref |= {SessionRef("many", f"c{i}", session): bool(i % 2) for i in range(600)}
    sealed_by_ref |= {SessionRef("one", "c", session, "rayjob", "nightly"): True}
    now = time.time()
    for session_ref, ended in sealed_by_ref.items():
        write_session(tmp_path, session_ref, alive=now, ended=ended)

    async def states() -> dict[SessionRef, str]:
        listed = catalog(tmp_path)
        return {entry.ref: listed.state(entry) for entry in await listed.entries()}

    assert asyncio.run(states()) == {
        session_ref: "ended" if ended else "running" for session_ref, ended in sealed_by_ref.items()
    }


def test_unavailable_store_is_listed_once_for_all_requests(tmp_path: Path) -> None:
    """It is an error, not an empty list."""
    listings = []

    class UnavailableStore(LocalStore):
        async def list_all(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
            listings.append(prefix)
            await asyncio.sleep(0.05)
            raise StoreUnavailable("no connection")
            yield

    async def work() -> None:
        listed = SessionCatalog(UnavailableStore(tmp_path), LAYOUT, 120)
        outcomes = await asyncio.gather(*(listed.entries() for _ in range(20)), return_exceptions=True)
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        assert sorted(listings) == sorted(set(listings))

    asyncio.run(work())


def test_slow_first_listing_goes_on_for_the_next_request(tmp_path: Path) -> None:
    class SlowStore(LocalStore):
        is_slow = asyncio.Event()

        async def list_all(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
            await self.is_slow.wait()
            async for info in super().list_all(prefix, start_after):
                yield info

    write_session(tmp_path, ref("kuberay", 4))

    async def work() -> None:
        store = SlowStore(tmp_path)
        listed = SessionCatalog(store, LAYOUT, vanished_after=120)
        assert await listed.entries_within(0.0) is None
        store.is_slow.set()
        assert [entry.ref.cluster for entry in await listed.entries_within(60.0) or []] == ["kuberay"]

    asyncio.run(work())
