"""Which sessions go, and that nothing else ever does: whatever interrupts it, and however many do it at once."""

import asyncio
import os
import time
from pathlib import Path

import pytest

import kept
from kept import OLD, Place, killed_at, rayhistory, session_objects, was_killed
from rayhistory.keeping import pins
from rayhistory.keeping.objects import each
from rayhistory.keeping.retention import DAY, Facts, Rules, decide
from rayhistory.layout import SessionRef
from rayhistory.server.catalogue import Catalogue
from rayhistory.storage.local import LocalStore

NOW = 1_800_000_000.0
AT_ONCE = ("--vanished-after", "1ms", "--yes")


def facts(name: str, days: float, **other: object) -> Facts:
    """A session that ended so many days ago."""
    known = {"state": "ended", "size": 10, "written": 0.0, "failed": False, **other}
    moment = NOW - days * DAY
    return Facts(SessionRef("ns", name, OLD), started=moment, last=moment, **known)  # type: ignore[arg-type]


def going(sessions: list[Facts], rules: Rules) -> list[str]:
    return [verdict.facts.ref.cluster for verdict in decide(sessions, rules, NOW) if verdict.goes]


def test_sessions_go_by_age_and_failed_ones_later() -> None:
    """One that nobody has indexed may have failed."""
    sessions = [
        facts("fresh", 1), facts("old", 31), facts("failed", 31, failed=True), facts("unknown", 31, failed=None),
        facts("long-failed", 61, failed=True), facts("long-unknown", 61, failed=None),
    ]  # fmt: skip
    rules = Rules(max_age=30 * DAY, failed_max_age=60 * DAY)
    assert going(sessions, rules) == ["old", "long-failed", "long-unknown"]
    why = {verdict.facts.ref.cluster: verdict.why for verdict in decide(sessions, rules, NOW)}
    assert why["failed"] == "kept longer: it failed"
    assert why["unknown"] == "kept longer: it is not indexed and may have failed"


def test_the_oldest_go_by_number_and_failed_ones_last() -> None:
    sessions = [facts("a", 9, failed=True), facts("b", 8), facts("c", 7), facts("d", 6)]
    assert going(sessions, Rules(max_sessions=3)) == ["b"]
    assert going(sessions, Rules(max_sessions=1)) == ["b", "c", "d"]
    assert going(sessions, Rules(max_sessions=4)) == []


def test_the_oldest_go_by_bytes_until_the_rest_fits() -> None:
    sessions = [facts("a", 9, size=5), facts("b", 8, size=50), facts("c", 7, size=40)]
    assert going(sessions, Rules(max_bytes=95)) == []
    assert going(sessions, Rules(max_bytes=94)) == ["a"]
    assert going(sessions, Rules(max_bytes=40)) == ["a", "b"]


@pytest.mark.parametrize(
    "other",
    [{"state": "running"}, {"pinned": True}, {"written": NOW - 60, "quiet_after": DAY}],
    ids=["running", "pinned", "lately written"],
)
def test_some_never_go(other: dict[str, object]) -> None:
    """They count, though: a limit is about all that there is."""
    sessions = [facts("stays", 90, **other), facts("goes", 89)]
    rules = Rules(max_age=DAY, failed_max_age=DAY, max_sessions=1, max_bytes=1)
    assert going(sessions, rules) == ["goes"]


def ref(cluster: str, session: str = OLD, owner: str | None = None) -> SessionRef:
    return SessionRef("ns", cluster, session, "rayjob" if owner else None, owner)


def shown(place: Place) -> set[str]:
    async def work(store: object) -> set[str]:
        entries = await Catalogue(store, place.layout, 1.0).entries()  # type: ignore[arg-type]
        return {entry.ref.cluster for entry in entries}

    return place.run(work)


def test_what_would_go_is_shown_and_nothing_is_touched(place: Place) -> None:
    place.put(session_objects(place.layout, ref("c")))
    before = place.objects()
    done = rayhistory(place, "retention", "--max-age", "30d", "--vanished-after", "1ms")
    assert done.returncode == 0, done.stderr
    assert f"ns/c/{OLD}  would go, 6." in done.stdout
    assert "though it is not indexed and may have failed" in done.stdout
    assert "1 of 1 sessions would go, 6." in done.stdout
    assert "add --yes" in done.stdout
    assert place.objects() == before


def test_failed_sessions_can_have_a_limit_of_their_own(tmp_path: Path) -> None:
    """Of one that was never indexed nobody knows, so it is meant too."""
    place = kept.directory(tmp_path)
    place.put(session_objects(place.layout, ref("c")))
    done = rayhistory(place, "retention", "--failed-max-age", "30d", *AT_ONCE)
    assert done.returncode == 0, done.stderr
    assert place.objects() == {}


def test_everything_of_a_session_goes_and_nothing_of_others(place: Place) -> None:
    """Names that begin alike, another namespace, another session of the cluster, things of others."""
    goes = session_objects(place.layout, ref("c")) | session_objects(place.layout, ref("owned", owner="nightly"))
    young = f"session_{time.strftime('%Y-%m-%d')}_00-00-00_000000_1"
    stays = {
        **session_objects(place.layout, ref("c", young), ended_ms=int(time.time() * 1000)),
        **session_objects(place.layout, SessionRef("other", "c", OLD)),
        **session_objects(place.layout, ref("c-2", young), ended_ms=int(time.time() * 1000)),
        "/".join(filter(None, (place.layout.root, "somebody/else"))): b"x",
    }
    place.put(goes | stays)
    done = rayhistory(place, "retention", "--max-age", "30d", "--namespace", "ns", *AT_ONCE)
    assert done.returncode == 0, done.stderr
    assert "2 of 4 sessions go" in done.stdout
    assert place.objects() == stays


