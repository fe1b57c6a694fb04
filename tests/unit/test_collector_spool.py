"""The write-ahead log: what was acknowledged is on disk, whatever happens next."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.collector.segment import Damage, Segment, records
from rayhistory.collector.spool import Spool, SpoolError
from rayhistory.errors import UsageError

SESSION = "session_2026-11-15_19-18-08_055078_15551"
OTHER = "session_2026-11-15_20-00-00_000000_1"
LINE = b'node_events {"a":1}\n'


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.rglob("*.wal"))]


def with_spool(
    directory: Path,
    use: Callable[[Spool], Awaitable[None]],
    *,
    budget: int = 10**6,
    segment_size: int = 10**5,
    segment_age: float = 300.0,
) -> None:
    async def session() -> None:
        spool = Spool(directory, budget=budget, segment_size=segment_size, segment_age=segment_age)
        await spool.open()
        await use(spool)
        await spool.shut()

    asyncio.run(session())


def test_concurrent_posts_share_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: a hundred posts at once cost a few syncs, and each is on disk when it returns."""
    syncs: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (syncs.append(1), real(descriptor)))

    async def use(spool: Spool) -> None:
        await asyncio.gather(*(spool.append({SESSION: b'node_events {"n":%d}\n' % n}) for n in range(100)))
        (content,) = contents(tmp_path)
        assert len(content.splitlines()) == 100

    with_spool(tmp_path, use)
    assert len(syncs) < 10


def test_each_session_has_its_own_segment(tmp_path: Path) -> None:
    """Interleaved sessions do not rotate each other."""

    async def use(spool: Spool) -> None:
        for _ in range(3):
            await spool.append({SESSION: LINE, OTHER: LINE})
        assert contents(tmp_path / SESSION) == contents(tmp_path / OTHER) == [LINE * 3]

    with_spool(tmp_path, use)


def test_a_torn_last_line_is_cut_and_everything_before_it_is_kept(tmp_path: Path) -> None:
    """The power failed in the middle of a write, at any byte of it."""
    for cut in range(1, len(LINE)):
        path = tmp_path / f"{cut}.wal"
        path.write_bytes(LINE * 3 + LINE[:-cut])
        damage = Damage()
        assert [event for _, event in records(path, damage)] == [b'{"a":1}\n'] * 3
        assert damage.torn == 1


def test_damaged_records_are_told_from_good_ones(tmp_path: Path) -> None:
    """Garbage and zeros in the middle of a file cost only themselves."""
    path = tmp_path / "1.wal"
    path.write_bytes(LINE + b"\0" * 50 + b"\n" + b"../../x {}\n" + b"node_events\n" + LINE + b"\0" * 100)
    damage = Damage()
    assert [category for category, _ in records(path, damage)] == ["node_events"] * 2
    assert (len(damage.lines), damage.torn) == (3, 1)


def test_what_an_earlier_process_left_is_found(tmp_path: Path) -> None:
    """Whole, named or not, and never appended to."""
    folder = tmp_path / SESSION
    folder.mkdir()
    (folder / "17.wal").write_bytes(LINE)
    (folder / "18-abc.wal").write_bytes(LINE)

    async def use(spool: Spool) -> None:
        assert [(each.created_ns, each.node) for each in spool.segments()] == [(17, None), (18, "abc")]
        assert spool.bytes == 2 * len(LINE)
        assert spool.waiting_for_node() == {SESSION}
        await spool.name_node(SESSION, "def")
        assert (folder / "17-def.wal").exists()
        assert (folder / "18-abc.wal").exists()
        await spool.append({SESSION: LINE})
        assert len(list(folder.glob("*-def.wal"))) == 2

    with_spool(tmp_path, use)


def test_strange_things_in_the_spool_do_not_stop_the_start(tmp_path: Path) -> None:
    """Files where directories should be, names of others, a directory named as a segment."""
    (tmp_path / SESSION).mkdir()
    (tmp_path / SESSION / "x.wal").write_bytes(b"?")
    (tmp_path / SESSION / "5.parts").mkdir()
    (tmp_path / OTHER).write_bytes(b"a file")
    (tmp_path / "..wal").write_bytes(b"?")

    async def use(spool: Spool) -> None:
        assert spool.segments() == []
        await spool.append({SESSION: LINE})

    with_spool(tmp_path, use)


def test_segments_are_closed_by_size_and_by_age(tmp_path: Path) -> None:
    """And an empty one never exists."""

    async def by_size(spool: Spool) -> None:
        for _ in range(10):
            await spool.append({SESSION: LINE})
        assert [each.size for each in spool.segments()] == [3 * len(LINE)] * 3

    async def by_age(spool: Spool) -> None:
        await spool.append({SESSION: LINE})
        await spool.rotate_due()
        assert len(spool.segments()) == 1
        await spool.rotate_due()
        assert len(spool.segments()) == 1

    with_spool(tmp_path / "size", by_size, segment_size=3 * len(LINE))
    with_spool(tmp_path / "age", by_age, segment_age=0.0)


def test_names_of_segments_never_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when the clock stands still: the name is the key in the store."""
    monkeypatch.setattr("time.time_ns", lambda: 1000)

    async def use(spool: Spool) -> None:
        for _ in range(3):
            await spool.append({SESSION: LINE})
            await spool.rotate()
        assert [each.created_ns for each in spool.segments()] == [1000, 1001, 1002]

    with_spool(tmp_path, use)


def test_a_failing_disk_refuses_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not synced was not acknowledged; the next post begins a new segment."""

    async def use(spool: Spool) -> None:
        await spool.append({SESSION: LINE})

        def fails(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fails)
            with pytest.raises(SpoolError, match="No space left"):
                await spool.append({SESSION: b'node_events {"a":2}\n'})
            assert not spool.writable
        await spool.append({SESSION: b'node_events {"a":3}\n'})
        assert spool.writable
        assert contents(tmp_path) == [LINE, b'node_events {"a":3}\n']

    with_spool(tmp_path, use)


def test_sessions_without_end_do_not_hold_files_open(tmp_path: Path) -> None:
    """Somebody's invented session names cost no descriptors."""

    async def use(spool: Spool) -> None:
        for n in range(50):
            await spool.append({f"session_2026-11-15_19-18-08_055078_{n}": LINE})
        assert len(spool.segments()) >= 50 - 16

    with_spool(tmp_path, use)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """The lock goes with the process, so that a crash leaves none behind."""

    async def use(_: Spool) -> None:
        with pytest.raises(UsageError, match="another collector"):
            await Spool(tmp_path, budget=1, segment_size=1, segment_age=1).open()

    with_spool(tmp_path, use)
    with_spool(tmp_path, lambda spool: spool.rotate())


def test_a_name_that_is_not_a_segments_is_none(tmp_path: Path) -> None:
    """Only our own names are read."""
    (tmp_path / "7-n.wal").write_bytes(b"")
    assert Segment.found(tmp_path / "7-n.wal")
    assert Segment.found(tmp_path / "seven.wal") is None
