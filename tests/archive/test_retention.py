"""Retention removes exactly the selected sessions, also when it is interrupted or runs concurrently."""

import asyncio
import os
import time
from pathlib import Path

import msgspec
import pytest

from rayhistory.archive import pins
from rayhistory.archive.retention import DAY_S, RetentionCandidate, RetentionPolicy, decide
from rayhistory.archive.session_objects import for_each
from rayhistory.sessions import EndRecord, SessionRef
from rayhistory.sessions.catalog import SessionCatalog
from rayhistory.storage.local import LocalStore
from support import archived_sessions
from support.archived_sessions import OLD, StoreLocation, killed_at, rayhistory, session_objects, was_killed

NOW = 1_800_000_000.0
CLOCK_WRITES = 2
"""Writes that read the clock of the store come first."""
REMOVE_NOW = ("--vanished-after", "1ms", "--yes")


def candidate(name: str, days: float, **other: object) -> RetentionCandidate:
    """Return a session that ended this many days ago."""
    fields = {"state": "ended", "size": 10, "last_write": 0.0, "failed": False, **other}
    ended = NOW - days * DAY_S
    return RetentionCandidate(SessionRef("ns", name, OLD), started=ended, ended=ended, **fields)  # type: ignore[arg-type]


def removed(sessions: list[RetentionCandidate], policy: RetentionPolicy) -> list[str]:
    return [decision.candidate.ref.cluster for decision in decide(sessions, policy, NOW) if decision.remove]


def test_failed_sessions_have_a_longer_maximum_age() -> None:
    """A session without an index may have failed."""
    sessions = [
        candidate("fresh", 1), candidate("old", 31), candidate("failed", 31, failed=True),
        candidate("unknown", 31, failed=None), candidate("long-failed", 61, failed=True),
        candidate("long-unknown", 61, failed=None),
    ]  # fmt: skip
    policy = RetentionPolicy(max_age=30 * DAY_S, failed_max_age=60 * DAY_S)
    assert removed(sessions, policy) == ["old", "long-failed", "long-unknown"]
    reasons = {decision.candidate.ref.cluster: decision.reason for decision in decide(sessions, policy, NOW)}
    assert reasons["failed"] == "failed: --failed-max-age applies"
    assert reasons["unknown"] == "not indexed, may have failed: --failed-max-age applies"


def test_max_sessions_removes_the_oldest_first_and_failed_ones_last() -> None:
    sessions = [candidate("a", 9, failed=True), candidate("b", 8), candidate("c", 7), candidate("d", 6)]
    assert removed(sessions, RetentionPolicy(max_sessions=3)) == ["b"]
    assert removed(sessions, RetentionPolicy(max_sessions=1)) == ["b", "c", "d"]
    assert removed(sessions, RetentionPolicy(max_sessions=4)) == []


def test_max_bytes_removes_the_oldest_until_the_rest_fits() -> None:
    sessions = [candidate("a", 9, size=5), candidate("b", 8, size=50), candidate("c", 7, size=40)]
    assert removed(sessions, RetentionPolicy(max_bytes=95)) == []
    assert removed(sessions, RetentionPolicy(max_bytes=94)) == ["a"]
    assert removed(sessions, RetentionPolicy(max_bytes=40)) == ["a", "b"]


@pytest.mark.parametrize(
    "other",
    [{"state": "running"}, {"pinned": True}, {"last_write": NOW - 60, "idle_after": DAY_S}],
    ids=["running", "pinned", "recently written"],
)
def test_protected_sessions_count_but_are_not_removed(other: dict[str, object]) -> None:
    sessions = [candidate("protected", 90, **other), candidate("removed", 89)]
    policy = RetentionPolicy(max_age=DAY_S, failed_max_age=DAY_S, max_sessions=1, max_bytes=1)
    assert removed(sessions, policy) == ["removed"]


def ref(cluster: str, session: str = OLD, owner: str | None = None) -> SessionRef:
    return SessionRef("ns", cluster, session, "rayjob" if owner else None, owner)


def visible(location: StoreLocation) -> set[str]:
    async def work(store: object) -> set[str]:
        entries = await SessionCatalog(store, location.layout, 1.0).entries()  # type: ignore[arg-type]
        return {entry.ref.cluster for entry in entries}

    return location.run(work)


def test_dry_run_lists_sessions_and_removes_nothing(location: StoreLocation) -> None:
    location.put(session_objects(location.layout, ref("c")))
    before = location.objects()
    done = rayhistory(location, "retention", "--max-age", "30d", "--vanished-after", "1ms")
    assert done.returncode == 0, done.stderr
    assert f"ns/c/{OLD}  would remove, 6." in done.stdout
    assert "(not indexed, may have failed)" in done.stdout
    assert "would remove 1 of 1 session, 6." in done.stdout
    assert "add --yes" in done.stdout
    assert location.objects() == before


