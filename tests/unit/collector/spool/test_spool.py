"""The write-ahead log: what was acknowledged is on disk, whatever happens next."""

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rayhistory.collector.block import Block, Damage, pack
from rayhistory.collector.segment import Segment, records
from rayhistory.collector.spool import Spool, SpoolError
from rayhistory.errors import UsageError

SESSION = "session_2026-11-15_19-18-08_055078_15551"
OTHER = "session_2026-11-15_20-00-00_000000_1"
LINE = b'{"a":1}\n'
BLOCK = Block("node_events", 1, LINE)
PACKED = pack(BLOCK)


def contents(directory: Path) -> list[bytes]:
    """The lines of each segment."""
    return [b"".join(line for _, line in records(path, Damage())) for path in sorted(directory.rglob("*.wal"))]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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
        await asyncio.gather(
            *(spool.append({SESSION: [Block("node_events", 1, b'{"n":%d}\n' % n)]}) for n in range(100))
        )
        (content,) = contents(tmp_path)
        assert len(content.splitlines()) == 100

    with_spool(tmp_path, use)
    assert len(syncs) < 10


def test_each_session_has_its_own_segment(tmp_path: Path) -> None:
    """Interleaved sessions do not rotate each other."""

    async def use(spool: Spool) -> None:
        for _ in range(3):
            await spool.append({SESSION: [BLOCK], OTHER: [BLOCK]})
        assert contents(tmp_path / SESSION) == contents(tmp_path / OTHER) == [LINE * 3]

    with_spool(tmp_path, use)


def read(path: Path) -> tuple[list[bytes], Damage]:
    damage = Damage()
    return [line for _, line in records(path, damage)], damage


def test_a_torn_end_is_cut_and_everything_before_it_is_kept(tmp_path: Path) -> None:
    """The power failed in the middle of a write, at any byte of it."""
    path = tmp_path / "1.wal"
    for cut in range(1, len(PACKED)):
        path.write_bytes(PACKED * 3 + PACKED[:-cut])
        lines, damage = read(path)
        assert (lines, damage.torn, damage.lost) == ([LINE] * 3, 1, 0)


def test_an_end_that_was_torn_twice_is_no_loss(tmp_path: Path) -> None:
    """Of two members that were written together, the first came to the disk in part, the second with its beginning."""
    path = tmp_path / "1.wal"
    for tail in (PACKED[:30] + PACKED[:20], PACKED[:30] + PACKED[:-9]):
        path.write_bytes(PACKED * 2 + tail)
        lines, damage = read(path)
        assert (lines, damage.torn, damage.lost) == ([LINE] * 2, 1, 0)


