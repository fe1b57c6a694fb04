"""Which sessions there are, and in what state, from listings alone."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from rayhistory.errors import SessionNotFound, StoreUnavailable
from rayhistory.layout import Layout, SessionRef
from rayhistory.server.catalogue import Catalogue
from rayhistory.storage.local import LocalStore

LAYOUT = Layout()


def ref(cluster: str, day: int, owner: str | None = None) -> SessionRef:
    session = f"session_2026-11-{day:02}_19-18-08_055078_1"
    return SessionRef("default", cluster, session, "rayjob" if owner else None, owner)


def keep(root: Path, session: SessionRef, *, alive: float | None = None, sealed: bool = False) -> None:
    """Sessions of ours have a record; without `alive` it is one of KubeRay's."""
    keys = {LAYOUT.metadata_key(session): b""}
    if alive is not None:
        keys |= {LAYOUT.start_key(session): b"{}", LAYOUT.alive_key(session): b""}
    if sealed:
        keys[LAYOUT.end_key(session)] = b'{"ended_ms": 1794770400000}'
    for key, data in keys.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if alive is not None:
            os.utime(path, (alive, alive))


def catalogue(root: Path) -> Catalogue:
    return Catalogue(LocalStore(root), LAYOUT, vanished_after=120)


def test_a_session_runs_ends_or_vanishes(tmp_path: Path) -> None:
    """By the store's clock: a recent sign of life, a seal, or neither; KubeRay's have none, and have ended."""
    now = time.time()
    keep(tmp_path, ref("running", 1), alive=now)
    keep(tmp_path, ref("ended", 2), alive=now, sealed=True)
    keep(tmp_path, ref("vanished", 3), alive=now - 500)
    keep(tmp_path, ref("kuberay", 4))

    async def states() -> dict[str, str]:
        listed = catalogue(tmp_path)
        return {entry.ref.cluster: listed.state(entry) for entry in await listed.entries()}

    found = asyncio.run(states())
    assert found == {"running": "running", "ended": "ended", "vanished": "vanished", "kuberay": "ended"}
    assert list(found) == ["running", "kuberay", "vanished", "ended"]


def test_the_latest_session_is_found_by_cluster_and_by_owner(tmp_path: Path) -> None:
    for day in (1, 3, 2):
        keep(tmp_path, ref("c", day))
    keep(tmp_path, ref("generated-x1", 4, "nightly"))
    keep(tmp_path, ref("generated-x2", 5, "nightly"))

    async def work() -> None:
        listed = catalogue(tmp_path)
        assert (await listed.find("default", "c", "latest")).ref == ref("c", 3)
        assert (await listed.find("default", "c", ref("c", 1).session)).ref == ref("c", 1)
        assert (await listed.find_owned("default", "rayjob", "nightly", "latest")).ref.cluster == "generated-x2"
        for wrong in (("default", "c", ref("c", 9).session), ("default", "d", "latest"), ("other", "c", "live")):
            with pytest.raises(SessionNotFound):
                await listed.find(*wrong)

    asyncio.run(work())


def test_many_sessions_are_listed_whole_in_few_and_in_many_clusters(tmp_path: Path) -> None:
    """Listings that are long go side by side, cluster by cluster, or namespace by namespace when clusters are many."""
    session = ref("c", 1).session
    kept = {SessionRef("few", f"c{i % 3}", f"{session}{i:04}"): bool(i % 2) for i in range(300)}
    kept |= {SessionRef("many", f"c{i}", session): bool(i % 2) for i in range(600)}
    kept |= {SessionRef("one", "c", session, "rayjob", "nightly"): True}
    now = time.time()
    for one, sealed in kept.items():
        keep(tmp_path, one, alive=now, sealed=sealed)

    async def states() -> dict[SessionRef, str]:
        listed = catalogue(tmp_path)
        return {entry.ref: listed.state(entry) for entry in await listed.entries()}

    assert asyncio.run(states()) == {one: "ended" if sealed else "running" for one, sealed in kept.items()}


def test_a_store_that_is_away_is_asked_once_for_all_who_wait(tmp_path: Path) -> None:
    """And that is an error, not an empty list."""
    asked = []

    class Away(LocalStore):
        async def list_all(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
            asked.append(prefix)
            await asyncio.sleep(0.05)
            raise StoreUnavailable("away")
            yield

    async def work() -> None:
        listed = Catalogue(Away(tmp_path), LAYOUT, 120)
        outcomes = await asyncio.gather(*(listed.entries() for _ in range(20)), return_exceptions=True)
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        assert sorted(asked) == sorted(set(asked))

    asyncio.run(work())
