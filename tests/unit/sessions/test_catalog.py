"""The catalog lists sessions and derives their states from listings alone."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from rayhistory.errors import SessionNotFound, StoreUnavailable
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.storage.local import LocalStore

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
