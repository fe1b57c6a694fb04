"""The spool: acknowledged events stay on disk until they are uploaded, whatever fails."""

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.collector.spool.block import Block, Damage, compress_block
from rayhistory.collector.spool.private_directory import PrivateDirectory
from rayhistory.collector.spool.segment import Segment
from rayhistory.collector.spool.spool import Spool, SpoolError
from rayhistory.errors import UsageError
from support.spool_segments import read_lines

SESSION = "session_2026-11-15_19-18-08_055078_15551"
OTHER = "session_2026-11-15_20-00-00_000000_1"
LINE = b'{"a":1}\n'
BLOCK = Block("node_events", 1, LINE)
MEMBER = compress_block(BLOCK)


def contents(directory: Path) -> list[bytes]:
    """Return the lines of each segment."""
    return [b"".join(line for _, line in read_lines(path, Damage())) for path in sorted(directory.rglob("*.wal"))]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def with_spool(
    directory: Path,
    scenario: Callable[[Spool], Awaitable[None]],
    *,
    budget: int = 10**6,
    segment_size: int = 10**5,
    segment_age: float = 300.0,
) -> None:
    async def main() -> None:
        spool = Spool(PrivateDirectory(directory), budget=budget, segment_size=segment_size, segment_age=segment_age)
        await spool.open()
        await scenario(spool)
        await spool.close()

    asyncio.run(main())


def test_concurrent_posts_share_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: a hundred concurrent posts need a few syncs, and each is on disk when it returns."""
    syncs: list[int] = []
    real = os.fdatasync

    def count(descriptor: int) -> None:
        syncs.append(1)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", count)

    async def scenario(spool: Spool) -> None:
        await asyncio.gather(
            *(spool.append({SESSION: [Block("node_events", 1, b'{"n":%d}\n' % n)]}) for n in range(100))
        )
        (content,) = contents(tmp_path)
        assert len(content.splitlines()) == 100

    with_spool(tmp_path, scenario)
    assert len(syncs) < 10


def test_each_session_has_its_own_segment(tmp_path: Path) -> None:
    """Interleaved events of two sessions do not close each other's segments."""

    async def scenario(spool: Spool) -> None:
        for _ in range(3):
            await spool.append({SESSION: [BLOCK], OTHER: [BLOCK]})
        assert contents(tmp_path / SESSION) == contents(tmp_path / OTHER) == [LINE * 3]

    with_spool(tmp_path, scenario)


def read(path: Path) -> tuple[list[bytes], Damage]:
    damage = Damage()
    return [line for _, line in read_lines(path, damage)], damage


def test_torn_write_is_skipped_and_everything_before_it_is_read(tmp_path: Path) -> None:
    """A power failure may cut off the last write at any byte."""
    path = tmp_path / "1.wal"
    for cut in range(1, len(MEMBER)):
        path.write_bytes(MEMBER * 3 + MEMBER[:-cut])
        lines, damage = read(path)
        assert (lines, damage.torn, damage.lost) == ([LINE] * 3, 1, 0)


def test_torn_write_of_two_members_is_no_loss(tmp_path: Path) -> None:
    """The first member is on disk only in part, followed by the start of the second."""
    path = tmp_path / "1.wal"
    for tail in (MEMBER[:30] + MEMBER[:20], MEMBER[:30] + MEMBER[:-9]):
        path.write_bytes(MEMBER * 2 + tail)
        lines, damage = read(path)
        assert (lines, damage.torn, damage.lost) == ([LINE] * 2, 1, 0)