def test_age_is_counted_by_the_clock_of_the_store(tmp_path: Path) -> None:
    """The node's clock was years behind, and so are the session's name and its end record."""
    location = archived_sessions.directory(tmp_path)
    objects = session_objects(location.layout, ref("c"))
    end = EndRecord(ended_ms=1_735_800_000_000)
    location.put(objects | {location.layout.end_key(ref("c")): msgspec.json.encode(end)})
    done = rayhistory(location, "retention", "--max-age", "30d", "--failed-max-age", "30d", *REMOVE_NOW)
    assert done.returncode == 0, done.stderr
    assert "removing 0 of 1 session" in done.stdout
    assert location.objects().keys() >= objects.keys()


def test_session_of_a_node_whose_clock_was_ahead_is_removed(tmp_path: Path) -> None:
    """Its name has a time in the future, and the store has had it for 40 days."""
    location = archived_sessions.directory(tmp_path)
    location.put(session_objects(location.layout, ref("c", "session_2099-01-01_00-00-00_000000_1")))
    stored = time.time() - 40 * DAY_S
    for path in tmp_path.rglob("*"):
        os.utime(path, (stored, stored))
    done = rayhistory(location, "retention", "--max-age", "30d", "--failed-max-age", "30d", *REMOVE_NOW)
    assert done.returncode == 0, done.stderr
    assert "removing 1 of 1 session" in done.stdout
    assert location.objects() == {}


def test_failed_max_age_alone_is_a_limit(tmp_path: Path) -> None:
    """It applies to sessions without an index, too."""
    location = archived_sessions.directory(tmp_path)
    location.put(session_objects(location.layout, ref("c")))
    done = rayhistory(location, "retention", "--failed-max-age", "30d", *REMOVE_NOW)
    assert done.returncode == 0, done.stderr
    assert location.objects() == {}


def test_removal_deletes_all_objects_of_a_session_and_no_others(location: StoreLocation) -> None:
    """Objects of clusters with the same prefix, other namespaces, other sessions and other programs stay."""
    removed = session_objects(location.layout, ref("c")) | session_objects(
        location.layout, ref("owned", owner="nightly")
    )
    young = f"session_{time.strftime('%Y-%m-%d')}_00-00-00_000000_1"
    kept = {
        **session_objects(location.layout, ref("c", young), ended_ms=int(time.time() * 1000)),
        **session_objects(location.layout, SessionRef("other", "c", OLD)),
        **session_objects(location.layout, ref("c-2", young), ended_ms=int(time.time() * 1000)),
        "/".join(filter(None, (location.layout.root, "other/program"))): b"x",
    }
    location.put(removed | kept)
    done = rayhistory(location, "retention", "--max-age", "30d", "--namespace", "ns", *REMOVE_NOW)
    assert done.returncode == 0, done.stderr
    assert "removing 2 of 4 sessions" in done.stdout
    assert location.objects() == kept


def test_pinned_and_running_sessions_are_kept(location: StoreLocation) -> None:
    location.put(session_objects(location.layout, ref("pinned")))
    location.put(session_objects(location.layout, ref("running"), ended_ms=None))
    assert rayhistory(location, "pin", "ns/pinned").returncode == 0
    before = location.objects()
    done = rayhistory(location, "retention", "--max-age", "30d", "--max-sessions", "1", "--yes")
    assert done.returncode == 0, done.stderr
    assert "keep: pinned" in done.stdout
    assert "keep: running" in done.stdout
    assert location.objects() == before
    assert rayhistory(location, "unpin", "ns/pinned").returncode == 0
    assert rayhistory(location, "retention", "--max-age", "30d", *REMOVE_NOW).returncode == 0
    assert visible(location) == {"running"}


def test_session_of_kuberays_collector_is_kept_while_it_is_written_to(tmp_path: Path) -> None:
    """KubeRay's collector writes no heartbeat."""
    location = archived_sessions.directory(tmp_path)
    location.put(session_objects(location.layout, ref("c"), ours=False))
    done = rayhistory(location, "retention", "--max-age", "30d", "--yes")
    assert "a collector may still upload (kept for 24.0 hours after the last write)" in done.stdout
    assert visible(location) == {"c"}
    for path in tmp_path.rglob("*"):
        os.utime(path, (1_735_800_000, 1_735_800_000))
    assert rayhistory(location, "retention", "--max-age", "30d", "--yes").returncode == 0
    assert location.objects() == {}