def test_a_pinned_and_a_running_session_stay(place: Place) -> None:
    place.put(session_objects(place.layout, ref("pinned")))
    place.put(session_objects(place.layout, ref("runs"), ended_ms=None))
    assert rayhistory(place, "pin", "ns/pinned").returncode == 0
    before = place.objects()
    done = rayhistory(place, "retention", "--max-age", "30d", "--max-sessions", "1", "--yes")
    assert done.returncode == 0
    assert "stays: it is pinned" in done.stdout
    assert "stays: it runs" in done.stdout
    assert place.objects() == before
    assert rayhistory(place, "unpin", "ns/pinned").returncode == 0
    assert rayhistory(place, "retention", "--max-age", "30d", *AT_ONCE).returncode == 0
    assert shown(place) == {"runs"}


def test_a_session_of_kuberays_collector_stays_while_it_is_written_to(tmp_path: Path) -> None:
    """There is no sign of life but what is added."""
    place = kept.directory(tmp_path)
    place.put(session_objects(place.layout, ref("c"), ours=False))
    done = rayhistory(place, "retention", "--max-age", "30d", "--yes")
    assert "it may be running" in done.stdout
    assert shown(place) == {"c"}
    for path in tmp_path.rglob("*"):
        os.utime(path, (1_735_800_000, 1_735_800_000))
    assert rayhistory(place, "retention", "--max-age", "30d", "--yes").returncode == 0
    assert place.objects() == {}


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 11, 17])
def test_a_removal_that_is_killed_is_finished_by_the_next_run(tmp_path: Path, calls: int) -> None:
    """Between, the session is not shown, unless nothing of it is gone."""
    place = kept.directory(tmp_path / "store")
    whole = session_objects(place.layout, ref("owned", owner="nightly"))
    place.put(whole)
    killed = rayhistory(place, "retention", "--max-age", "30d", *AT_ONCE, at_start=killed_at(tmp_path / "x", calls))
    assert was_killed(killed)
    left = place.objects()
    assert shown(place) == (set() if calls > 1 else {"owned"})
    assert calls > 2 or set(whole) <= set(left)
    done = rayhistory(place, "retention", "--max-age", "30d", *AT_ONCE)
    assert done.returncode == 0, done.stderr
    assert place.objects() == {}


def test_a_removal_on_s3_that_is_killed_is_finished_by_the_next_run(tmp_path: Path, seaweed: str) -> None:
    place = kept.bucket(seaweed)
    place.put(session_objects(place.layout, ref("owned", owner="nightly")))
    for number, calls in enumerate((1, 2, 3, 5, 7)):
        at_start = killed_at(tmp_path / str(number), calls)
        assert was_killed(rayhistory(place, "retention", "--max-age", "30d", *AT_ONCE, at_start=at_start))
    assert shown(place) == set()
    assert rayhistory(place, "retention", "--max-age", "30d", *AT_ONCE).returncode == 0
    assert place.objects() == {}


def test_two_runs_at_once_do_what_one_would_do(place: Place) -> None:
    refs = [ref("c", OLD.replace("01-02", f"01-{day:02}")) for day in range(2, 8)]
    for each_ref in refs:
        place.put(session_objects(place.layout, each_ref))
    runs = [kept.begin(place, "retention", "--max-sessions", "2", *AT_ONCE) for _ in range(2)]
    for run in runs:
        out, err = run.communicate(timeout=300)
        assert run.returncode == 0, out + err
    left = {key: data for each_ref in refs[-2:] for key, data in session_objects(place.layout, each_ref).items()}
    assert place.objects() == left


def test_what_is_being_removed_cannot_be_pinned(tmp_path: Path) -> None:
    place = kept.directory(tmp_path)
    place.put({place.layout.tombstone_key(ref("c")): b"{}"} | session_objects(place.layout, ref("c")))
    done = rayhistory(place, "pin", "ns/c")
    assert done.returncode == 2
    assert "no session 'ns/c'" in done.stderr

    async def work(store: LocalStore) -> None:
        with pytest.raises(Exception, match="is being removed"):
            await pins.pin(store, place.layout, ref("c"))

    asyncio.run(work(LocalStore(tmp_path)))
    assert place.layout.pin_key(ref("c")) not in place.objects()


def test_work_on_many_ends_with_the_first_failure() -> None:
    done = []

    async def work(item: str) -> None:
        await asyncio.sleep(0)
        if item == "3":
            raise OSError(item)
        done.append(item)

    with pytest.raises(OSError, match="3"):
        asyncio.run(each(map(str, range(1000)), work, 4))
    assert len(done) < 10


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["retention"], "say what to keep"),
        (["retention", "--max-age", "soon"], "'soon': use an age such as 30d"),
        (["retention", "--max-sessions", "0"], "use a whole number above 0"),
        (["retention", "--max-bytes", "much"], "use a size such as"),
        (["retention", "--namespace", "A_b", "--max-age", "1d"], "use lower-case"),
        (["pin", "nobody"], "no session 'nobody' in the store"),
        (["unpin"], "the following arguments are required: SESSION"),
    ],
)
def test_a_wrong_call_is_one_line(tmp_path: Path, argv: list[str], complaint: str) -> None:
    done = rayhistory(kept.directory(tmp_path), *argv)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