def test_zeros_at_the_end_count_as_a_torn_write(tmp_path: Path) -> None:
    """Some file systems extend a file before its data is there."""
    path = tmp_path / "1.wal"
    for tail in (b"\0" * 5000, MEMBER[:30] + b"\0" * (len(MEMBER) - 30)):
        path.write_bytes(MEMBER * 2 + tail)
        lines, damage = read(path)
        assert (lines, damage.torn, damage.lost) == ([LINE] * 2, 1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_only_the_damaged_member_is_lost(tmp_path: Path, seed: int) -> None:
    """Any bytes in the middle of a file may be overwritten."""
    rng = random.Random(seed)
    path = tmp_path / "1.wal"
    good = [compress_block(Block("node_events", 1, b'{"n":%d}\n' % n)) for n in range(9)]
    data = bytearray(b"".join(good))
    begin = sum(map(len, good[:4]))
    hit = begin + rng.randrange(len(good[4]))
    garbage = rng.randbytes(min(rng.randrange(1, 30), begin + len(good[4]) - hit))
    data[hit : hit + len(garbage)] = garbage
    path.write_bytes(data)
    lines, damage = read(path)
    assert [line for line in lines if b'"n":4}' not in line] == [b'{"n":%d}\n' % n for n in range(9) if n != 4]
    assert damage.torn == 0
    assert damage.lost == (0 if b'{"n":4}\n' in lines else 1)


def test_garbage_between_members_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "1.wal"
    path.write_bytes(MEMBER + b"x" * 3_000_000 + MEMBER + b"\x1f\x8b\x08" + MEMBER)
    lines, damage = read(path)
    assert (lines, damage.torn, damage.lost) == ([LINE] * 3, 0, 2)
    assert all(len(sample) <= 65536 for sample in damage.samples)


def test_a_category_never_becomes_a_path(tmp_path: Path) -> None:
    """Files in the spool are not trusted."""
    path = tmp_path / "1.wal"
    path.write_bytes(compress_block(Block("../../etc", 1, LINE)) + MEMBER)
    lines, damage = read(path)
    assert (lines, damage.lost) == ([LINE], 1)


def test_segments_of_an_earlier_process_are_found(tmp_path: Path) -> None:
    """With or without a node id; they are never appended to."""
    folder = tmp_path / SESSION
    folder.mkdir()
    (folder / "17.wal").write_bytes(MEMBER)
    (folder / "18-abc.wal").write_bytes(MEMBER)

    async def scenario(spool: Spool) -> None:
        assert [(each.created_ns, each.node) for each in spool.segments()] == [(17, None), (18, "abc")]
        assert spool.bytes == 2 * len(MEMBER)
        assert spool.sessions_without_node() == {SESSION}
        await spool.assign_node(SESSION, "def")
        assert (folder / "17-def.wal").exists()
        assert (folder / "18-abc.wal").exists()
        await spool.append({SESSION: [BLOCK]})
        assert len(list(folder.glob("*-def.wal"))) == 2

    with_spool(tmp_path, scenario)


def test_unexpected_files_in_the_spool_do_not_prevent_the_start(tmp_path: Path) -> None:
    """Files in place of directories, unknown names, and a directory named like a segment."""
    (tmp_path / SESSION).mkdir()
    (tmp_path / SESSION / "x.wal").write_bytes(b"?")
    (tmp_path / SESSION / "5.parts").mkdir()
    (tmp_path / SESSION / "6.wal").mkdir()
    (tmp_path / "counts.json").write_bytes(b"\xff not JSON")
    (tmp_path / OTHER).write_bytes(b"a file")
    (tmp_path / "..wal").write_bytes(b"?")

    async def scenario(spool: Spool) -> None:
        assert spool.segments() == []
        await spool.append({SESSION: [BLOCK]})

    with_spool(tmp_path, scenario)


def test_segments_are_closed_by_size_and_by_age(tmp_path: Path) -> None:
    """An empty segment is never left."""

    async def by_size(spool: Spool) -> None:
        for _ in range(10):
            await spool.append({SESSION: [BLOCK]})
        assert [each.raw_size for each in spool.segments()] == [3 * len(LINE)] * 3

    async def by_age(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
        await spool.rotate_due()
        assert len(spool.segments()) == 1
        await spool.rotate_due()
        assert len(spool.segments()) == 1

    with_spool(tmp_path / "size", by_size, segment_size=3 * len(LINE))
    with_spool(tmp_path / "age", by_age, segment_age=0.0)


def test_segment_names_are_unique_when_the_clock_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is part of the key in the store."""
    monkeypatch.setattr("time.time_ns", lambda: 1000)

    async def scenario(spool: Spool) -> None:
        for _ in range(3):
            await spool.append({SESSION: [BLOCK]})
            await spool.rotate()
        assert [each.created_ns for each in spool.segments()] == [1000, 1001, 1002]

    with_spool(tmp_path, scenario)


def test_failing_disk_is_an_error_until_it_works_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unsynced write is not acknowledged, and the next post starts a new segment."""

    async def scenario(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})

        def fails(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fails)
            with pytest.raises(SpoolError, match="No space left"):
                await spool.append({SESSION: [Block("node_events", 1, b'{"a":2}\n')]})
            assert not spool.writable
        await spool.append({SESSION: [Block("node_events", 1, b'{"a":3}\n')]})
        assert spool.writable
        assert contents(tmp_path) == [LINE, b'{"a":3}\n']

    with_spool(tmp_path, scenario)


def test_number_of_open_segments_is_bounded(tmp_path: Path) -> None:
    """A client that invents session names must not scenario up file descriptors."""

    async def scenario(spool: Spool) -> None:
        for n in range(50):
            await spool.append({f"session_2026-11-15_19-18-08_055078_{n}": [BLOCK]})
        assert len(spool.segments()) >= 50 - 16

    with_spool(tmp_path, scenario)


def test_second_process_cannot_open_the_spool(tmp_path: Path) -> None:
    """The lock ends with its process, so a crash leaves no lock behind."""

    async def scenario(_: Spool) -> None:
        with pytest.raises(UsageError, match="another collector"):
            await Spool(PrivateDirectory(tmp_path), budget=1, segment_size=1, segment_age=1).open()

    with_spool(tmp_path, scenario)
    with_spool(tmp_path, lambda spool: spool.rotate())


def test_files_with_other_names_are_not_segments(tmp_path: Path) -> None:
    (tmp_path / "7-n.wal").write_bytes(b"")
    assert Segment.find(PrivateDirectory(tmp_path), "7-n.wal")
    assert Segment.find(PrivateDirectory(tmp_path), "seven.wal") is None


def test_segment_names_increase_when_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a restart with an empty spool."""
    names: list[int] = []

    async def scenario(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
        await spool.rotate()
        (segment,) = spool.segments()
        names.append(segment.created_ns)
        await spool.discard(segment, 1)

    for now in (5000, 3000, 1000):
        monkeypatch.setattr("time.time_ns", lambda now=now: now)
        with_spool(tmp_path, scenario)
    assert names == [5000, 5001, 5002]


def test_counts_survive_restarts(tmp_path: Path) -> None:
    """The seal has the counts of all processes that collected the session."""

    async def first(spool: Spool) -> None:
        await spool.append({SESSION: [Block("node_events", 2, b"{}\n{}\n"), Block("snapshots", 1, b"{}\n")]})
        await spool.rotate()
        await spool.discard(spool.segments()[0], 2)
        await spool.append({SESSION: [BLOCK]})
        await spool.record_totals(quarantined=3, lost=1)
        assert spool.counts(SESSION) == (3, 2, 3, 1, 0)

    async def second(spool: Spool) -> None:
        assert spool.counts(SESSION) == (3, 2, 3, 1, 0)
        await spool.append({SESSION: [BLOCK]})
        await spool.record_totals(quarantined=2, lost=0)
        assert spool.counts(SESSION) == (4, 2, 5, 1, 0)

    with_spool(tmp_path, first)
    with_spool(tmp_path, second)


def test_uploaded_segment_that_still_exists_is_not_counted_twice(tmp_path: Path) -> None:
    """The process was killed between the entry in the ledger and the deletion."""

    async def first(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
        await spool.rotate()
        (segment,) = spool.segments()
        data, path = segment.path.read_bytes(), segment.path
        await spool.discard(segment, 1)
        path.parent.mkdir()
        path.write_bytes(data)

    async def second(spool: Spool) -> None:
        assert spool.segments() == []
        assert spool.counts(SESSION) == (1, 1, 0, 0, 0)

    with_spool(tmp_path, first)
    with_spool(tmp_path, second)


def test_spool_is_opened_as_soon_as_its_volume_is_writable(tmp_path: Path) -> None:
    """The volume may be mounted late, or read-only at first."""

    async def main() -> None:
        (tmp_path / "volume").write_text("not a directory")
        spool = Spool(
            PrivateDirectory(tmp_path / "volume" / "spool"), budget=10**6, segment_size=10**5, segment_age=300
        )
        with pytest.raises(OSError, match="volume"):
            await spool.open()
        with pytest.raises(SpoolError):
            await spool.append({SESSION: [BLOCK]})
        assert not spool.writable
        (tmp_path / "volume").unlink()
        await spool.append({SESSION: [BLOCK]})
        assert spool.writable
        await spool.close()

    asyncio.run(main())


def test_failed_open_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt can lock the spool, and finds all segments."""
    (tmp_path / SESSION).mkdir()
    (tmp_path / SESSION / "17-abc.wal").write_bytes(MEMBER)

    async def main() -> None:
        spool = Spool(PrivateDirectory(tmp_path), budget=10**6, segment_size=10**5, segment_age=300)

        def fails(_: Path) -> list[str]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", fails)
            with pytest.raises(OSError, match="Too many open files"):
                await spool.open()
        await spool.append({SESSION: [BLOCK]})
        assert [each.created_ns for each in spool.segments()] == [17]
        await spool.close()

    asyncio.run(main())


def test_failing_directory_sync_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither open nor empty files are left, however often a post fails."""

    async def scenario(spool: Spool) -> None:
        def fails(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        (tmp_path / SESSION).mkdir()
        before = open_files()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            for _ in range(20):
                with pytest.raises(SpoolError, match="Input/output"):
                    await spool.append({SESSION: [BLOCK]})
        assert open_files() < before + 10  # after twenty posts
        assert not contents(tmp_path)
        await spool.append({SESSION: [BLOCK]})
        assert contents(tmp_path) == [LINE]

    with_spool(tmp_path, scenario)


def test_ledger_is_complete_after_partial_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearly full disk accepts only a part of each write. A truncated ledger lost all counts."""
    write = os.write

    async def first(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
        await spool.rotate()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
            await spool.discard(spool.segments()[0], 1)

    async def second(spool: Spool) -> None:
        assert spool.counts(SESSION) == (1, 1, 0, 0, 0)

    with_spool(tmp_path, first)
    with_spool(tmp_path, second)


def test_failing_ledger_write_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts stay right in memory, and are written with the next ones."""

    async def first(spool: Spool) -> None:
        def fails(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        await spool.append({SESSION: [BLOCK]})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            await spool.record_totals(quarantined=3, lost=1)
        assert spool.counts(SESSION) == (1, 0, 3, 1, 0)
        await spool.rotate()
        await spool.discard(spool.segments()[0], 1)

    async def second(spool: Spool) -> None:
        assert spool.counts(SESSION) == (1, 1, 3, 1, 0)

    with_spool(tmp_path, first)
    with_spool(tmp_path, second)


def test_session_stays_known_if_the_ledger_could_not_be_written_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure was forgotten, and a restart quarantined the session's next events as those of an unknown one."""

    def fails(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def first(spool: Spool) -> None:
        spool.reopen(SESSION)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            await spool.record_totals(quarantined=0, lost=0)
        await spool.record_totals(quarantined=0, lost=0)

    async def second(spool: Spool) -> None:
        assert spool.has_seen(SESSION)

    with_spool(tmp_path, first)
    with_spool(tmp_path, second)


def test_session_found_before_the_spool_could_be_opened_stays_known(tmp_path: Path) -> None:
    """Opening read the ledger of earlier processes in place of what was known meanwhile."""

    async def first(spool: Spool) -> None:
        await spool.append({OTHER: [BLOCK]})
        await spool.rotate()
        await spool.discard(spool.segments()[0], 1)
        await spool.mark_sealed(OTHER)

    async def second() -> None:
        spool = Spool(PrivateDirectory(tmp_path), budget=10**6, segment_size=10**5, segment_age=300.0)
        spool.reopen(SESSION)
        spool.reopen(OTHER)
        await spool.open()
        assert spool.has_seen(SESSION)
        assert set(spool.open_sessions()) == {SESSION, OTHER}
        assert spool.counts(OTHER) == (1, 1, 0, 0, 0)
        await spool.close()

    with_spool(tmp_path, first)
    asyncio.run(second())


def test_segment_whose_close_fails_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledged events are synced already, and the segment is uploaded as usual."""
    close = os.close

    def fails(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def scenario(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
        with monkeypatch.context() as patch:
            patch.setattr(os, "close", fails)
            await spool.rotate()
        assert [segment.events for segment in spool.segments()] == [1]

    with_spool(tmp_path, scenario)


def test_uploaded_segment_that_cannot_be_deleted_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not uploaded again, and the next process deletes it."""

    def fails(path: str, **_: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    async def first(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
        await spool.rotate()
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", fails)
            await spool.discard(spool.segments()[0], 1)
        assert spool.segments() == []
        assert contents(tmp_path) == [LINE]

    async def second(spool: Spool) -> None:
        assert contents(tmp_path) == []
        assert spool.counts(SESSION) == (1, 1, 0, 0, 0)

    with_spool(tmp_path, first)
    with_spool(tmp_path, second)


def test_events_of_too_many_jobs_are_stored_as_node_events(tmp_path: Path) -> None:
    """Each category of a segment becomes an object, and a client invents as many jobs as it likes."""
    blocks = [Block(f"job_events/{job:08x}", 1, b'{"job":%d}\n' % job) for job in range(300)]

    async def scenario(spool: Spool) -> None:
        await spool.append({SESSION: blocks})

    with_spool(tmp_path, scenario)
    (segment,) = tmp_path.rglob("*.wal")
    lines = list(read_lines(segment, Damage()))
    assert sorted(line for _, line in lines) == sorted(block.data for block in blocks)
    assert len({category for category, _ in lines}) <= 257
    assert "node_events" in {category for category, _ in lines}