def test_zeros_at_the_end_were_never_written(tmp_path: Path) -> None:
    """Some file systems grow a file before its data are there: in the place of a member, or inside the last one."""
    path = tmp_path / "1.wal"
    for tail in (b"\0" * 5000, PACKED[:30] + b"\0" * (len(PACKED) - 30)):
        path.write_bytes(PACKED * 2 + tail)
        lines, damage = read(path)
        assert (lines, damage.torn, damage.lost) == ([LINE] * 2, 1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_damage_costs_only_itself(tmp_path: Path, seed: int) -> None:
    """Whatever bytes are overwritten in the middle of a file, the members around them are read."""
    dice = random.Random(seed)
    path = tmp_path / "1.wal"
    good = [pack(Block("node_events", 1, b'{"n":%d}\n' % n)) for n in range(9)]
    data = bytearray(b"".join(good))
    begin = sum(map(len, good[:4]))
    hit = begin + dice.randrange(len(good[4]))
    rubbish = dice.randbytes(min(dice.randrange(1, 30), begin + len(good[4]) - hit))
    data[hit : hit + len(rubbish)] = rubbish
    path.write_bytes(data)
    lines, damage = read(path)
    assert [line for line in lines if b'"n":4}' not in line] == [b'{"n":%d}\n' % n for n in range(9) if n != 4]
    assert damage.torn == 0
    assert damage.lost == (0 if b'{"n":4}\n' in lines else 1)


def test_what_was_put_between_members_is_told_from_them(tmp_path: Path) -> None:
    """Garbage of any length costs nothing but itself."""
    path = tmp_path / "1.wal"
    path.write_bytes(PACKED + b"x" * 3_000_000 + PACKED + b"\x1f\x8b\x08" + PACKED)
    lines, damage = read(path)
    assert (lines, damage.torn, damage.lost) == ([LINE] * 3, 0, 2)
    assert all(len(sample) <= 65536 for sample in damage.samples)


def test_a_category_never_becomes_a_path(tmp_path: Path) -> None:
    """The spool is trusted no more than anything else."""
    path = tmp_path / "1.wal"
    path.write_bytes(pack(Block("../../etc", 1, LINE)) + PACKED)
    lines, damage = read(path)
    assert (lines, damage.lost) == ([LINE], 1)


def test_what_an_earlier_process_left_is_found(tmp_path: Path) -> None:
    """Whole, named or not, and never appended to."""
    folder = tmp_path / SESSION
    folder.mkdir()
    (folder / "17.wal").write_bytes(PACKED)
    (folder / "18-abc.wal").write_bytes(PACKED)

    async def use(spool: Spool) -> None:
        assert [(each.created_ns, each.node) for each in spool.segments()] == [(17, None), (18, "abc")]
        assert spool.bytes == 2 * len(PACKED)
        assert spool.waiting_for_node() == {SESSION}
        await spool.name_node(SESSION, "def")
        assert (folder / "17-def.wal").exists()
        assert (folder / "18-abc.wal").exists()
        await spool.append({SESSION: [BLOCK]})
        assert len(list(folder.glob("*-def.wal"))) == 2

    with_spool(tmp_path, use)


def test_strange_things_in_the_spool_do_not_stop_the_start(tmp_path: Path) -> None:
    """Files where directories should be, names of others, a directory named as a segment."""
    (tmp_path / SESSION).mkdir()
    (tmp_path / SESSION / "x.wal").write_bytes(b"?")
    (tmp_path / SESSION / "5.parts").mkdir()
    (tmp_path / SESSION / "6.wal").mkdir()
    (tmp_path / "counts.json").write_bytes(b"\xff not JSON")
    (tmp_path / OTHER).write_bytes(b"a file")
    (tmp_path / "..wal").write_bytes(b"?")

    async def use(spool: Spool) -> None:
        assert spool.segments() == []
        await spool.append({SESSION: [BLOCK]})

    with_spool(tmp_path, use)


def test_segments_are_closed_by_size_and_by_age(tmp_path: Path) -> None:
    """And an empty one never exists."""

    async def by_size(spool: Spool) -> None:
        for _ in range(10):
            await spool.append({SESSION: [BLOCK]})
        assert [each.raw for each in spool.segments()] == [3 * len(LINE)] * 3

    async def by_age(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
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
            await spool.append({SESSION: [BLOCK]})
            await spool.rotate()
        assert [each.created_ns for each in spool.segments()] == [1000, 1001, 1002]

    with_spool(tmp_path, use)


def test_a_failing_disk_refuses_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not synced was not acknowledged; the next post begins a new segment."""

    async def use(spool: Spool) -> None:
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

    with_spool(tmp_path, use)


def test_sessions_without_end_do_not_hold_files_open(tmp_path: Path) -> None:
    """Somebody's invented session names cost no descriptors."""

    async def use(spool: Spool) -> None:
        for n in range(50):
            await spool.append({f"session_2026-11-15_19-18-08_055078_{n}": [BLOCK]})
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


def test_names_go_on_when_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when everything was uploaded and the process is another: a name is used once."""
    names: list[int] = []

    async def use(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
        await spool.rotate()
        (segment,) = spool.segments()
        names.append(segment.created_ns)
        await spool.discard(segment, 1)

    for now in (5000, 3000, 1000):
        monkeypatch.setattr("time.time_ns", lambda now=now: now)
        with_spool(tmp_path, use)
    assert names == [5000, 5001, 5002]


def test_counts_survive_restarts(tmp_path: Path) -> None:
    """The seal at the end tells of all processes that kept the session."""

    async def first(spool: Spool) -> None:
        await spool.append({SESSION: [Block("node_events", 2, b"{}\n{}\n"), Block("snapshots", 1, b"{}\n")]})
        await spool.rotate()
        await spool.discard(spool.segments()[0], 2)
        await spool.append({SESSION: [BLOCK]})
        await spool.note(bad=3, lost=1)
        assert spool.counts(SESSION) == (3, 2, 3, 1, 0)

    async def second(spool: Spool) -> None:
        assert spool.counts(SESSION) == (3, 2, 3, 1, 0)
        await spool.append({SESSION: [BLOCK]})
        await spool.note(bad=2, lost=0)
        assert spool.counts(SESSION) == (4, 2, 5, 1, 0)

    with_spool(tmp_path, first)
    with_spool(tmp_path, second)


def test_a_confirmed_segment_that_is_still_there_is_not_counted_twice(tmp_path: Path) -> None:
    """Killed between the note that it is stored and its deletion."""

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


def test_a_spool_that_cannot_be_made_yet_is_used_as_soon_as_it_can(tmp_path: Path) -> None:
    """A volume that is mounted late, or read-only at first."""

    async def session() -> None:
        (tmp_path / "volume").write_text("not a directory")
        spool = Spool(tmp_path / "volume" / "spool", budget=10**6, segment_size=10**5, segment_age=300)
        with pytest.raises(OSError, match="volume"):
            await spool.open()
        with pytest.raises(SpoolError):
            await spool.append({SESSION: [BLOCK]})
        assert not spool.writable
        (tmp_path / "volume").unlink()
        await spool.append({SESSION: [BLOCK]})
        assert spool.writable
        await spool.shut()

    asyncio.run(session())


def test_a_start_that_fails_does_not_lock_itself_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the spool could not be listed once: the lock is given back, and the next attempt finds all."""
    (tmp_path / SESSION).mkdir()
    (tmp_path / SESSION / "17-abc.wal").write_bytes(PACKED)

    async def session() -> None:
        spool = Spool(tmp_path, budget=10**6, segment_size=10**5, segment_age=300)

        def fails(_: Path) -> list[str]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", fails)
            with pytest.raises(OSError, match="Too many open files"):
                await spool.open()
        await spool.append({SESSION: [BLOCK]})
        assert [each.created_ns for each in spool.segments()] == [17]
        await spool.shut()

    asyncio.run(session())


def test_a_directory_that_cannot_be_synced_costs_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither open ones nor empty ones, however often a post is refused for it."""

    async def use(spool: Spool) -> None:
        def fails(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        (tmp_path / SESSION).mkdir()
        before = open_files()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            for _ in range(20):
                with pytest.raises(SpoolError, match="Input/output"):
                    await spool.append({SESSION: [BLOCK]})
        assert open_files() < before + 10  # of twenty posts
        assert not contents(tmp_path)
        await spool.append({SESSION: [BLOCK]})
        assert contents(tmp_path) == [LINE]

    with_spool(tmp_path, use)


def test_counts_that_are_written_bit_by_bit_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with little room takes a part of what it is given; half a file in its place cost all counts."""
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


def test_counts_that_cannot_be_written_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are right as long as the process lives, and written with the next ones."""

    async def first(spool: Spool) -> None:
        def fails(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        await spool.append({SESSION: [BLOCK]})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            await spool.note(bad=3, lost=1)
        assert spool.counts(SESSION) == (1, 0, 3, 1, 0)
        await spool.rotate()
        await spool.discard(spool.segments()[0], 1)

    async def second(spool: Spool) -> None:
        assert spool.counts(SESSION) == (1, 1, 3, 1, 0)

    with_spool(tmp_path, first)
    with_spool(tmp_path, second)


def test_a_disk_that_fails_at_closing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was acknowledged is synced, and on its way to the store like all else."""
    close = os.close

    def fails(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def use(spool: Spool) -> None:
        await spool.append({SESSION: [BLOCK]})
        with monkeypatch.context() as patch:
            patch.setattr(os, "close", fails)
            await spool.rotate()
        assert [segment.events for segment in spool.segments()] == [1]

    with_spool(tmp_path, use)


def test_a_stored_segment_that_cannot_be_deleted_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not uploaded again, and the next start deletes it."""

    def fails(path: Path) -> None:
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
