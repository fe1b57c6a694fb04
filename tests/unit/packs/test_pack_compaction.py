"""Old packs move into few objects; every byte stays readable, for readers and collectors that know nothing of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rayhistory.errors import ObjectNotFound
from rayhistory.logs.pack_times import PackTimes
from rayhistory.packs import pack_compaction
from rayhistory.packs.compacted_packs import (
    CompactedName,
    CompactionRecord,
    MovedPack,
    PackObjects,
    parse_compacted_name,
    parse_compaction_record,
)
from rayhistory.packs.pack_compaction import (
    CompactedObject,
    CompactionResult,
    StoredPack,
    compact_node,
    plan_compaction,
)
from rayhistory.packs.pack_format import pack_name, parse_pack_name
from rayhistory.packs.pack_reader import PackReader
from support.packed_node import PREFIX, PackedNode

pytestmark = pytest.mark.slow
NAME = CompactedName(0, 9, 1000, "0123abcd")


@pytest.fixture
def node(tmp_path: Path) -> PackedNode:
    """A node that has flushed 400 times."""
    made = PackedNode(tmp_path)
    grow(made, 400)
    return made


def grow(node: PackedNode, flushes: int) -> None:
    for number in range(flushes):
        node.append(f"worker-{number % 7}.log", 3)
        node.flush()


def compact(node: PackedNode, min_packs: int = 1) -> CompactionResult:
    return asyncio.run(compact_node(node.store, PREFIX, node.store.delete_many, min_packs=min_packs))


def objects(node: PackedNode) -> list[str]:
    folder = node.home / "store" / PREFIX
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def compacted(node: PackedNode) -> list[str]:
    return [name for name in objects(node) if name.startswith("compacted/")]


def test_every_byte_is_readable_after_compaction(node: PackedNode) -> None:
    before = len(objects(node))
    result = compact(node)
    assert result.packs > 150
    assert len(objects(node)) == before - result.packs + 2
    assert node.read_all() == node.on_disk()
    assert node.reader().damaged == 0


def test_running_collector_is_not_disturbed(node: PackedNode) -> None:
    """It keeps names of moved packs in memory, and writes them into later directories."""
    compact(node)
    grow(node, 300)
    assert node.read_all() == node.on_disk()
    compact(node)
    node.restart()
    grow(node, 10)
    assert node.read_all() == node.on_disk()
    assert node.reader().damaged == 0


def test_reader_that_opened_before_compaction_reads_on(node: PackedNode) -> None:
    async def work() -> None:
        reader = PackReader(node.store, PREFIX)
        await reader.refresh()
        opened = node.on_disk()
        for _ in range(2):  # then the object that it knows is part of a larger one
            await compact_node(node.store, PREFIX, node.store.delete_many, min_packs=1)
            contents = {name: await reader.read(name, 0, 1 << 40) for name in reader.files}
            assert contents == opened
            await asyncio.to_thread(grow, node, 300)
            reader._cache.frames.clear()
            reader._cache.leaves.clear()
        assert reader.damaged == 0

    asyncio.run(work())


def test_objects_grow_in_levels(node: PackedNode) -> None:
    copied = 0
    for _ in range(6):
        grow(node, 100)
        copied += compact(node).copied_bytes
    assert len(compacted(node)) <= 2 * 4
    sizes = [name.size for each in compacted(node) if (name := parse_compacted_name(each, ".packs"))]
    assert copied <= 4 * sum(sizes)
    assert node.read_all() == node.on_disk()


def test_second_compaction_finds_nothing_to_do(node: PackedNode) -> None:
    compact(node)
    before = objects(node)
    assert compact(node) == CompactionResult()
    assert objects(node) == before


def test_few_packs_are_left_alone(node: PackedNode) -> None:
    before = objects(node)
    assert compact(node, min_packs=300) == CompactionResult()
    assert objects(node) == before


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
def test_killed_compaction_loses_nothing_and_is_finished_by_the_next(
    node: PackedNode, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact(node)
    grow(node, 300)
    remaining = calls

    def killing(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                raise Killed
            return await work(*arguments)

        return call

    with monkeypatch.context() as patched:
        for name in ("put", "create", "delete_many"):
            patched.setattr(node.store, name, killing(getattr(node.store, name)))
        with pytest.raises(Killed):
            compact(node)
    assert node.read_all() == node.on_disk()
    monkeypatch.setattr(pack_compaction, "_MIN_ORPHAN_AGE_S", -1.0)
    grow(node, 200)
    compact(node)
    assert node.read_all() == node.on_disk()
    records = {each.removesuffix(".json") for each in compacted(node) if each.endswith(".json")}
    assert records == {each.removesuffix(".packs") for each in compacted(node) if each.endswith(".packs")}


def test_two_compactions_at_once_lose_nothing(node: PackedNode) -> None:
    async def both() -> None:
        await asyncio.gather(
            *(compact_node(node.store, PREFIX, node.store.delete_many, min_packs=1) for _ in range(2)),
            return_exceptions=True,
        )

    asyncio.run(both())
    assert node.read_all() == node.on_disk()


def test_times_of_moved_packs_are_kept(node: PackedNode) -> None:
    async def times() -> dict[str, int]:
        packs = [str(path.relative_to(node.home / "store" / PREFIX)) for path in node.packs()]
        names.extend(packs if not names else [])
        return await PackTimes(node.store, PREFIX).of(names)

    names: list[str] = []
    before = asyncio.run(times())
    compact(node)
    assert asyncio.run(times()) == before


def test_cold_read_of_a_moved_pack_takes_two_more_requests(node: PackedNode) -> None:
    def reads() -> int:
        reader = node.reader()
        node.store.reads.clear()
        asyncio.run(reader.read("worker-1.log", 0, 20))
        return len(node.store.reads)

    before = reads()
    compact(node)
    assert reads() <= before + 2 * 2  # the failed read of the pack and the record, for leaf and frame


def test_lost_pack_is_still_reported_as_missing(node: PackedNode) -> None:
    async def read() -> bytes:
        return await PackObjects(node.store, PREFIX).get_range(pack_name(999, 100, 50), 0, 10)

    compact(node)
    with pytest.raises(ObjectNotFound):
        asyncio.run(read())


def test_lost_object_is_damage_and_not_a_failure(node: PackedNode) -> None:
    compact(node)
    for path in (node.home / "store" / PREFIX / "compacted").glob("*.packs"):
        path.unlink()
    reader = node.reader()
    content = asyncio.run(reader.read("worker-1.log", 0, 1 << 40))
    assert len(content) == len(node.on_disk()["worker-1.log"])
    assert reader.damaged


@pytest.mark.parametrize(
    "moved",
    [
        MovedPack("../../secret", 0, 0),
        MovedPack(pack_name(5, 100, 50), -1, 0),
        MovedPack(pack_name(5, 100, 50), 901, 0),
        MovedPack(pack_name(10, 100, 50), 0, 0),
    ],
)
def test_hostile_record_is_ignored(moved: MovedPack) -> None:
    good = MovedPack(pack_name(5, 100, 50), 900, 7)
    assert parse_compaction_record(msgspec.json.encode(CompactionRecord([good, moved])), NAME) == [good]


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"packs": [[1]]}', b" " * (5 << 20)])
def test_malformed_record_is_empty(data: bytes) -> None:
    assert parse_compaction_record(data, NAME) == []


def test_name_of_an_object_is_parsed_in_its_folder_only() -> None:
    assert parse_compacted_name(f"logs/n/{NAME}.packs", ".packs") == NAME
    assert parse_compacted_name(f"logs/n/{NAME}.packs", ".json") is None
    assert parse_compacted_name(f"logs/n/other/{str(NAME).rpartition('/')[2]}.packs", ".packs") is None


def stored(numbers: range, size: int) -> list[StoredPack]:
    return [StoredPack(pack_name(number, size, 10), number, size, 0) for number in numbers]


def test_plan_is_limited_by_bytes() -> None:
    plan = plan_compaction(stored(range(100), 4 << 20), [], 1)
    assert plan is not None
    assert len(plan.packs) == 16


def test_plan_leaves_large_packs_alone() -> None:
    """A writer may store a pack of any size, and all packs of an object are first copied to the disk."""
    large = stored(range(3, 4), 5 << 40)
    plan = plan_compaction([*stored(range(3), 100), *large, *stored(range(4, 9), 100)], [], 1)
    assert plan is not None
    assert [pack.number for pack in plan.packs] == [0, 1, 2, 4, 5, 6, 7, 8]
    assert plan_compaction(large, [], 1) is None


def test_plan_takes_in_smaller_objects_before_it_and_no_larger_ones() -> None:
    large, small = CompactedName(0, 9, 50_000, "0" * 8), CompactedName(10, 19, 900, "1" * 8)
    after = CompactedName(500, 600, 10, "2" * 8)
    known = [CompactedObject(name, 10) for name in (after, large, small)]
    plan = plan_compaction(stored(range(20, 30), 100), known, 1)
    assert plan is not None
    assert [each.name for each in plan.objects] == [small]


def test_collector_that_resumes_finds_its_newest_packs(node: PackedNode) -> None:
    """The newest checkpoint and the packs before it are never moved."""
    root = node.reader().directory.root
    assert root is not None
    compact(node)
    checkpoint = parse_pack_name(root.pack)
    assert checkpoint is not None
    numbers = [pack.number for path in node.packs() if (pack := parse_pack_name(path.name))]
    assert min(numbers) == checkpoint.number - pack_compaction.KEPT_PACKS