def test_ended_session_is_kept_until_its_collectors_cannot_upload_any_more(tmp_path: Path) -> None:
    """The head's collector writes the end record. Those of other nodes may still upload."""
    location = archived_sessions.directory(tmp_path)
    location.put(session_objects(location.layout, ref("c")))
    done = rayhistory(location, "retention", "--max-age", "30d", "--yes")
    assert " ago, a collector may still upload (kept for 120 s after the last write)" in done.stdout
    assert visible(location) == {"c"}
    for path in tmp_path.rglob("*"):
        os.utime(path, (time.time() - 121, time.time() - 121))
    assert rayhistory(location, "retention", "--max-sessions", "1", "--max-bytes", "1", "--yes").returncode == 0
    assert visible(location) == set()


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 11, 17])
def test_next_run_finishes_a_killed_removal(tmp_path: Path, calls: int) -> None:
    """Until then the session is hidden, unless none of it was deleted."""
    location = archived_sessions.directory(tmp_path / "store")
    objects = session_objects(location.layout, ref("owned", owner="nightly"))
    location.put(objects)
    killed = rayhistory(
        location, "retention", "--max-age", "30d", *REMOVE_NOW,
        at_start=killed_at(tmp_path / "x", CLOCK_WRITES + calls),
    )  # fmt: skip
    assert was_killed(killed)
    remaining = location.objects()
    assert visible(location) == (set() if calls > 1 else {"owned"})
    assert calls > 2 or set(objects) <= set(remaining)
    done = rayhistory(location, "retention", "--max-age", "30d", *REMOVE_NOW)
    assert done.returncode == 0, done.stderr
    assert location.objects() == {}


def test_next_run_finishes_a_killed_removal_on_s3(tmp_path: Path, seaweed: str) -> None:
    location = archived_sessions.bucket(seaweed)
    location.put(session_objects(location.layout, ref("owned", owner="nightly")))
    for number, calls in enumerate((1, 2, 3, 5, 7)):
        at_start = killed_at(tmp_path / str(number), calls)
        assert was_killed(rayhistory(location, "retention", "--max-age", "30d", *REMOVE_NOW, at_start=at_start))
    assert visible(location) == set()
    assert rayhistory(location, "retention", "--max-age", "30d", *REMOVE_NOW).returncode == 0
    assert location.objects() == {}


def test_concurrent_runs_do_the_work_of_one(location: StoreLocation) -> None:
    refs = [ref("c", OLD.replace("01-02", f"01-{day:02}")) for day in range(2, 8)]
    for session in refs:
        location.put(session_objects(location.layout, session))
    runs = [
        archived_sessions.start_rayhistory(location, "retention", "--max-sessions", "2", *REMOVE_NOW) for _ in range(2)
    ]
    for run in runs:
        out, err = run.communicate(timeout=300)
        assert run.returncode == 0, out + err
    kept = {key: data for session in refs[-2:] for key, data in session_objects(location.layout, session).items()}
    assert location.objects() == kept


def test_session_being_removed_cannot_be_pinned(tmp_path: Path) -> None:
    location = archived_sessions.directory(tmp_path)
    location.put({location.layout.tombstone_key(ref("c")): b"{}"} | session_objects(location.layout, ref("c")))
    done = rayhistory(location, "pin", "ns/c")
    assert done.returncode == 2
    assert "no session 'ns/c'" in done.stderr

    async def work(store: LocalStore) -> None:
        with pytest.raises(Exception, match="is being removed"):
            await pins.pin(store, location.layout, ref("c"))

    asyncio.run(work(LocalStore(tmp_path)))
    assert location.layout.pin_key(ref("c")) not in location.objects()


def test_for_each_stops_at_the_first_failure() -> None:
    done = []

    async def work(item: str) -> None:
        await asyncio.sleep(0)
        if item == "3":
            raise OSError(item)
        done.append(item)

    with pytest.raises(OSError, match="3"):
        asyncio.run(for_each(map(str, range(1000)), work, 4))
    assert len(done) < 10


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["retention"], "set a limit"),
        (["retention", "--max-age", "soon"], "'soon': use hours, days or weeks"),
        (["retention", "--max-sessions", "0"], "use a whole number above 0"),
        (["retention", "--max-bytes", "much"], "use a size such as"),
        (["retention", "--namespace", "A_b", "--max-age", "1d"], "use lower-case"),
        (["pin", "unknown"], "no session 'unknown' in the store"),
        (["unpin"], "the following arguments are required: SESSION"),
    ],
)
def test_invalid_arguments_are_one_line_errors(tmp_path: Path, argv: list[str], error: str) -> None:
    done = rayhistory(archived_sessions.directory(tmp_path), *argv)
    assert done.returncode == 2
    assert error in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
